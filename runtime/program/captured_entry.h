// What a captured function keeps: its programs, what runs them, and what it was captured from.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>

#include "program/call_key.h"
#include "program/function.h"
#include "program/parts.h"

namespace shard::program {

/// Which thread is in a call of a captured function.
class Occupant {
 public:
  /// For as long as this lives. Calls of one thread may be in each other. Throws where another thread is in a call.
  class Stay {
   public:
    explicit Stay(Occupant& occupant) : occupant_(occupant) {
      const ThreadState* nobody = nullptr;
      entered_ = occupant.thread_.compare_exchange_strong(nobody, &this_thread, std::memory_order_acquire);
      if (entered_ || nobody == &this_thread) return;
      fail(ErrorCode::capture,
           "[captured] another thread is in a call or a backward pass of this captured function, whose programs keep "
           "buffers from run to run. Capture one function "
           "per thread, or let the threads take turns");
    }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
    ~Stay() {
      if (entered_) occupant_.thread_.store(nullptr, std::memory_order_release);
    }

   private:
    Occupant& occupant_;
    bool entered_;
  };

 private:
  std::atomic<const ThreadState*> thread_{nullptr};
};

/// What is captured, and how: of a function and of all programs that were made of it.
struct CaptureSource {
  Function function;  // none where a program was loaded
  CaptureOptions options;
  Occupant occupant;

  Program improved(Program program, int64_t goal = 0) const {
    return options.passes ? run_passes(std::move(program),
                                       {.skip = options.skip, .memory_goal = goal, .observer = options.observer})
                          : std::move(program);
  }
};

/// A part of a gradient, and what runs it.
struct BackwardRun {
  BackwardPart part;
  std::unique_ptr<Executor> executor = {};  // once it has run
  SumPolicy sums = SumPolicy::float32;      // in force when the executor was made
};

/// The backward pass of outputs of one group.
struct GradientStep {
  BackwardRun all;                                     // without a program where the gradient is an error
  std::map<std::vector<bool>, BackwardRun> some = {};  // by which outputs have a gradient, where not all have
};

/// A program with what it needs to run.
struct Entry {
  std::shared_ptr<CaptureSource> source;
  KeyWords key;
  KeyWords sharing;     // of inputs and parameters
  KeyWords parameters;  // their types
  Trace trace;
  std::optional<Split> split;  // where the function has a gradient
  Program whole;               // what runs where it has none
  std::unique_ptr<Executor> forward;
  std::vector<GradientStep> steps;
  std::vector<size_t>
      argument_of;  // by value of trace.program: 1 + its number among the inputs of the function and then the parameters; 0: it is none
  std::vector<bool> read;        // by value of trace.program that is the root of a tree: whether ops read bytes of it
  std::vector<ValueId> written;  // arguments that the program writes with a history
  std::vector<size_t> leaf_of;   // by gradient that a run leaves: its number in trace.leaves

  const Program& program() const { return split ? split->forward : whole; }
  void prepare_forward(const Arguments& arguments) {
    if (!forward) forward = std::make_unique<Executor>(program(), arguments, source->options.executor);
  }
  /// The backward pass of those outputs of a step that have a gradient.
  BackwardRun& backward(size_t step, const std::vector<bool>& given);
  /// Once the trace is complete.
  void index();
  bool is_read(ValueId id) const { return read[trace.program.value(id).root]; }
  /// The tensor that an input or parameter of the captured program is; undefined for other values.
  Tensor argument(ValueId id, const Arguments& arguments) const;
};

/// The tensors that an entry's parameters are now. Undefined where a leaf has no gradient.
std::vector<Tensor> parameters_of(const Entry& entry, const std::vector<Tensor>& inputs);
const Tensor& tensor_of(const Leaf& leaf, const std::vector<Tensor>& inputs);
/// Whether an entry, whose key is that of the call, fits what it does not tell.
bool fits(const Entry& entry, const Arguments& arguments);

}  // namespace shard::program
