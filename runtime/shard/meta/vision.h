// How grid_sample reads its attributes, for its infer_meta, its kernels and its gradient.
#pragma once

#include <string>

#include "shard/core/op_context.h"

namespace shard::meta {

enum class Padding { zeros, border, reflection };

/// The attributes of grid_sample.
struct Sampling {
  bool nearest;
  Padding padding;
  bool align_corners;
};

/// Throws invalid_argument for an unknown name.
Sampling sampling_of(const char* op, const std::string& mode, const std::string& padding_mode, bool align_corners);

}  // namespace shard::meta
