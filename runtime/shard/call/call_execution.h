// The third part of a distributed call: reshards the inputs as the plan says, runs the kernel on
// local shards, finishes and writes back the outputs.
#pragma once

#include <memory>
#include <vector>

#include "shard/call/call_args.h"
#include "shard/call/find_plan.h"
#include "shard/call/float32_call.h"
#include "shard/call/mesh_reducer.h"

namespace shard::call {

/// Executes the plan of one distributed call, and reports the call to traces, observers and
/// captures. If it fails, the world is told, and what was written is poisoned.
class SHARD_API CallExecution {
 public:
  explicit CallExecution(CallArgs& args);
  ~CallExecution() {
    args_.cache.give_list(std::move(locals_));
    args_.cache.give_list(std::move(results_));
  }

  /// `kernel` computes results() from locals(). It is called on the ranks of the mesh.
  void run(const CallPlan& plan, const InferEntry& infer, FunctionRef<void()> kernel);
  /// Runs `kernel` on storage-less local shards of a plan that is still being made.
  void run_dry(const CallPlan& plan, DryLauncher& launcher, AxisReducer& reducer, FunctionRef<void()> kernel);
  /// The kernel of an op that only reinterprets its input 0.
  void reinterpret();

  /// The context of the kernel, and its arguments and results, both flat.
  const OpContext& ctx() const { return ctx_; }
  const CallPlan& plan() const { return *plan_; }
  std::vector<DenseTensor>& locals() { return locals_; }
  const std::vector<DenseTensor>& locals() const { return locals_; }
  std::vector<DenseTensor>& results() { return results_; }
  /// Sets the results of output slot `slot`, a list.
  void set(size_t slot, std::vector<DenseTensor> values);
  /// A finished output as a distributed tensor; undefined if it is absent.
  Tensor output(size_t flat);

 private:
  void prepare(const InferEntry& infer);
  DenseTensor local_shape_of(size_t i) const;
  DenseTensor reshard_input(size_t i) const;
  void run_kernel(FunctionRef<void()> kernel);
  void convert_results(const Float32Call& converted);

  /// Reports the call to the tracer, with the inputs as they are after their reshards.
  void capture();
  /// In a capture, sets the program value that a result is.
  void mark(DenseTensor& result, size_t output) const {
    if (args_.tracer != nullptr && !plan_->relayout) result.set_symbol(symbols_[output]);
  }
  /// Copies `from` over `to`: the bytes of this rank or, in a capture, as a step of the program.
  void copy_over(DenseTensor& to, const DenseTensor& from) const;

  void finish();
  void check_combined() const;
  void finish_dynamic();
  void finish_view(size_t output);
  void finish_written_view(size_t output);
  void finish_inplace(size_t output);
  void replace_target(const OutputPlan& output, DenseTensor result, bool written);
  void detach(const DenseTensor& copy, size_t input);
  void fill_with_identity(DenseTensor& shard) const;
  /// Throws unless the local result has the meta that the layout of the output implies.
  void check_result(size_t output, const DenseTensor& result) const {
    if (!plan_->active) return;
    const Meta& shard = plan_->output_shards[output];
    if (!(result.meta() == shard)) fail_shard(args_.op, plan_->outputs[output], result.meta(), shard);
  }
  CommCause cause_of(size_t input) const { return {args_.op.name, args_.name_of(plan_->inputs[input].slot)}; }

  /// Call this in an exception handler. Reports to the world that the call failed on this rank (it
  /// may not have failed on other ranks), poisons what it may have written, and throws the error
  /// again.
  [[noreturn]] void fail_call(uint64_t call) const;
  void record_call();

  CallArgs& args_;
  OpContext ctx_ = args_.ctx;
  LocalCall local_;
  bool recorded_ = false;  // in a trace, a dry report or by an observer
  int finishing_ = -1;     // the last output whose write-back may have begun; -1: none
  int64_t begin_ns_ = 0;
  CommStats before_;  // in a dry world: the statistics before the call
  const CallPlan* plan_ = nullptr;
  std::vector<DenseTensor> locals_;
  std::vector<DenseTensor> results_;
  std::unique_ptr<MeshReducer> reducer_;
  // Global metas, one for each flat output; empty for outputs that are not dynamic.
  std::vector<Meta> dynamic_;
  std::vector<DenseTensor> captured_inputs_;  // in a capture: the inputs as the op gets them
  std::vector<uint32_t> symbols_;             // in a capture: the values of the program that the flat outputs are
};

}  // namespace shard::call
