// Runs a program. Every op is prepared once for this rank, and every buffer has its place in
// memory.
#pragma once

#include <memory>
#include <vector>

#include "shard/core/export.h"
#include "shard/program/exec/memory_plan.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// The tensors of a run, for program.inputs and program.parameters. Undefined where the program has
/// no value.
struct Arguments {
  std::vector<Tensor> inputs;
  std::vector<Tensor> parameters;
};

/// The states of the generators of plain and of distributed calls.
struct RandomStart {
  RandomKey plain, world;
};

struct MemoryReport {
  int64_t block = 0;    // bytes of the block that holds buffers of the program
  int64_t live = 0;     // peak bytes of the block in use
  int64_t outputs = 0;  // bytes of buffers of outputs, which the caller keeps
  // Peak bytes of the results of reshards and device copies, which have buffers of their own.
  int64_t reshard_peak = 0;
};

/// What runs as device graphs, and how often they were recorded and launched.
struct GraphReport {
  size_t sequences = 0;
  size_t steps = 0;  // kernels and copies in them
  uint64_t recordings = 0;
  uint64_t launches = 0;
};

struct ExecutorOptions {
  /// Loop fusion: consecutive elementwise ops of the same size run as one loop over blocks of this
  /// many elements, which stay in the cache from op to op. Smaller tensors are not fused. 0 turns
  /// fusion off. On a device such ops are few kernels, whatever their size, where the backend can make them (Backend::loops).
  int64_t fuse_block = 8192;
  /// Consecutive kernels that are independent of each other run in parallel if the shorter ones
  /// take at least this many nanoseconds, as estimated. 0: one after the other.
  double parallel_ns = 5000;
  /// Whether the tensors of a run are held until the next run. That saves time if the next run gets
  /// the same tensors.
  bool keep_arguments = true;
  /// Whether consecutive kernels and copies are issued as one graph, on devices that can record
  /// (Backend::graph_begin).
  bool device_graphs = true;
};

/// A program prepared for one rank, or without a rank for plain tensors alone. An executor belongs
/// to the thread that creates it.
class SHARD_API Executor {
 public:
  /// `arguments` have the types of all later runs, and share bytes in the same way. `program` must
  /// outlive the executor.
  Executor(const Program& program, const Arguments& arguments, ExecutorOptions options = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  /// Runs all ops and returns the outputs. Throws what eager calls would throw, and leaves written
  /// tensors poisoned where they would. For a backward program, `forward` are the states of the
  /// generators when its forward program ran.
  std::vector<Tensor> run(const Arguments& arguments, const RandomStart& forward = {});
  /// The states of the generators when the last run began.
  const RandomStart& random_start() const { return start_; }
  /// Call this after a run: the gradients that program.gradients names. Undefined ones are cleared.
  std::vector<Tensor> gradients(const Arguments& arguments) const;

  MemoryReport memory() const;
  /// The number of ops that run as parts of fused loops.
  size_t fused_ops() const;
  /// The number of kernels and loops that run in parallel with others.
  size_t parallel_steps() const;
  GraphReport graphs() const;

 private:
  class Build;
  class Schedule;
  struct Root;
  struct Place;
  struct Step;
  struct OpState;

  void schedule();
  void enter(const std::vector<Named>& names, const std::vector<Tensor>& tensors);
  void set_root(Root& root, const Ref<Storage>& storage, size_t base);
  void make_outputs();
  void let_go();
  void take_back(size_t op);
  void draw_keys(const RandomStart& forward);
  void count_writes();
  void mark_writes_maybe_poisoned(uint64_t calls_before);
  size_t poison(const Step& step, bool refused);
  void poison(size_t first, size_t last);
  Tensor tensor_of(ValueId value, const Arguments& arguments) const;

  const Program& program_;
  const ExecutorOptions options_;
  Rank* rank_;
  MemoryMeter meter_;
  std::vector<std::unique_ptr<Root>> roots_;
  std::vector<Place> places_;  // by value
  std::vector<std::unique_ptr<OpState>> states_;
  std::vector<Step> steps_;
  size_t device_fused_ = 0;  // ops in loops of devices
  std::vector<size_t> random_ops_;
  std::vector<bool> read_;            // by root of a tree
  std::vector<Ref<Storage>> blocks_;  // by device
  MemoryPlan plan_;
  int64_t reshard_peak_ = 0;
  RandomStart start_;
};

}  // namespace shard::program
