// CPU kernels of interpolation and its gradient: weighted sums of rows, and then along each row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/interpolate.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <vector>

#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/interpolate.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using meta::Interpolation;
using meta::Samplings;
using meta::Taps;

/// Boxes of images as [outer, depth, height, width, inner]: inner elements belong together (the channels, where they are
/// last).
struct Grid {
  Grid(const Interpolation& how, const Samplings& samplings, const ShardBox& in, const ShardBox& out) {
    const std::array<Range, 3> elements = space_of(how, in), outputs = space_of(how, out);
    for (size_t i = 0; i < 3; ++i) taps[i] = meta::taps_of(samplings[i], elements[i], outputs[i]);
    const int last = in.dims.rank() - 1;
    outer = how.channels_last() ? in.dims[0] : in.dims[0] * in.dims[1];
    inner = how.channels_last() ? in.dims[last] : 1;
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
  using Index = hwy::MakeSigned<C>;

  RowTaps(const Taps& taps, int64_t inner) : count(taps.count), out(taps.out), places(taps.places) {
    for (const double weight : taps.weights) weights.push_back(static_cast<C>(weight));
    const auto lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<C>()));
    for (int64_t o = 0; inner == 1 && o + lanes <= out; o += lanes) {
      for (int k = 0; k < count; ++k) {
        const auto tap = [&](int64_t lane) { return static_cast<size_t>((o + lane) * count + k); };
        int64_t low = places[tap(0)], high = low;
        for (int64_t lane = 1; lane < lanes; ++lane) {
          low = std::min(low, places[tap(lane)]);
          high = std::max(high, places[tap(lane)]);
        }
        if (high - low >= lanes) {
          windows.clear();
          return;
        }
        windows.push_back(low);
        for (int64_t lane = 0; lane < lanes; ++lane) {
          lane_places.push_back(static_cast<Index>(places[tap(lane)] - low));
          lane_weights.push_back(weights[tap(lane)]);
        }
      }
    }
  }

  int count;
  int64_t out;
  const std::vector<int64_t>& places;
  std::vector<C> weights;
  // Where as many neighbours of the output as a vector has lanes read no more neighbours of the row by a tap, as they do where
  // images grow: for each such vector of outputs and tap, the first element that they read, and for each lane the number
  // of elements from there, and the weight. Empty otherwise.
  std::vector<int64_t> windows;
  std::vector<Index> lane_places;
  std::vector<C> lane_weights;
};

