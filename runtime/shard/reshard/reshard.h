// Changes of layouts, each planned and then executed, without recording them for autograd: api/layout.h has the public functions.
#pragma once

#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/tensor.h"
#include "shard/dist/spec.h"

namespace shard {

/// The plan for moving `tensor` to `spec`, as text: a line per step with axes, dims, bytes, predicted time and peak memory, and totals.
/// No communication.
SHARD_API std::string explain_reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap = 0);

/// Where distribute takes the value from.
struct Source {
  int rank = -1;  // world rank, or -1: every rank has the same value
};
inline constexpr Source same_on_all{};
inline Source from_rank(int rank) { return {rank}; }

namespace dist {
SHARD_API Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap);
SHARD_API Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap);
SHARD_API std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                      int64_t memory_cap);
SHARD_API std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors,
                                            const std::vector<const DistSpec*>& specs, int64_t memory_cap);
SHARD_API Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source);
SHARD_API Tensor full_tensor(const Tensor& tensor);
}  // namespace dist

}  // namespace shard
