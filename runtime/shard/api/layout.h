// Distributed tensors for users: distribute, reshard, full_tensor and local shards. All are
// recorded for autograd.
#pragma once

#include <vector>

#include "shard/core/export.h"
#include "shard/dist/dist_tensor.h"
#include "shard/reshard/reshard.h"

namespace shard {

/// A distributed tensor with the value of a plain tensor of the full shape. With from_rank(r) only
/// rank r of the mesh needs to hold the value, and the others pass a tensor of the same shape and
/// dtype; the call is then collective over the mesh.
SHARD_API Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source = same_on_all);

/// The full value of a distributed tensor as a plain tensor, on every rank of the mesh. Undefined
/// on ranks outside it. Collective over the mesh.
SHARD_API Tensor full_tensor(const Tensor& tensor);

/// The same value in another layout, on the same mesh or another one. The result has a new buffer,
/// or is the same tensor if it already has that layout. `memory_cap` is as for plan_reshard.
/// Collective over the processes of both meshes.
SHARD_API Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// Like reshard, but the collective of the last step is only started. The result waits for it when
/// it is first read, and `tensor` when it is next written. Errors of the transport show then.
SHARD_API Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// Like reshard, for a list of tensors and as many layouts. Tensors whose plans have equal steps
/// share one collective per step. Such steps pack the boxes to send, which is faster for lists of
/// small tensors and not for large ones.
SHARD_API std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                      int64_t memory_cap = 0);

/// Like reshard for a list, but last steps that are reductions, or that are for one tensor alone,
/// are only started, as in reshard_async for one tensor.
SHARD_API std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors,
                                            const std::vector<const DistSpec*>& specs, int64_t memory_cap = 0);

/// Makes a distributed tensor from this rank's local shard. Throws shape_mismatch unless `shard`
/// has exactly the shape that `spec` assigns to this rank for a tensor of shape `global`. On a rank
/// outside the mesh `shard` is undefined. Takes the buffer of `shard` without a copy. A 16-bit
/// contribution to a pending sum is converted to float32 (shard_dtype); it may also be passed as
/// float32.
SHARD_API Tensor from_local(const Tensor& shard, const DistSpec* spec, const Dims& global, DType dtype);
/// This rank's local shard, as a plain tensor on the same buffer. So its dtype is that of the
/// buffer (shard_dtype). Throws wrong_rank on a rank outside the mesh.
SHARD_API Tensor local(const Tensor& tensor);

}  // namespace shard
