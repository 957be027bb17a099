// Where interpolation reads: the places and weights along each space dim. For infer_meta functions and kernels.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "shard/core/op_context.h"

namespace shard::meta {

/// The attributes of an interpolation.
struct Interpolation {
  const std::string& data_format;
  const std::vector<float>& scale;
  const std::string& method;
  bool align_corners;
  int align_mode;

  /// True for tensors [n, space.., c], else [n, c, space..].
  bool channels_last() const { return data_format.ends_with('C'); }
  /// The first space dim.
  int first() const { return channels_last() ? 1 : 2; }
};

/// Along one space dim: output o is the sum of weights[o * count + k] times element places[o * count + k].
struct Taps {
  int64_t in = 1, out = 1;
  int count = 1;  // for each output
  std::vector<int64_t> places = {};
  std::vector<double> weights = {};
};

/// The taps of depth, height and width of an interpolation of `in` to `out`; those that images lack have one output.
std::array<Taps, 3> taps_of(const Interpolation& how, const Dims& in, const Dims& out);

}  // namespace shard::meta