/// `out` from a row that is interpolated in the other dims already, and behind which a vector can be read. `n` taps are known when
/// this is compiled.
template <int n, class T, class C>
void along_row(const RowTaps<C>& taps, const C* row, int64_t inner, T* out) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t o = 0;
  for (size_t at = 0; at < taps.windows.size(); o += lanes) {
    const auto term = [&] {
      const size_t lane = at * static_cast<size_t>(lanes);
      const auto window = hn::LoadU(d, row + taps.windows[at++]);
      const auto from = hn::TableLookupLanes(window, hn::SetTableIndices(d, taps.lane_places.data() + lane));
      return hn::Mul(hn::LoadU(d, taps.lane_weights.data() + lane), from);
    };
    auto sum = term();
    for (int k = 1; k < n; ++k) sum = hn::Add(sum, term());
    if constexpr (std::is_same_v<T, C>) {
      hn::StoreU(sum, d, out + o);
    } else {
      HWY_ALIGN C numbers[hn::MaxLanes(d)];
      hn::Store(sum, d, numbers);
      narrow(numbers, lanes, out + o);
    }
  }
  const int64_t* place = taps.places.data() + o * n;
  const C* weight = taps.weights.data() + o * n;
  for (out += o * inner; o < taps.out; ++o, place += n, weight += n, out += inner) {
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

void interpolate_dry(const OpContext& ctx, const DenseTensor& x, const std::string& data_format,
                     const std::vector<float>& scale, const std::string& method, bool align_corners, int align_mode,
                     DenseTensor& output) {
  const Interpolation how{data_format, scale, method, align_corners, align_mode};
  fetch_read(ctx, how, meta::samplings_of(how, ctx.input_box(0, x).global, ctx.output_box(0, output).global), x);
}

/// The images `x`, and all other elements that the outputs read.
ShardBox with_read(const Interpolation& how, const Samplings& samplings, ShardBox x, const ShardBox& outputs) {
  const ShardBox read = box_read(how, samplings, x, outputs);
  for (int d = 0; d < x.dims.rank(); ++d) {
    if (x.dims[d] == 0 || read.dims[d] == 0) continue;
    const int64_t begin = std::min(x.begin[d], read.begin[d]);
    x.dims[d] = std::max(x.begin[d] + x.dims[d], read.begin[d] + read.dims[d]) - begin;
    x.begin[d] = begin;
  }
  return x;
}

/// Adds to the `sums` of one image the gradients of its outputs, in their order.
template <class T>
void add_grads(const Grid& grid, const T* grad, std::vector<double>& row, std::vector<double>& sums) {
  const Taps& along = grid.taps[2];
  const int64_t width = grid.in_row(), inner = grid.inner;
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
}

/// What InterpolateOps needs of a backend.
template <class T>
struct Work {
  static void forward(const OpContext&, const Interpolation& how, const Samplings& samplings, const Fetched& read,
                      const ShardBox& outputs, DenseTensor& output) {
    using C = Compute<T>;
    const Grid grid(how, samplings, {read.begin, read.tensor.dims()}, outputs);
    const RowTaps<C> along(grid.taps[2], grid.inner);
    const int64_t width = grid.in_row(), rows = grid.out_rows();
    parallel_for(grid.outer * rows, width * grid.taps[0].count * grid.taps[1].count + 4 * grid.out_row(),
                 [&](int64_t first, int64_t last) {
                   std::vector<C> row(static_cast<size_t>(width) + hn::Lanes(hn::ScalableTag<C>()));
                   for (int64_t r = first; r < last; ++r) {
                     const T* const image = read.tensor.data<T>() + r / rows * grid.in_rows() * width;
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

  /// One image at a time, in double.
  static void backward(const OpContext&, const Interpolation& how, const Samplings& samplings, const Fetched& grads,
                       const ShardBox& x, DenseTensor& x_grad) {
    const ShardBox outputs = {grads.begin, grads.tensor.dims()}, all = with_read(how, samplings, x, outputs);
    const Grid grid(how, samplings, all, outputs);
    const std::array<Range, 3> whole = space_of(how, all), part = space_of(how, x);
    const int64_t width = grid.in_row(), count = part[2].size * grid.inner;
    parallel_for(grid.outer, 4 * grid.out_rows() * (width + grid.out_row()), [&](int64_t first, int64_t last) {
      std::vector<double> sums(static_cast<size_t>(grid.in_rows() * width)), row(static_cast<size_t>(width));
      for (int64_t image = first; image < last; ++image) {
        std::fill(sums.begin(), sums.end(), 0.0);
        add_grads(grid, grads.tensor.data<T>() + image * grid.out_rows() * grid.out_row(), row, sums);
        T* to = x_grad.data<T>() + image * part[0].size * part[1].size * count;
        for (int64_t d = part[0].begin - whole[0].begin; d < part[0].begin - whole[0].begin + part[0].size; ++d) {
          for (int64_t h = part[1].begin - whole[1].begin; h < part[1].begin - whole[1].begin + part[1].size; ++h) {
            const double* const from =
                sums.data() + (d * whole[1].size + h) * width + (part[2].begin - whole[2].begin) * grid.inner;
            for (int64_t i = 0; i < count; ++i) *to++ = static_cast<T>(static_cast<Compute<T>>(from[i]));
          }
        }
      }
    });
  }
};

void interpolate_grad_dry(const OpContext& ctx, const DenseTensor& output_grad, const std::string& data_format,
                          const std::vector<float>& scale, const std::string& method, bool align_corners,
                          int align_mode, DenseTensor& x_grad) {
  const Interpolation how{data_format, scale, method, align_corners, align_mode};
  fetch_grads(ctx, how, samplings_of_grad(ctx, how, output_grad, x_grad), output_grad);
}

void register_interpolate_for_target() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) { InterpolateOps<Work<T>>::register_for(kBackend, dtype_of<T>); });
  register_dry_kernel("interpolate", &interpolate_dry);
  register_dry_kernel("interpolate_grad", &interpolate_grad_dry);
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_interpolate_for_target);
void register_interpolate() { HWY_DYNAMIC_DISPATCH(register_interpolate_for_target)(); }
}  // namespace shard::cpu
#endif
