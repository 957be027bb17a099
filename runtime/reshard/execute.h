// Executes plans of layout changes on this rank's pieces, and the public functions that change layouts.
#pragma once

#include "comm/communicator.h"
#include "dist/dist_tensor.h"
#include "reshard/plan.h"

namespace shard {

/// This rank's piece after the plan; a new buffer whenever the plan has a step. On a rank outside the mesh the result is
/// absent. Collective over the mesh where the plan communicates.
DenseTensor execute_reshard(Rank& rank, const ReshardPlan& plan, const DenseTensor& piece, CommCause cause);

/// The plan for moving `tensor` to `spec`, as text. No communication.
std::string explain_reshard(const Tensor& tensor, const DistSpec* spec);

/// The same value in another layout of the same mesh; a new buffer, or the same tensor where the layout is already that.
/// Collective over the mesh.
Tensor reshard(const Tensor& tensor, const DistSpec* spec);

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
