// Executes reshard plans on this rank's local shards, and declares the public functions that change
// layouts.
#pragma once

#include <span>

#include "comm/communicator.h"
#include "dist/dist_tensor.h"
#include "reshard/plan.h"

namespace shard {

/// This rank's local shard after the plan; a new buffer whenever the plan has a step. On a rank
/// outside the new mesh the result is absent. Collective over the processes of both meshes where
/// the plan communicates. With `later` the last step may be left in flight: the storages of the
/// tensors that it reads and writes wait for it.
DenseTensor execute_reshard(Rank& rank, const ReshardPlan& plan, const DenseTensor& piece, CommCause cause,
                            bool later = false);

/// The same for several tensors at once. Tensors of one dtype whose plans have the same steps
/// (kinds, axes, meshes) share each step's collective.
std::vector<DenseTensor> execute_reshards(Rank& rank, std::span<const ReshardPlan* const> plans,
                                          std::span<const DenseTensor> pieces, CommCause cause, bool later = false);

/// The plan of resharding `tensor` to `spec`, as text: a line per step with axes, dims, bytes,
/// predicted time and peak memory, and totals. Does not communicate.
std::string explain_reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// Reshards a tensor: the same value in another layout, of the same mesh or another one. The result
/// has a new buffer, or is the same tensor if the layout is already `spec`. `memory_cap` in bytes,
/// as for plan_reshard. Collective over the processes of both meshes.
Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// The same, but the last step's collective is only started: reads of the result wait for it, and
/// so does the next write to `tensor`. These then throw errors of the transport.
Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// As reshard, for a list of tensors and as many layouts. Tensors whose plans have equal steps
/// share one collective per step. Such steps pack the shards, which pays off for small tensors and
/// not for large ones.
std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                            int64_t memory_cap = 0);

/// The same, but last steps that are reductions, or of a single tensor, are only started, as by
/// reshard_async for one tensor.
std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                  int64_t memory_cap = 0);

/// The source of the value for distribute.
struct Source {
  int rank = -1;  // world rank, or -1: every rank has the same value
};
inline constexpr Source same_on_all{};
inline Source from_rank(int rank) { return {rank}; }

/// A distributed tensor with the value of a plain tensor of the full shape. With from_rank(r) only
/// rank r of the mesh needs to have the value, and the others pass a tensor of the same shape and
/// dtype; it is then collective over the mesh.
Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source = same_on_all);

/// The whole value as a plain tensor on every rank of the mesh; undefined on ranks outside it.
/// Collective over the mesh.
Tensor full(const Tensor& tensor);

}  // namespace shard
