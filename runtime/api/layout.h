// Distributed tensors for users: into a layout, from one to another, out of it, and local shards. Recorded for autograd.
#pragma once

#include <vector>

#include "dist/dist_tensor.h"
#include "reshard/reshard.h"

namespace shard {

/// A distributed tensor with the value of a plain one of the full shape. With from_rank(r) only rank r of the mesh needs to
/// hold the value, the others give a tensor of the same shape and dtype; collective over the mesh then.
Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source = same_on_all);

/// The whole value of a distributed tensor as a plain one on every rank of the mesh; undefined on ranks outside it. Collective over the mesh.
Tensor full_tensor(const Tensor& tensor);

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

/// A distributed tensor from this rank's piece of it. Throws shape_mismatch unless the piece has exactly the shape that
/// `spec` gives this rank of a tensor of shape `global`. On a rank outside the mesh `piece` is undefined. Takes the piece's
/// buffer without a copy; a 16-bit contribution to a pending sum is converted to float32 (shard_dtype), and may be given so.
Tensor from_local(const Tensor& piece, const DistSpec* spec, const Dims& global, DType dtype);
/// This rank's piece, as a plain tensor on the same buffer, and so of the dtype of that (shard_dtype). Throws wrong_rank on a rank outside the mesh.
Tensor local(const Tensor& tensor);

}  // namespace shard
