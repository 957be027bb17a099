// The parts of an executor, for the files that prepare and run it.
#pragma once

#include "shard/call/binder.h"
#include "shard/call/plan.h"
#include "shard/comm/reduce.h"
#include "shard/core/op_context.h"
#include "shard/program/exec/executor.h"
#include "shard/program/exec/graph_step.h"
#include "shard/program/exec/parallel_step.h"

namespace shard::program {

/// A buffer. A storage-less stand-in represents it until the program runs.
struct Executor::Root {
  enum class Kind : uint8_t {
    entry,    // of an input or parameter: the buffer that the run is given
    planned,  // at an offset in the block
    output,   // new in each run, or reused if nobody else holds it any more
    made      // allocated by the step that makes it: a reshard allocates its result
  };
  Kind kind = Kind::planned;
  Ref<Storage> stand_in;
  size_t bytes = 0;
  size_t first = 0, last = 0;         // ops
  std::vector<DenseTensor*> tensors;  // tensors of steps that are on this buffer
  std::vector<size_t> offsets;        // offsets of those tensors from its start
  Ref<Storage> now;
  size_t base = 0;
  uint64_t writes = 0;  // writes in one run, for an entry
  const char* writer = nullptr;
};

struct Executor::Place {
  DenseTensor tensor;  // on the stand-in; undefined for an absent value
  Root* root = nullptr;
  size_t argument = 0;  // 1 + its number among inputs followed by parameters; 0 for other values
};

struct Executor::Step {
  std::unique_ptr<call::BoundStep> step;
  size_t op;
  // Last op of ops that run as one loop, in parallel or as a graph; otherwise the same as `op`.
  size_t last = 0;
  std::vector<std::unique_ptr<call::BoundStep>> parts = {};  // of a fused loop
  // A kernel, a copy, or a loop of them: it uses only its tensors.
  bool computes = false;
  std::vector<Step> members = {};          // of steps that run in parallel
  const GraphStep* graph = nullptr;        // the same step, if it is a graph
  const ParallelStep* parallel = nullptr;  // the same step, if it runs steps in parallel
};

/// The state that the steps of an op refer to.
struct Executor::OpState {
  call::CallPlan plan;  // for a call on a mesh
  LocalCall local;
  std::unique_ptr<AxisReducer> reducer;
  RandomKey key;
  bool on_mesh = false;
  std::vector<Root*> written;  // written buffers of inputs and parameters
  std::vector<Root*> uses;     // what its kernels read and write
};

}  // namespace shard::program
