// Helpers of normalisations and their gradients: elements in double, scale and bias, and the modes
// of batch_norm.
#pragma once

#include <string>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {

template <class T>
double value_at(const T* x, int64_t i) {
  return static_cast<double>(static_cast<Compute<T>>(x[i]));
}

template <class T>
T from_double(double value) {
  return T(static_cast<Compute<T>>(value));
}

/// scale or bias in double, `otherwise` where it is absent.
inline std::vector<double> affine_of(const DenseTensor& affine, int64_t count, double otherwise) {
  std::vector<double> values(static_cast<size_t>(count), otherwise);
  if (!affine.defined()) return values;
  visit_dtype(affine.dtype(), [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_at(affine.data<T>(), i);
  });
  return values;
}

/// The channel dim of x.
inline int channel_axis(const DenseTensor& x, const std::string& data_format) {
  return data_format[1] == 'C' ? 1 : x.dims().rank() - 1;
}

/// True where batch_norm normalises with the running statistics, which are then constants.
inline bool takes_given_statistics(bool is_test, bool use_global_stats, bool trainable_statistics) {
  return use_global_stats || (is_test && !trainable_statistics);
}

}  // namespace shard::cpu
