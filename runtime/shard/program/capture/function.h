// Functions that are captured once per kind of inputs and then run as programs.
#pragma once

#include <memory>

#include "shard/core/export.h"
#include "shard/program/capture/trace.h"
#include "shard/program/exec/executor.h"
#include "shard/program/passes/passes.h"

namespace shard {

using program::Scope;

struct CaptureOptions {
  /// The scope that names the program's parameters. Must outlive the function.
  const Scope* scope = nullptr;
  /// The number of programs to keep, one for each kind of inputs. The least recently used is
  /// evicted first.
  size_t capacity = 16;
  /// Whether the standard passes run on programs before they are used.
  bool passes = true;
  /// Names of standard passes to leave out. If no pass has such a name, capturing throws
  /// invalid_argument.
  std::vector<std::string> skip = {};
  /// Limit for the live bytes of the program's buffers, on the rank with the largest local shards.
  /// Above it, passes recompute values to get down to the limit, or as far as they can. For a
  /// function with a gradient it limits forward and backward together, and trace() has the repeated
  /// ops. 0: no limit.
  int64_t memory_goal = 0;
  /// How programs run.
  program::ExecutorOptions executor = {};
  /// Called with what each pass does to each program. For a function with a gradient, first for the
  /// forward program and then for the backward program.
  program::PassObserver observer = {};
};

struct CaptureStats {
  uint64_t hits = 0;
  uint64_t misses = 0;  // runs that had to capture first
  uint64_t evictions = 0;
  uint64_t entries = 0;
};

/// A function whose calls run programs. Copies share the programs. Each rank captures its own.
/// Calls and backward passes must not overlap: one that starts while another thread is in one
/// throws capture.
///
/// A call looks up the program by everything that capture depends on: shapes, dtypes, layouts and
/// devices of the inputs, which of them require gradients, which inputs and parameters share which
/// bytes, policies, and whether gradients are recorded. If there is none, it captures the function.
/// Programs read the tensors from outside that the function uses (parameters) anew in each run, and
/// write into their buffers. Other effects of the function, such as printing or changing variables,
/// happen only while it is captured.
///
/// Outputs that require gradients have a history of one step, or of one step for each group of
/// outputs that share no step of the function. The backward pass is a program too. It can run once
/// per call, or as often as retain_graph allows. With create_graph the function itself is called
/// again instead, and recorded.
class SHARD_API CapturedFunction {
 public:
  CapturedFunction(program::Function function, CaptureOptions options);
  /// Runs a program that was loaded (program/json.h), for inputs like those that it was captured
  /// with and no others. Its parameters are shared with those of the scope that it was loaded with.
  explicit CapturedFunction(program::Trace loaded);
  ~CapturedFunction();
  CapturedFunction(const CapturedFunction&);
  CapturedFunction& operator=(const CapturedFunction&);

  /// Throws what eager calls would throw. In a dry world and inside another capture, it calls the
  /// function; a loaded program has no function and throws capture. For inputs that do not fit a
  /// loaded program, throws invalid_argument with the expected types.
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, CallSite site = CallSite::here());
  /// The trace that was captured for inputs like these, including its backward pass.
  const program::Trace& trace(const std::vector<Tensor>& inputs);
  CaptureStats stats() const;
  /// The memory report of the program for inputs like these, which must have run.
  program::MemoryReport memory(const std::vector<Tensor>& inputs);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Captures `function` for inputs like `example_inputs`. Nothing runs, and the examples are not
/// changed.
SHARD_API CapturedFunction capture(program::Function function, const std::vector<Tensor>& example_inputs,
                                   CaptureOptions options = {});

/// The captured function of a program in a file, with the parameters of `scope`. Throws what
/// program::load throws.
SHARD_API CapturedFunction load_function(const std::string& path, const Scope& scope);

}  // namespace shard
