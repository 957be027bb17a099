// CPU kernels of interpolation and its gradient: weighted sums of rows, and then along each row.
#include <algorithm>
#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"
#include "shard/kernels/cpu/value.h"
#include "shard/meta/image.h"

namespace shard::cpu {
namespace {

using meta::Interpolation;
using meta::Taps;

/// Images as [outer, depth, height, width, inner]: inner elements belong together (the channels, where they are last).
struct Grid {
  Grid(const Interpolation& how, const Dims& in, const Dims& out) : taps(meta::taps_of(how, in, out)) {
    const int last = in.rank() - 1;
    outer = how.channels_last() ? in[0] : in[0] * in[1];
    inner = how.channels_last() ? in[last] : 1;
  }

  int64_t in_row() const { return taps[2].in * inner; }
  int64_t out_row() const { return taps[2].out * inner; }
  int64_t in_rows() const { return taps[0].in * taps[1].in; }
  int64_t out_rows() const { return taps[0].out * taps[1].out; }

  /// Calls body(row of the input, weight) for the rows that row `o` of the output of an image reads.
  template <class Body>
  void each_row(int64_t o, const Body& body) const {
    const Taps &depth = taps[0], &height = taps[1];
    const int64_t d = o / height.out * depth.count, h = o % height.out * height.count;
    for (int i = 0; i < depth.count; ++i) {
      for (int j = 0; j < height.count; ++j) {
        const auto a = static_cast<size_t>(d + i), b = static_cast<size_t>(h + j);
        body(depth.places[a] * height.in + height.places[b], depth.weights[a] * height.weights[b]);
      }
    }
  }

  std::array<Taps, 3> taps;
  int64_t outer, inner;
};

/// The taps along a row, with weights of the type of arithmetic.
template <class C>
struct RowTaps {
  explicit RowTaps(const Taps& taps) : count(taps.count), out(taps.out), places(taps.places) {
    for (const double weight : taps.weights) weights.push_back(static_cast<C>(weight));
  }
  int count;
  int64_t out;
  const std::vector<int64_t>& places;
  std::vector<C> weights;
};

/// `out` from a row that is interpolated in the other dims already. `n` taps are known when this is compiled.
template <int n, class T, class C>
void along_row(const RowTaps<C>& taps, const C* row, int64_t inner, T* out) {
  const int64_t* place = taps.places.data();
  const C* weight = taps.weights.data();
  for (int64_t o = 0; o < taps.out; ++o, place += n, weight += n, out += inner) {
    for (int64_t c = 0; c < inner; ++c) {
      C sum = weight[0] * row[place[0] * inner + c];
      for (int k = 1; k < n; ++k) sum += weight[k] * row[place[k] * inner + c];
      out[c] = static_cast<T>(sum);
    }
  }
}

template <class T, class C>
void write_row(const RowTaps<C>& taps, const C* row, int64_t inner, T* out) {
  if (taps.count == 1) along_row<1>(taps, row, inner, out);
  else if (taps.count == 2) along_row<2>(taps, row, inner, out);
  else along_row<4>(taps, row, inner, out);
}

template <class T>
void interpolate(const OpContext&, const DenseTensor& x, const std::string& data_format,
                 const std::vector<float>& scale, const std::string& method, bool align_corners, int align_mode,
                 DenseTensor& output) {
  using C = Compute<T>;
  if (output.numel() == 0) return;
  const Grid grid({data_format, scale, method, align_corners, align_mode}, x.dims(), output.dims());
  const RowTaps<C> along(grid.taps[2]);
  const int64_t width = grid.in_row(), rows = grid.out_rows();
  parallel_for(grid.outer * rows, width * grid.taps[0].count * grid.taps[1].count + 4 * grid.out_row(),
               [&](int64_t first, int64_t last) {
                 std::vector<C> row(static_cast<size_t>(width));
                 for (int64_t r = first; r < last; ++r) {
                   const T* const image = x.data<T>() + r / rows * grid.in_rows() * width;
                   bool begun = false;
                   grid.each_row(r % rows, [&](int64_t from, double weight) {
                     const T* const line = image + from * width;
                     const C w = static_cast<C>(weight);
                     if (begun) {
                       for (int64_t i = 0; i < width; ++i) row[static_cast<size_t>(i)] += w * static_cast<C>(line[i]);
                     } else {
                       for (int64_t i = 0; i < width; ++i) row[static_cast<size_t>(i)] = w * static_cast<C>(line[i]);
                     }
                     begun = true;
                   });
                   write_row(along, row.data(), grid.inner, output.data<T>() + r * grid.out_row());
                 }
               });
}

/// One image at a time, in double: its outputs add to elements in their order.
template <class T>
void interpolate_grad(const OpContext&, const DenseTensor& output_grad, const std::string& data_format,
                      const std::vector<float>& scale, const std::string& method, bool align_corners, int align_mode,
                      DenseTensor& x_grad) {
  if (x_grad.numel() == 0) return;
  const Grid grid({data_format, scale, method, align_corners, align_mode}, x_grad.dims(), output_grad.dims());
  const Taps& along = grid.taps[2];
  const int64_t width = grid.in_row(), in = grid.in_rows() * width, inner = grid.inner;
  parallel_for(grid.outer, 4 * grid.out_rows() * (width + grid.out_row()), [&](int64_t first, int64_t last) {
    std::vector<double> sums(static_cast<size_t>(in)), row(static_cast<size_t>(width));
    for (int64_t image = first; image < last; ++image) {
      std::fill(sums.begin(), sums.end(), 0.0);
      const T* grad = output_grad.data<T>() + image * grid.out_rows() * grid.out_row();
      for (int64_t r = 0; r < grid.out_rows(); ++r) {
        std::fill(row.begin(), row.end(), 0.0);
        for (int64_t o = 0; o < along.out; ++o, grad += inner) {
          for (int k = 0; k < along.count; ++k) {
            const auto tap = static_cast<size_t>(o * along.count + k);
            double* const to = row.data() + along.places[tap] * inner;
            for (int64_t c = 0; c < inner; ++c)
              to[c] += along.weights[tap] * static_cast<double>(static_cast<Compute<T>>(grad[c]));
          }
        }
        grid.each_row(r, [&](int64_t to, double weight) {
          for (int64_t i = 0; i < width; ++i)
            sums[static_cast<size_t>(to * width + i)] += weight * row[static_cast<size_t>(i)];
        });
      }
      T* const to = x_grad.data<T>() + image * in;
      for (int64_t i = 0; i < in; ++i) to[i] = static_cast<T>(static_cast<Compute<T>>(sums[static_cast<size_t>(i)]));
    }
  });
}

}  // namespace

void register_interpolate() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("interpolate", kBackend, dtype_of<T>, &interpolate<T>);
    register_kernel("interpolate_grad", kBackend, dtype_of<T>, &interpolate_grad<T>);
  });
}

}  // namespace shard::cpu
