// CPU kernels of roi_align and its gradient: means of samples in the parts of boxes.
#include <math.h>

#include <algorithm>
#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_vision.h"
#include "shard/kernels/cpu/roi.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// An element along a dim, and its weight in a sum.
struct Tap {
  int64_t at;
  double weight;
};
/// The elements that each part of a box samples along a dim.
using Taps = std::vector<std::vector<Tap>>;

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/roi.inc"
#undef SHARD_FORMULA_INLINE

struct Sampling {
  double scale;
  int ratio;
  bool aligned;
};

/// Samples of a box from `begin` to `end` in `parts` parts of a dim of `size` elements.
Taps taps_of(const Sampling& how, double begin, double end, int64_t parts, int64_t size) {
  Taps taps(static_cast<size_t>(parts));
  for (int64_t p = 0; p < parts; ++p) {
    std::vector<Tap>& of_part = taps[static_cast<size_t>(p)];
    const Samples samples = samples_of(begin, end, how.scale, how.ratio, how.aligned, p, parts, size);
    for (double k = samples.first; k < samples.last; ++k) {
      const Between between = elements_around(samples.place(k), size);
      if (!between.inside) continue;
      of_part.push_back({between.at, 1 / samples.count * (1 - between.part)});
      if (between.part > 0) of_part.push_back({between.at + 1, 1 / samples.count * between.part});
    }
  }
  return taps;
}

/// The samples of a box: elements are those of a row and a column, and so are their weights.
struct BoxSamples {
  Taps rows, columns;
};

template <class T>
std::vector<BoxSamples> sample_boxes(const DenseTensor& boxes, const Sampling& how, const Dims& images,
                                     const Dims& out) {
  std::vector<BoxSamples> all(static_cast<size_t>(boxes.dims()[0]));
  for (size_t r = 0; r < all.size(); ++r) {
    const T* const box = boxes.data<T>() + 4 * r;
    const auto at = [&](int i) { return static_cast<double>(static_cast<Compute<T>>(box[i])); };
    all[r] = {taps_of(how, at(1), at(3), out[2], images[2]), taps_of(how, at(0), at(2), out[3], images[3])};
  }
  return all;
}

/// Calls body(the part, the place in an image, the weight) for all samples of a box, part by part.
template <class Body>
void each_sample(const BoxSamples& box, int64_t width, const Body& body) {
  int64_t part = 0;
  for (const auto& rows : box.rows) {
    for (const auto& columns : box.columns) {
      for (const Tap& row : rows) {
        for (const Tap& column : columns) body(part, row.at * width + column.at, row.weight * column.weight);
      }
      ++part;
    }
  }
}

template <class T>
void roi_align(const OpContext& ctx, const DenseTensor& x, const DenseTensor& boxes, const DenseTensor& boxes_num, int,
               int, float spatial_scale, int sampling_ratio, bool aligned, DenseTensor& out) {
  const std::vector<int64_t> image = images_of_boxes<T>(ctx, boxes, boxes_num, spatial_scale);
  const std::vector<BoxSamples> samples =
      sample_boxes<T>(boxes, {static_cast<double>(spatial_scale), sampling_ratio, aligned}, x.dims(), out.dims());
  const int64_t channels = x.dims()[1], size = x.dims().numel(2, 4), parts = out.dims().numel(2, 4);
  parallel_for(boxes.dims()[0] * channels, 32 * parts, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<size_t>(parts));
    for (int64_t i = begin; i < end; ++i) {
      const auto box = static_cast<size_t>(i / channels);
      const T* const from = x.data<T>() + (image[box] * channels + i % channels) * size;
      std::fill(sums.begin(), sums.end(), 0.0);
      each_sample(samples[box], x.dims()[3], [&](int64_t part, int64_t at, double weight) {
        sums[static_cast<size_t>(part)] += weight * static_cast<double>(static_cast<Compute<T>>(from[at]));
      });
      T* const to = out.data<T>() + i * parts;
      for (size_t p = 0; p < sums.size(); ++p) to[p] = static_cast<T>(static_cast<Compute<T>>(sums[p]));
    }
  });
}

/// The boxes of an image add to its elements in their order, in double.
template <class T>
void roi_align_grad(const OpContext& ctx, const DenseTensor& boxes, const DenseTensor& boxes_num,
                    const DenseTensor& out_grad, float spatial_scale, int sampling_ratio, bool aligned,
                    DenseTensor& x_grad) {
  const std::vector<int64_t> image = images_of_boxes<T>(ctx, boxes, boxes_num, spatial_scale);
  const std::vector<BoxSamples> samples = sample_boxes<T>(
      boxes, {static_cast<double>(spatial_scale), sampling_ratio, aligned}, x_grad.dims(), out_grad.dims());
  const int64_t channels = x_grad.dims()[1], size = x_grad.dims().numel(2, 4), parts = out_grad.dims().numel(2, 4);
  const int64_t cost = size + 32 * parts * boxes.dims()[0];
  parallel_for(x_grad.dims()[0] * channels, cost, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<size_t>(size));
    for (int64_t i = begin; i < end; ++i) {
      std::fill(sums.begin(), sums.end(), 0.0);
      const auto [first, last] = std::equal_range(image.begin(), image.end(), i / channels);
      for (int64_t r = first - image.begin(); r < last - image.begin(); ++r) {
        const T* const grad = out_grad.data<T>() + (r * channels + i % channels) * parts;
        each_sample(samples[static_cast<size_t>(r)], x_grad.dims()[3], [&](int64_t part, int64_t at, double weight) {
          sums[static_cast<size_t>(at)] += weight * static_cast<double>(static_cast<Compute<T>>(grad[part]));
        });
      }
      T* const to = x_grad.data<T>() + i * size;
      for (size_t p = 0; p < sums.size(); ++p) to[p] = static_cast<T>(static_cast<Compute<T>>(sums[p]));
    }
  });
}

}  // namespace

void register_roi_align() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("roi_align", kBackend, dtype_of<T>, &roi_align<T>);
    register_kernel("roi_align_grad", kBackend, dtype_of<T>, &roi_align_grad<T>);
  });
}

}  // namespace shard::cpu
