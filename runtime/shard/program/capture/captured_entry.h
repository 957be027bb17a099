// The state of a captured function: its programs, their executors, and what they were captured
// from.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>

#include "shard/program/capture/call_key.h"
#include "shard/program/capture/function.h"
#include "shard/program/capture/parts.h"

namespace shard::program {

/// Ensures that only one thread at a time is in a call of a captured function.
class ThreadOwner {
 public:
  /// Occupies the function for its lifetime. Calls of one thread may be nested. Throws if another
  /// thread is in a call.
  class Hold {
   public:
    explicit Hold(ThreadOwner& owner) : owner_(owner) {
      const ThreadState* nobody = nullptr;
      entered_ = owner.thread_.compare_exchange_strong(nobody, &this_thread, std::memory_order_acquire);
      if (entered_ || nobody == &this_thread) return;
      fail(ErrorCode::capture,
           "[captured] another thread is in a call or a backward pass of this captured function, whose programs keep "
           "buffers from run to run. Capture one function "
           "per thread, or let the threads take turns");
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      if (entered_) owner_.thread_.store(nullptr, std::memory_order_release);
    }

   private:
    ThreadOwner& owner_;
    bool entered_;
  };

 private:
  std::atomic<const ThreadState*> thread_{nullptr};
};

/// What is captured, and how. Shared by a captured function and all its programs.
struct CaptureSource {
  Function function;  // empty for a program that was loaded
  CaptureOptions options;
  ThreadOwner owner;

  Program improved(Program program, int64_t goal = 0) const {
    return options.passes ? run_passes(std::move(program),
                                       {.skip = options.skip, .memory_goal = goal, .observer = options.observer})
                          : std::move(program);
  }
};

/// A part of a gradient, and its executor.
struct BackwardRun {
  BackwardPart part;
  std::unique_ptr<Executor> executor = {};  // null until it has run for the first time
  SumPolicy sums = SumPolicy::float32;      // in force when the executor was made
};

/// The backward pass of the outputs of one group.
struct GradientStep {
  BackwardRun all;                                     // without a program if computing the gradient is an error
  std::map<std::vector<bool>, BackwardRun> some = {};  // by which outputs have a gradient, if some have none
};

/// A program with everything that it needs to run.
struct Entry {
  std::shared_ptr<CaptureSource> source;
  KeyWords key;
  KeyWords sharing;     // of inputs and parameters
  KeyWords parameters;  // types of the parameters
  Trace trace;
  std::optional<Split> split;  // if the function has a gradient
  Program whole;               // the program that runs if the function has no gradient
  std::unique_ptr<Executor> forward;
  std::vector<GradientStep> steps;
  // For each value of trace.program: 1 + its number among the inputs of the function followed by
  // the parameters, or 0 if it is neither.
  std::vector<size_t> argument_of;
  // For each value of trace.program that is the root of a tree: whether ops read its bytes.
  std::vector<bool> read;
  std::vector<ValueId> written;  // arguments that the program writes with a history
  std::vector<size_t> leaf_of;   // for each gradient that a run leaves: its index in trace.leaves

  const Program& program() const { return split ? split->forward : whole; }
  void prepare_forward(const Arguments& arguments) {
    if (!forward) forward = std::make_unique<Executor>(program(), arguments, source->options.executor);
  }
  /// The backward pass of the outputs of a step that have a gradient.
  BackwardRun& backward(size_t step, const std::vector<bool>& given);
  /// Fills the lookup tables. Call this once the trace is complete.
  void index();
  bool is_read(ValueId id) const { return read[trace.program.value(id).root]; }
  /// The tensor for an input or parameter of the captured program; undefined for other values.
  Tensor argument(ValueId id, const Arguments& arguments) const;
};

/// The current tensors for the parameters of an entry. Undefined where a leaf has no gradient.
std::vector<Tensor> parameters_of(const Entry& entry, const std::vector<Tensor>& inputs);
const Tensor& tensor_of(const Leaf& leaf, const std::vector<Tensor>& inputs);
/// True if an entry whose key matches the call also fits in everything that the key does not cover.
bool fits(const Entry& entry, const Arguments& arguments);

}  // namespace shard::program
