// Executes reshard plans on this rank's local shards.
#pragma once

#include <span>

#include "shard/comm/communicator.h"
#include "shard/dist/dist_tensor.h"
#include "shard/reshard/plan.h"

namespace shard {

/// This rank's local shard after the plan; a new buffer whenever the plan has a step. On a rank
/// outside the new mesh the result is absent. Collective over the processes of both meshes where
/// the plan communicates. With `later` the last step may be left in flight: the storages of the
/// tensors that it reads and writes wait for it.
DenseTensor execute_reshard(Rank& rank, const ReshardPlan& plan, const DenseTensor& shard, CommCause cause,
                            bool later = false);

/// The same for several tensors at once. Tensors of one dtype whose plans have the same steps
/// (kinds, axes, meshes) share each step's collective.
std::vector<DenseTensor> execute_reshards(Rank& rank, std::span<const ReshardPlan* const> plans,
                                          std::span<const DenseTensor> shards, CommCause cause, bool later = false);

/// Shows a change of layout outside of calls of ops to the observer of the rank, if it has one. `more_bytes`: what is sent besides the plan.
void observe_move(const Rank& rank, std::string_view op, std::string_view argument, const ReshardPlan& plan,
                  int64_t more_bytes = 0);

}  // namespace shard
