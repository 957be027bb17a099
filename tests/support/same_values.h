// Compares tensors of any dtype by value; NaN equals NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "shard/shard.h"

namespace shard::test {

inline bool same_values(const Tensor& a, const Tensor& b) {
  const DType dtype = DType::float64;
  if (!(a.meta() == b.meta())) return false;
  const std::vector<double> x = cast(a, dtype).to_vector<double>(), y = cast(b, dtype).to_vector<double>();
  return std::equal(x.begin(), x.end(), y.begin(),
                    [](double l, double r) { return l == r || (std::isnan(l) && std::isnan(r)); });
}

}  // namespace shard::test
