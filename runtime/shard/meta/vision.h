// How grid_sample and box_coder read their attributes, for infer_meta, kernels, gradients and placement rules.
#pragma once

#include <string>
#include <string_view>

#include "shard/core/op_context.h"

namespace shard::meta {

enum class GridPadding { zeros, border, reflection };

/// The attributes of grid_sample.
struct GridSampling {
  bool nearest;
  GridPadding padding;
  bool align_corners;
};

/// Throws invalid_argument for an unknown name.
GridSampling sampling_of(const char* op, const std::string& mode, const std::string& padding_mode, bool align_corners);

/// Whether box_coder encodes, and does not decode. Throws invalid_argument for an unknown name.
bool encodes(std::string_view op, const std::string& code_type);

}  // namespace shard::meta
