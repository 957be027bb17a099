// Gradients of ops of vision.yaml for recorded calls, as other ops, which are recorded.
#include <array>
#include <vector>

#include "shard/gradients/common.h"
#include "shard/meta/vision.h"
#include "shard/ops/api.h"
#include "shard/ops/vision_ops.h"

namespace shard::external {
namespace {

using gradients::narrowed;
using gradients::widened;
using meta::GridPadding;
using meta::GridSampling;

/// Whether x is from low to high.
Tensor is_between(const Tensor& x, double low, double high) {
  const Tensor fixed = x.detach();
  return logical_and(greater_equal(fixed, full_like(fixed, low)), less_equal(fixed, full_like(fixed, high)));
}

/// Places along a dim, and how fast each moves with its coordinate.
struct Places {
  Tensor at, slope;
};

/// Turns places back at 0 and at `size` elements, counted from `from` before the first.
void reflect(Places& places, double size, double from) {
  const Tensor shifted = scale(places.at, 1, from), there = abs(shifted), fixed = there.detach();
  const Tensor back = subtract(there, scale(floor(scale(fixed, 1 / (2 * size))), 2 * size));
  const Tensor other = scale(back, -1, 2 * size), minus = scale(places.slope, -1);
  const Tensor flipped =
      not_equal(less_than(shifted.detach(), full_like(fixed, 0)), less_than(other.detach(), back.detach()));
  places.slope = where(flipped, minus, places.slope);
  places.at = scale(minimum(back, other), 1, -from);
}

Places places_of(const GridSampling& how, const Tensor& coordinates, int64_t size) {
  const double last = static_cast<double>(size - 1), span = how.align_corners ? last : static_cast<double>(size);
  const double before = how.align_corners ? 0 : 0.5;
  Places places{scale(coordinates, span / 2, span / 2 - before), full_like(coordinates.detach(), span / 2)};
  if (how.padding == GridPadding::zeros) return places;
  if (how.padding == GridPadding::reflection && span > 0) reflect(places, span, before);
  const Tensor fixed = places.at.detach(), zero = full_like(fixed, 0), outside = isnan(fixed);
  const Tensor moves = logical_and(greater_equal(fixed, zero), less_than(fixed, full_like(fixed, last)));
  places.slope = where(moves, places.slope, zero);
  places.at = where(outside, zero, places.at);  // NaN is at the first element
  places.at = clip(places.at, 0, last);
  return places;
}

/// The nearest whole numbers, of two the even one.
Tensor nearest(const Tensor& x) {
  const Tensor up = floor(scale(x, 1, 0.5)), even = scale(floor(scale(up, 0.5)), 2);
  return where(equal(subtract(up, x), full_like(x, 0.5)), even, up);
}

/// Along a dim: the elements below the places, how far the places are beyond them, and how fast they move.
struct Along {
  Tensor below, part, slope;
  int64_t size, stride;
};

/// Elements at one corner of the places, with their weights and the slopes of these. [n, 1, places], indices expanded.
struct Corner {
  Tensor index, weight;
  std::vector<Tensor> slopes;
};

Corner corner_of(const std::vector<Along>& dims, int corner, int64_t channels) {
  Tensor index, inside;
  std::vector<Tensor> factors;
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool next = ((corner >> i) & 1) != 0;
    const Along& dim = dims[i];
    const auto last = static_cast<double>(dim.size - 1);
    const Tensor element = next ? scale(dim.below, 1, 1) : dim.below, valid = is_between(element, 0, last);
    const Tensor offset = scale(cast(clip(element, 0, last), DType::int64), dim.stride);
    index = index.defined() ? add(index, offset) : offset;
    inside = inside.defined() ? logical_and(inside, valid) : valid;
    factors.push_back(next ? dim.part : scale(dim.part, -1, 1));
  }
  const auto product = [&](size_t without) {
    Tensor all;
    for (size_t i = 0; i < dims.size(); ++i) {
      const bool next = ((corner >> i) & 1) != 0;
      const Tensor factor = i != without ? factors[i] : next ? dims[i].slope : scale(dims[i].slope, -1);
      all = all.defined() ? multiply(all, factor) : factor;
    }
    return where(inside, all, full_like(all.detach(), 0));
  };
  Corner found{expand(index, {index.dims()[0], channels, index.dims()[2]}), product(dims.size()), {}};
  for (size_t i = 0; i < dims.size(); ++i) found.slopes.push_back(product(i));
  return found;
}

/// The dims from the last one, for places [n, 1, places] in each coordinate of `grid` [n, places, coordinates].
std::vector<Along> dims_of(const GridSampling& how, const Tensor& x, const Tensor& grid) {
  const int rank = x.dims().rank();
  std::vector<Along> dims;
  int64_t stride = 1;
  for (int64_t i = 0; i < rank - 2; ++i) {
    const int64_t size = x.dims()[rank - 1 - static_cast<int>(i)];
    const Tensor coordinates = transpose(slice(grid, {2}, {i}, {i + 1}), {0, 2, 1});
    const Places places = places_of(how, coordinates, size);
    const Tensor fixed = places.at.detach(), below = how.nearest ? nearest(fixed) : floor(fixed);
    const Tensor none = full_like(fixed, 0);
    dims.push_back(
        {below, how.nearest ? none : subtract(places.at, below), how.nearest ? none : places.slope, size, stride});
    stride *= size;
  }
  return dims;
}

}  // namespace

