// CPU kernels of grid_sample and its gradient: sums of the elements around each place.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_vision.h"
#include "shard/kernels/cpu/value.h"
#include "shard/meta/vision.h"

namespace shard::cpu {
namespace {

using meta::GridPadding;
using meta::GridSampling;

constexpr int64_t kBlock = 256;  // places whose elements are found together, for all channels

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/grid_sample.inc"
#undef SHARD_FORMULA_INLINE

/// Images and the places in them; coordinates count dims from the last one.
struct Images {
  Images(const GridSampling& how, const DenseTensor& x, const DenseTensor& grid)
      : how(how), dims{x.dims().rank() - 2, {}, {}}, space(dims.space), corners(how.nearest ? 1 : 1 << space),
        channels(x.dims()[1]) {
    for (int i = 0; i < space; ++i) {
      dims.sizes[i] = x.dims()[x.dims().rank() - 1 - i];
      dims.strides[i] = elements;
      elements *= dims.sizes[i];
    }
    places = grid.dims().numel(1, grid.dims().rank() - 1);
    blocks = (places + kBlock - 1) / kBlock;
  }

  GridSampling how;
  ImageDims dims;
  int space, corners;
  int64_t channels, elements = 1, places = 0, blocks = 0;
};

/// The elements around one place.
struct Elements {
  std::array<int64_t, 8> from;   // in the image of a channel; -1 where one is outside
  std::array<double, 8> weight;  // of each of them
};
struct Around : Elements {
  std::array<std::array<double, 3>, 8> slope{};  // of the weight in each coordinate
};

template <class T>
Around around(const Images& images, const T* coordinates) {
  Neighbours neighbours[3]{};
  for (int i = 0; i < images.space; ++i) {
    neighbours[i] =
        neighbours_of(images.how, static_cast<double>(static_cast<Compute<T>>(coordinates[i])), images.dims.sizes[i]);
  }
  Around found;
  for (int k = 0; k < images.corners; ++k) {
    const Corner corner = corner_of(images.dims, neighbours, k);
    const auto at = static_cast<size_t>(k);
    found.from[at] = corner.from;
    found.weight[at] = corner.weight;
    std::copy_n(corner.slope, 3, found.slope[at].begin());
  }
  return found;
}

/// Calls body(image, the first place, the end, the elements around each of them) for blocks of places.
template <class T, class Body>
void each_block(const Images& images, const DenseTensor& grid, const Body& body) {
  const int64_t cost = kBlock * images.corners * (8 + images.channels);
  parallel_for(grid.dims()[0] * images.blocks, cost, [&](int64_t begin, int64_t end) {
    std::vector<Around> found(static_cast<size_t>(kBlock));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t image = block / images.blocks, first = block % images.blocks * kBlock,
                    last = std::min(first + kBlock, images.places);
      const T* coordinates = grid.data<T>() + (image * images.places + first) * images.space;
      for (int64_t p = first; p < last; ++p, coordinates += images.space)
        found[static_cast<size_t>(p - first)] = around(images, coordinates);
      body(image, first, last, found);
    }
  });
}

template <class T>
void grid_sample(const OpContext& ctx, const DenseTensor& x, const DenseTensor& grid, const std::string& mode,
                 const std::string& padding_mode, bool align_corners, DenseTensor& out) {
  using C = Compute<T>;
  if (out.numel() == 0) return;
  const Images images(meta::sampling_of(ctx.op, mode, padding_mode, align_corners), x, grid);
  each_block<T>(images, grid, [&](int64_t image, int64_t first, int64_t last, const std::vector<Around>& found) {
    for (int64_t c = image * images.channels; c < (image + 1) * images.channels; ++c) {
      const T* const from = x.data<T>() + c * images.elements;
      T* const to = out.data<T>() + c * images.places;
      for (int64_t p = first; p < last; ++p) {
        const Around& one = found[static_cast<size_t>(p - first)];
        C sum = 0;
        for (size_t k = 0; k < static_cast<size_t>(images.corners); ++k) {
          if (one.from[k] >= 0) sum += static_cast<C>(one.weight[k]) * static_cast<C>(from[one.from[k]]);
        }
        to[p] = static_cast<T>(sum);
      }
    }
  });
}

/// The gradient of grid: each place adds up its channels, in their order.
template <class T>
void sample_grid_grad(const Images& images, const DenseTensor& x, const DenseTensor& grid, const DenseTensor& out_grad,
                      DenseTensor& grid_grad) {
  const auto space = static_cast<size_t>(images.space);
  each_block<T>(images, grid, [&](int64_t image, int64_t first, int64_t last, const std::vector<Around>& found) {
    std::vector<double> sums(static_cast<size_t>(last - first) * space);
    for (int64_t c = image * images.channels; c < (image + 1) * images.channels; ++c) {
      const T* const from = x.data<T>() + c * images.elements;
      const T* const grad = out_grad.data<T>() + c * images.places;
      double* sum = sums.data();
      for (int64_t p = first; p < last; ++p, sum += space) {
        const Around& one = found[static_cast<size_t>(p - first)];
        const auto g = static_cast<double>(static_cast<Compute<T>>(grad[p]));
        for (size_t k = 0; k < static_cast<size_t>(images.corners); ++k) {
          if (one.from[k] < 0) continue;
          const double value = g * static_cast<double>(static_cast<Compute<T>>(from[one.from[k]]));
          for (size_t i = 0; i < space; ++i) sum[i] += one.slope[k][i] * value;
        }
      }
    }
    T* const to = grid_grad.data<T>() + (image * images.places + first) * images.space;
    for (size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<T>(static_cast<Compute<T>>(sums[i]));
  });
}

/// The gradient of x: the places of an image add to its elements in their order, in double.
template <class T>
void sample_x_grad(const Images& images, const DenseTensor& grid, const DenseTensor& out_grad, DenseTensor& x_grad) {
  std::vector<Elements> found(static_cast<size_t>(images.places));
  for (int64_t image = 0; image < grid.dims()[0]; ++image) {
    const T* const coordinates = grid.data<T>() + image * images.places * images.space;
    parallel_for(images.places, 16 * images.corners, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        found[static_cast<size_t>(p)] = around(images, coordinates + p * images.space);
    });
    const int64_t cost = images.elements + images.places * images.corners;
    parallel_for(images.channels, cost, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(static_cast<size_t>(images.elements));
      for (int64_t c = image * images.channels + begin; c < image * images.channels + end; ++c) {
        std::fill(sums.begin(), sums.end(), 0.0);
        const T* const grad = out_grad.data<T>() + c * images.places;
        for (int64_t p = 0; p < images.places; ++p) {
          const Elements& one = found[static_cast<size_t>(p)];
          const auto g = static_cast<double>(static_cast<Compute<T>>(grad[p]));
          for (size_t k = 0; k < static_cast<size_t>(images.corners); ++k) {
            if (one.from[k] >= 0) sums[static_cast<size_t>(one.from[k])] += one.weight[k] * g;
          }
        }
        T* const to = x_grad.data<T>() + c * images.elements;
        for (size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<T>(static_cast<Compute<T>>(sums[i]));
      }
    });
  }
}

template <class T>
void grid_sample_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& grid, const DenseTensor& out_grad,
                      const std::string& mode, const std::string& padding_mode, bool align_corners, DenseTensor& x_grad,
                      DenseTensor& grid_grad) {
  const Images images(meta::sampling_of(ctx.op, mode, padding_mode, align_corners), x, grid);
  if (x_grad.numel() > 0) sample_x_grad<T>(images, grid, out_grad, x_grad);
  if (grid_grad.numel() > 0) sample_grid_grad<T>(images, x, grid, out_grad, grid_grad);
}

}  // namespace

void register_grid_sample() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("grid_sample", kBackend, dtype_of<T>, &grid_sample<T>);
    register_kernel("grid_sample_grad", kBackend, dtype_of<T>, &grid_sample_grad<T>);
  });
}

}  // namespace shard::cpu
