// The channel dim of images, and the modes of batch_norm, for the kernels of all backends.
#pragma once

#include <string>

#include "shard/core/dense_tensor.h"

namespace shard::cpu {

/// The channel dim of x.
inline int channel_axis(const DenseTensor& x, const std::string& data_format) {
  return data_format[1] == 'C' ? 1 : x.dims().rank() - 1;
}

/// True where batch_norm normalises with the running statistics, which are then constants.
inline bool takes_given_statistics(bool is_test, bool use_global_stats, bool trainable_statistics) {
  return use_global_stats || (is_test && !trainable_statistics);
}

}  // namespace shard::cpu
