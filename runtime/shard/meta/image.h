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

/// Along one space dim: where its outputs read (kernels/formulas/interpolation.inc). Output o reads `count()` elements in a
/// row, those outside of the dim being the nearest ones in it, and further outputs never read earlier elements.
struct Sampling {
  enum class Method : uint8_t { nearest, linear, cubic };
  Method method = Method::nearest;
  int64_t in = 1, out = 1;
  double elements = 0, outputs = 1;  // so many elements are as far as so many outputs
  bool middles = false;              // places are those of the middles of elements
  bool rounds = false;               // nearest: else the element before the place is taken

  int count() const { return method == Method::nearest ? 1 : method == Method::linear ? 2 : 4; }
};
/// Of depth, height and width; those that images lack have one element and one output.
using Samplings = std::array<Sampling, 3>;
/// Those of an interpolation of images of shape `in` to `out`.
Samplings samplings_of(const Interpolation& how, const Dims& in, const Dims& out);

/// The elements from the first to the last that the outputs of a range read, and the outputs that read elements of a range.
/// Both are empty where there are none.
Range elements_read(const Sampling& sampling, Range outputs);
Range outputs_reading(const Sampling& sampling, Range elements);
/// The same for boxes: the dims of `box` that are no space dims are kept.
ShardBox box_read(const Interpolation& how, const Samplings& samplings, ShardBox box, const ShardBox& outputs);
ShardBox box_reading(const Interpolation& how, const Samplings& samplings, ShardBox box, const ShardBox& elements);

/// A range of outputs along one dim: the o-th is the sum of weights[o * count + k] times element places[o * count + k] of
/// a range of elements, which has all that they read.
struct Taps {
  int64_t in = 1, out = 1;
  int count = 1;  // for each output
  std::vector<int64_t> places = {};
  std::vector<double> weights = {};
};
Taps taps_of(const Sampling& sampling, Range elements, Range outputs);

}  // namespace shard::meta
