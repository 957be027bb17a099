// Runs calls that a composite makes of elementwise ops as one loop, which may be the epilogue of a product.
#pragma once

#include <cstdint>
#include <functional>

#include "shard/core/tensor.h"

namespace shard::call {

/// From how many elements on a loop saves more than it costs to prepare.
inline constexpr int64_t kFusedElements = 65536;

/// True if calls of this thread with these tensors may run as one loop: plain tensors on the CPU, which are neither
/// captured nor counted. Undefined ones count as such. Whether a call is recorded is up to the caller to ask.
template <class... Tensors>
bool may_fuse(const Tensors&... tensors);

/// What a loop does. Only one that waits for memory gains by being the epilogue of a product.
enum class LoopKind : uint8_t { arithmetic, functions };

/// Runs the calls that the functions make, and returns their result: `product` calls one op whose kernel takes an
/// epilogue, and may be empty; `calls` gets its result and calls only ops with `traits: [pointwise]`, whose kernels may
/// also get one of their arguments as their result (`elementwise`). The bits are those of the calls one after the
/// other. Not for calls that are recorded, because what is saved for gradients would have no bytes yet.
Tensor run_fused(const std::function<Tensor()>& product, const std::function<Tensor(const Tensor& product)>& calls,
                 LoopKind kind);

namespace detail {
bool may_fuse(const Tensor& tensor);
bool launches();
}  // namespace detail

template <class... Tensors>
bool may_fuse(const Tensors&... tensors) {
  return !detail::launches() && (detail::may_fuse(tensors) && ...);
}

}  // namespace shard::call
