// Compares ops of images, as users call them, on a device with those of the host.
#pragma once

#include <cstring>

#include "cuda_case.h"
#include "shard/ops/api.h"

namespace shard::test {

using Tensors = std::vector<Tensor>;

/// Tensors on the host that an op makes of tensors on `device`.
template <class Op>
std::vector<DenseTensor> results_on(Device device, const std::vector<DenseTensor>& inputs, const Op& op) {
  Tensors moved;
  for (const DenseTensor& input : inputs) moved.emplace_back(copy_to(device, input));
  std::vector<DenseTensor> results;
  for (const Tensor& result : op(moved)) results.push_back(copy_to(kCpu, result.get().value));
  return results;
}

inline bool have_equal_bits(const DenseTensor& a, const DenseTensor& b) {
  return a.meta() == b.meta() && std::memcmp(a.raw(), b.raw(), a.meta().bytes()) == 0;
}

/// `op` makes tensors of tensors. Those of the device are the host's, and have the same bits each time.
template <class Op>
void compare_op(Device device, const std::vector<DenseTensor>& inputs, const Op& op) {
  const std::vector<DenseTensor> expected = results_on(kCpu, inputs, op), actual = results_on(device, inputs, op),
                                 again = results_on(device, inputs, op);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("result " << i);
    require_close(actual[i], expected[i]);
    REQUIRE(have_equal_bits(actual[i], again[i]));
  }
}

/// A tensor of the shape and dtype of what `op` makes of `inputs`.
template <class Op>
DenseTensor like_result(const std::vector<DenseTensor>& inputs, const Op& op, unsigned seed) {
  const DenseTensor result = results_on(kCpu, inputs, op)[0];
  return random_tensor(result.dims(), result.dtype(), seed);
}

/// The shape of images whose channels are the last dim, where `dims` has them before the space dims.
inline Dims channels_last(const Dims& dims) {
  Dims last = {dims[0]};
  for (int d = 2; d < dims.rank(); ++d) last.push_back(dims[d]);
  last.push_back(dims[1]);
  return last;
}

template <class... T>
Tensors all_of(const std::tuple<T...>& values) {
  return std::apply([](const auto&... tensors) { return Tensors{tensors...}; }, values);
}

}  // namespace shard::test