std::tuple<Tensor, Tensor> grid_sample_grad(const Tensor& x, const Tensor& grid, const Tensor& out_grad,
                                            const std::string& mode, const std::string& padding_mode,
                                            bool align_corners) {
  const Tensor no_x = full_like(x.detach(), 0), no_grid = full_like(grid.detach(), 0);
  if (out_grad.numel() == 0 || x.numel() == 0) return {no_x, no_grid};
  const GridSampling how = meta::sampling_of("grid_sample_grad", mode, padding_mode, align_corners);
  const int64_t n = x.dims()[0], channels = x.dims()[1], space = x.dims().rank() - 2,
                places = grid.numel() / (n * space);
  const Tensor values = reshape(widened(x), {n, channels, -1}),
               grad = reshape(widened(out_grad), {n, channels, places});
  const std::vector<Along> dims = dims_of(how, x, reshape(widened(grid), {n, places, space}));
  Tensor x_grad = full_like(values.detach(), 0);
  std::vector<Tensor> sums(dims.size());
  for (int k = 0; k < (how.nearest ? 1 : 1 << space); ++k) {
    const Corner corner = corner_of(dims, k, channels);
    x_grad = put_along_axis(x_grad, corner.index, multiply(grad, corner.weight), 2, "add");
    const Tensor product = sum(multiply(grad, take_along_axis(values, corner.index, 2)), {1}, /*keepdim=*/true);
    for (size_t i = 0; i < dims.size(); ++i) {
      const Tensor part = multiply(product, corner.slopes[i]);
      sums[i] = sums[i].defined() ? add(sums[i], part) : part;
    }
  }
  const Tensor grid_grad = reshape(transpose(concat(sums, 1), {0, 2, 1}), grid.dims());
  return {narrowed(reshape(x_grad, x.dims()), x.dtype()), narrowed(grid_grad, grid.dtype())};
}

Tensor unpool_grad(const Tensor& x, const Tensor& indices, const Tensor&, const Tensor& out_grad, const IntArray&,
                   const IntArray&, const IntArray&, const IntArray&, const std::string&) {
  const int64_t n = x.dims()[0], channels = x.dims()[1];
  const Tensor flat = reshape(out_grad, {n, channels, out_grad.dims().numel(2, 4)});
  return reshape(take_along_axis(flat, reshape(indices, {n, channels, x.dims().numel(2, 4)}), 2), x.dims());
}

Tensor roi_pool_grad(const Tensor& x, const Tensor& boxes, const Tensor& boxes_num, const Tensor& arg_max,
                     const Tensor& out_grad) {
  const Dims& images = x.dims();
  const int64_t count = boxes.dims()[0], channels = images[1], size = images.numel(2, 4);
  const Tensor first = widened(full_like(x.detach(), 0));
  if (out_grad.numel() == 0) return narrowed(first, x.dtype());
  // The image of a box: the number of those that end before it.
  const Tensor ones = full_like(cast(reshape(slice(boxes.detach(), {1}, {0}, {1}), {count}), DType::int64), 1);
  const Tensor ends = cumsum(cast(boxes_num, DType::int64), 0), number = scale(cumsum(ones, 0), 1, -1),
               image = cast(searchsorted(ends, number, false, /*right=*/true), DType::int64);
  const Tensor none = full_like(arg_max, 0), valid = greater_equal(arg_max, none);
  const Tensor place = add(where(valid, arg_max, none), scale(reshape(image, {count, 1, 1, 1}), size));
  const Tensor wide = widened(out_grad), grad = where(valid, wide, full_like(wide.detach(), 0));
  // Images beside each other, so that places count on from one to the next.
  const IntArray channels_first = {1, 0, 2, 3}, flat = {channels, out_grad.dims().numel() / channels};
  const Tensor sums = put_along_axis(reshape(transpose(first, channels_first), {channels, images[0] * size}),
                                     reshape(transpose(place, channels_first), flat),
                                     reshape(transpose(grad, channels_first), flat), 1, "add");
  return narrowed(transpose(reshape(sums, {channels, images[0], images[2], images[3]}), channels_first), x.dtype());
}

}  // namespace shard::external
