// What an executor consists of; for those that prepare and run it.
#pragma once

#include "call/binder.h"
#include "call/plan.h"
#include "comm/reduce.h"
#include "core/op_context.h"
#include "program/executor.h"
#include "program/graph_step.h"
#include "program/together_step.h"

namespace shard::program {

/// A buffer. Until the program runs, a storage without bytes stands for it.
struct Executor::Root {
  enum class Kind : uint8_t {
    entry,    // of an input or parameter: whatever the run is given
    planned,  // at a place of the block
    output,   // new in each run, unless nobody else has it any more
    made      // by the step that makes it: a move makes its own result
  };
  Kind kind = Kind::planned;
  Ref<Storage> stand_in;
  size_t bytes = 0;
  size_t first = 0, last = 0;         // op
  std::vector<DenseTensor*> tensors;  // of steps, that are in it
  std::vector<size_t> offsets;        // of those, from the start
  Ref<Storage> now;
  size_t base = 0;
  uint64_t writes = 0;  // in a run, of an entry
  const char* writer = nullptr;
};

struct Executor::Place {
  DenseTensor tensor;  // on the stand-in; undefined for an absent value
  Root* root = nullptr;
  size_t argument = 0;  // 1 + its number among inputs and then parameters; 0: it is none
};

struct Executor::Step {
  std::unique_ptr<call::BoundStep> step;
  size_t op;
  size_t last = 0;  // of ops that run as one loop, together or as a graph: the last of them; else as op
  std::vector<std::unique_ptr<call::BoundStep>> parts = {};  // of a fused loop
  bool computes = false;                   // a kernel, a copy or a loop of them: it looks at its tensors alone
  std::vector<Step> members = {};          // of steps that run together
  const GraphStep* graph = nullptr;        // the step, where it is one
  const TogetherStep* together = nullptr;  // the step, where it is one
};

/// What the steps of an op refer to.
struct Executor::OpState {
  call::CallPlan plan;  // of a call on a mesh
  LocalCall local;
  std::unique_ptr<AxisReducer> reducer;
  RandomKey key;
  bool on_mesh = false;
  std::vector<Root*> written;  // entries
  std::vector<Root*> uses;     // what its kernels read and write
};

}  // namespace shard::program
