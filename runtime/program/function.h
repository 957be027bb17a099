// Functions that are captured once per kind of inputs and then run as programs.
#pragma once

#include <memory>

#include "program/executor.h"
#include "program/passes.h"
#include "program/trace.h"

namespace shard {

using program::Scope;

struct CaptureOptions {
  /// Whose names the program's parameters have. Must outlive the function.
  const Scope* scope = nullptr;
  /// How many programs are kept, one for each kind of inputs; the least recently used goes first.
  size_t capacity = 16;
  /// Whether programs go through the standard passes before they run.
  bool passes = true;
  /// Names of standard passes to leave out. A name that no pass has is an invalid_argument when the function is captured.
  std::vector<std::string> skip = {};
  /// Bytes of buffers that the program may have live at one time, on the rank with the largest pieces; where they are more, passes repeat ops to
  /// come down to it, or as far as they can. Of a function with a gradient: of both passes together, and trace() has the repeated ops. 0: any.
  int64_t memory_goal = 0;
  /// How programs run.
  program::ExecutorOptions executor = {};
  /// Is shown what each pass does to each program: of a function with a gradient to its forward program, then to its backward one.
  program::PassObserver observer = {};
};

struct CaptureStats {
  uint64_t hits = 0;
  uint64_t misses = 0;  // runs that had to capture first
  uint64_t evictions = 0;
  uint64_t entries = 0;
};

/// A function whose calls run programs. Copies share them. Each rank captures its own. Its calls and backward passes must not overlap: one that starts while
/// another thread is in one throws capture.
///
/// A call finds the program by what capture depends on: shapes, dtypes, layouts and devices of the inputs, which of them require gradients, which
/// inputs and parameters share which bytes, policies, and whether gradients are recorded; or captures the function for it. Programs read the
/// tensors from outside that the function uses (parameters) anew in each run, and write into their buffers. What the function itself does
/// besides, such as printing or changing variables, happens only while it is captured.
///
/// Outputs that require gradients have a history of one step, or one for each group of outputs that share no step of the function; its backward
/// pass is a program too. It may run once per call, or as often as retain_graph says. With create_graph the function itself is called again instead, and recorded.
class CapturedFunction {
 public:
  CapturedFunction(program::Function function, CaptureOptions options);
  /// Runs a program that was loaded (program/json.h) for inputs like those that it was captured with, and no others. Its parameters are shared
  /// with those of the scope that it was loaded with.
  explicit CapturedFunction(program::Trace loaded);
  ~CapturedFunction();
  CapturedFunction(const CapturedFunction&);
  CapturedFunction& operator=(const CapturedFunction&);

  /// Throws what eager calls would. In a dry world, and inside of another capture, it calls the function; a loaded program has none, and
  /// throws capture. Of a loaded program, throws invalid_argument with the expected types for inputs that do not fit it.
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, CallSite site = CallSite::here());
  /// What was captured for inputs like these, its backward pass included.
  const program::Trace& trace(const std::vector<Tensor>& inputs);
  CaptureStats stats() const;
  /// Of the program for inputs like these, which has run.
  program::MemoryReport memory(const std::vector<Tensor>& inputs);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Captures `function` for inputs like `example_inputs`, which are not changed; nothing runs.
CapturedFunction capture(program::Function function, const std::vector<Tensor>& example_inputs,
                         CaptureOptions options = {});

/// The function of a program in a file, with the parameters of `scope`. Throws what program::load does.
CapturedFunction load_function(const std::string& path, const Scope& scope);

}  // namespace shard
