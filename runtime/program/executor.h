// Runs a program: every op is prepared once for this rank, and every buffer has its place.
#pragma once

#include <memory>
#include <vector>

#include "program/memory_plan.h"
#include "program/program.h"

namespace shard::program {

/// The tensors of a run: those of program.inputs and program.parameters. Undefined where the program has no value.
struct Arguments {
  std::vector<Tensor> inputs;
  std::vector<Tensor> parameters;
};

/// The states of the generators of plain and of distributed calls.
struct RandomStart {
  RandomKey plain, world;
};

struct MemoryReport {
  int64_t block = 0;    // bytes of the block in which buffers of the program lie
  int64_t live = 0;     // the most bytes of it in use at one time
  int64_t outputs = 0;  // bytes of buffers that outputs are in, which the caller keeps
  int64_t moved =
      0;  // the most bytes at one time of results of moves between layouts and devices, which are in buffers of their own
};

/// What runs as graphs of a device, and what has been done with them.
struct GraphReport {
  size_t sequences = 0;
  size_t steps = 0;  // kernels and copies in them
  uint64_t recordings = 0;
  uint64_t launches = 0;
};

struct ExecutorOptions {
  /// Elementwise ops of one size that follow each other run as one loop over blocks of so many elements, which lie in the cache from op to op. Smaller
  /// tensors are left alone; 0: all are.
  int64_t fuse_block = 8192;
  /// Kernels that follow each other and need nothing of each other run at the same time where the shorter ones take so many nanoseconds, as far as can be
  /// foretold; 0: one after the other.
  double together_ns = 5000;
  /// Whether the tensors of a run are held until the next one, which saves the next run time where they are the same.
  bool keep_arguments = true;
  /// Whether kernels and copies that follow each other are issued as one graph, on devices that record (Backend::graph_begin).
  bool device_graphs = true;
};

/// Prepared for one rank (or none: for plain tensors alone). It belongs to the thread that makes it.
class Executor {
 public:
  /// `arguments` are like those of all runs: types, and which of them share which bytes. `program` must outlive the executor.
  Executor(const Program& program, const Arguments& arguments, ExecutorOptions options = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  /// Runs all ops and gives the outputs. Throws what eager calls would, and leaves written tensors poisoned where those would. `forward`: of a
  /// backward program, where the generators were when its forward program ran.
  std::vector<Tensor> run(const Arguments& arguments, const RandomStart& forward = {});
  /// Where the generators were when the last run began.
  const RandomStart& random_start() const { return start_; }
  /// After a run: the gradients that program.gradients names; undefined ones are cleared.
  std::vector<Tensor> gradients(const Arguments& arguments) const;

  MemoryReport memory() const;
  /// How many ops run as parts of fused loops.
  size_t fused_ops() const;
  /// How many kernels and loops run at the same time as others.
  size_t together() const;
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
  void doubt_writes(uint64_t calls_before);
  size_t poison(const Step& step);
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
  std::vector<size_t> random_ops_;
  std::vector<bool> read_;            // by root of a tree
  std::vector<Ref<Storage>> blocks_;  // by device
  MemoryPlan plan_;
  int64_t moved_ = 0;
  RandomStart start_;
};

}  // namespace shard::program
