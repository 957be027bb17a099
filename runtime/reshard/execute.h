// Executes plans of layout changes on this rank's pieces, and the public functions that change layouts.
#pragma once

#include <span>

#include "comm/communicator.h"
#include "dist/dist_tensor.h"
#include "reshard/plan.h"

namespace shard {

/// This rank's piece after the plan; a new buffer whenever the plan has a step. On a rank outside the new mesh the result is absent.
/// Collective over the processes of both meshes where the plan communicates. With `later` the last step may be left under way: the
/// storages of the tensors that it reads and writes wait for it.
DenseTensor execute_reshard(Rank& rank, const ReshardPlan& plan, const DenseTensor& piece, CommCause cause,
                            bool later = false);

/// The same for several tensors at once: tensors of one dtype whose plans have the same steps (kinds, axes, meshes) share each
/// step's collective.
std::vector<DenseTensor> execute_reshards(Rank& rank, std::span<const ReshardPlan* const> plans,
                                          std::span<const DenseTensor> pieces, CommCause cause, bool later = false);

/// The plan for moving `tensor` to `spec`, as text: a line per step with axes, dims, bytes, predicted time and peak memory, and totals.
/// No communication.
std::string explain_reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// The same value in another layout, of the same mesh or another one; a new buffer, or the same tensor where the layout is already
/// that. `memory_cap` as for plan_reshard. Collective over the processes of both meshes.
Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// The same, but the last step's collective is only started: the result waits for it when it is first read, and `tensor` when it is
/// next written. Errors of the transport show then.
Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// As reshard, for a list of tensors and as many layouts; tensors whose plans have equal steps move in one collective per step. Such
/// steps pack the pieces, so that lists of small tensors gain and large ones do not.
std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                            int64_t memory_cap = 0);

/// The same, but last steps that are reductions, or of one tensor alone, are only started, as by reshard_async for one tensor.
std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                  int64_t memory_cap = 0);

/// Where distribute takes the value from.
struct Source {
  int rank = -1;  // world rank, or -1: every rank has the same value
};
inline constexpr Source same_on_all{};
inline Source from_rank(int rank) { return {rank}; }

/// A distributed tensor with the value of a plain one of the full shape. With from_rank(r) only rank r of the mesh needs to
/// hold the value, the others give a tensor of the same shape and dtype; collective over the mesh then.
Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source = same_on_all);

/// The whole value as a plain tensor on every rank of the mesh; undefined on ranks outside it. Collective over the mesh.
Tensor full(const Tensor& tensor);

}  // namespace shard
