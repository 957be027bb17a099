// Convolutions, transposed convolutions and their gradients on CUDA, for which cuDNN is not there or has nothing: how each is a sum of
// products (conv_sums.cuh), and which kernel computes it.
#include <algorithm>
#include <numeric>
#include <vector>

#include "shard/kernels/cpu/conv_ops.h"
#include "shard/kernels/cuda/conv_cudnn.h"
#include "shard/kernels/cuda/conv_sums.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"

namespace shard::cuda {
namespace {

using cpu::Convolution;
using cpu::ConvPass;
using meta::Window;

/// Sums without their classes, which are those of all `classes`; a kernel has some of them.
struct Sums {
  ConvSum<int64_t> sum{};
  std::vector<ConvClass<int64_t>> classes;
  bool writes_all = true;  // the result has no elements beside those of the classes
};

/// Distances in a tensor of images: between channels, images, and the places of each space dim.
struct ImageSteps {
  int64_t channel, image, place[3];

  ImageSteps(const Convolution& conv, int64_t channels, int64_t Window::*size) {
    const auto& [depth, height, width] = conv.windows;
    const int64_t places = depth.*size * height.*size * width.*size;
    const bool last = conv.image.channels_last;
    channel = last ? 1 : places;
    image = channels * places;
    place[2] = last ? channels : 1;
    place[1] = place[2] * width.*size;
    place[0] = place[1] * height.*size;
  }
};

/// The sizes of a filter, and the distances in it.
Digits<int64_t> filter_sizes(const Convolution& conv, int64_t channels) {
  return {channels, {conv.windows[0].size, conv.windows[1].size, conv.windows[2].size}};
}
Digits<int64_t> filter_steps(const Convolution& conv, int64_t channel) {
  return {channel, {conv.windows[1].size * conv.windows[2].size, conv.windows[2].size, 1}};
}
Digits<int64_t> image_steps(const ImageSteps& steps, int64_t scale = 1) {
  return {steps.image, {scale * steps.place[0], scale * steps.place[1], scale * steps.place[2]}};
}
Digits<int64_t> image_sizes(const Convolution& conv) {
  return {conv.batch, {conv.windows[0].out, conv.windows[1].out, conv.windows[2].out}};
}

/// Sums in which windows read the input: the result, or the gradient of the filter, whose columns and depth are exchanged.
Sums sums_over_input(const Convolution& conv, bool of_filter) {
  const ImageSteps in(conv, conv.in, &Window::in), out(conv, conv.out, &Window::out);
  const int64_t in_group = conv.in / conv.groups, out_group = conv.out / conv.groups, taps = conv.kernel_places();
  const bool last = conv.image.channels_last;
  Sums sums;
  ConvSum<int64_t>& sum = sums.sum;
  ConvClass<int64_t> all{image_sizes(conv), filter_sizes(conv, in_group), {}, 0, 0};
  sum.groups = conv.groups;
  sum.rows = out_group;
  sum.group_image = in_group * in.channel;
  sum.row_to = out.channel;
  sum.row_a = in_group * taps;
  sum.column_image = in.image;
  sum.depth_image = in.channel;
  sum.column_to = image_steps(out);
  sum.depth_a = filter_steps(conv, taps);
  for (size_t i = 0; i < 3; ++i) {
    const Window& window = conv.windows[i];
    sum.size[i] = window.in;
    sum.place_step[i] = in.place[i];
    sum.column_at[i] = window.stride;
    sum.depth_at[i] = window.dilation;
    all.first_at[i] = -window.before;
  }
  if (of_filter) {
    std::swap(sum.row_to, sum.row_a);
    std::swap(sum.column_image, sum.depth_image);
    std::swap(sum.column_to, sum.depth_a);
    std::swap(sum.column_at, sum.depth_at);
    std::swap(all.columns, all.depth);
  }
  sum.group_a = out_group * sum.row_a;
  sum.group_to = out_group * sum.row_to;
  sum.columns_outer_first = of_filter && last;
  sum.depth_outer_first = !of_filter && last;
  sum.a_along_depth = !of_filter || !last;
  sum.image_along_depth = of_filter != last;
  sum.rows_first = last;
  sums.classes = {all};
  return sums;
}

/// The elements of one dim of the input whose places have the same remainder by the stride, and the taps that read them.
struct Remainder {
  int64_t first, count, first_tap, taps, first_at;
};
/// Those that any tap reads. Tap k reads element i for output (i + before - k * dilation) / stride, where that is a whole number:
/// of the taps of one remainder, each `period`-th.
std::vector<Remainder> remainders_of(const Window& window, int64_t period) {
  std::vector<Remainder> remainders;
  for (int64_t tap = 0; tap < std::min(period, window.size); ++tap) {
    const int64_t at = tap * window.dilation - window.before;
    const int64_t first = (at % window.stride + window.stride) % window.stride;
    if (first >= window.in) continue;
    remainders.push_back({first, (window.in - first + window.stride - 1) / window.stride, tap,
                          (window.size - tap + period - 1) / period, (first - at) / window.stride});
  }
  return remainders;
}

/// Sums in which elements of the input read the outputs: the gradient of the input.
Sums sums_over_output(const Convolution& conv) {
  const ImageSteps in(conv, conv.in, &Window::in), out(conv, conv.out, &Window::out);
  const int64_t in_group = conv.in / conv.groups, out_group = conv.out / conv.groups, taps = conv.kernel_places();
  const bool last = conv.image.channels_last;
  Sums sums;
  ConvSum<int64_t>& sum = sums.sum;
  sum.groups = conv.groups;
  sum.rows = in_group;
  sum.group_a = out_group * in_group * taps;
  sum.group_image = out_group * out.channel;
  sum.group_to = in_group * in.channel;
  sum.row_a = taps;
  sum.row_to = in.channel;
  sum.column_image = out.image;
  sum.depth_image = out.channel;
  sum.column_to = image_steps(in);
  sum.depth_a = filter_steps(conv, in_group * taps);
  sum.columns_outer_first = false;
  sum.depth_outer_first = sum.image_along_depth = sum.rows_first = last;
  sum.a_along_depth = !last && taps > 1;
  const Digits<int64_t> filter = sum.depth_a, places = sum.column_to;
  std::vector<Remainder> remainders[3];
  for (size_t i = 0; i < 3; ++i) {
    const Window& window = conv.windows[i];
    const int64_t period = window.stride / std::gcd(window.stride, window.dilation);
    remainders[i] = remainders_of(window, period);
    int64_t written = 0;
    for (const Remainder& one : remainders[i]) written += one.count;
    sums.writes_all = sums.writes_all && written == window.in;
    sum.size[i] = window.out;
    sum.place_step[i] = out.place[i];
    sum.column_at[i] = 1;
    sum.column_to.at[i] = window.stride * places.at[i];
    sum.depth_at[i] = -(period * window.dilation / window.stride);
    sum.depth_a.at[i] = period * filter.at[i];
  }
  for (const Remainder& d : remainders[0]) {
    for (const Remainder& h : remainders[1]) {
      for (const Remainder& w : remainders[2]) {
        sums.classes.push_back({{conv.batch, {d.count, h.count, w.count}},
                                {out_group, {d.taps, h.taps, w.taps}},
                                {d.first_at, h.first_at, w.first_at},
                                filter.dot({0, {d.first_tap, h.first_tap, w.first_tap}}),
                                places.dot({0, {d.first, h.first, w.first}})});
      }
    }
  }
  return sums;
}

template <class N>
Digits<N> narrowed(const Digits<int64_t>& from) {
  return {static_cast<N>(from.outer),
          {static_cast<N>(from.at[0]), static_cast<N>(from.at[1]), static_cast<N>(from.at[2])}};
}

/// The sums of `count` classes from `first` on.
template <class N>
ConvSum<N> some_of(const Sums& sums, size_t first, size_t count, int64_t chunk, int64_t elements) {
  const ConvSum<int64_t>& from = sums.sum;
  const auto number = [](int64_t value) { return static_cast<N>(value); };
  ConvSum<N> to{};
  to.groups = number(from.groups);
  to.rows = number(from.rows);
  to.group_a = number(from.group_a);
  to.group_image = number(from.group_image);
  to.group_to = number(from.group_to);
  to.row_a = number(from.row_a);
  to.row_to = number(from.row_to);
  to.column_image = number(from.column_image);
  to.depth_image = number(from.depth_image);
  for (int i = 0; i < 3; ++i) {
    to.size[i] = number(from.size[i]);
    to.place_step[i] = number(from.place_step[i]);
    to.column_at[i] = number(from.column_at[i]);
    to.depth_at[i] = number(from.depth_at[i]);
  }
  to.column_to = narrowed<N>(from.column_to);
  to.depth_a = narrowed<N>(from.depth_a);
  to.columns_outer_first = from.columns_outer_first;
  to.depth_outer_first = from.depth_outer_first;
  to.a_along_depth = from.a_along_depth;
  to.image_along_depth = from.image_along_depth;
  to.rows_first = from.rows_first;
  for (size_t i = 0; i < count; ++i) {
    const ConvClass<int64_t>& one = sums.classes[first + i];
    to.of[i] = {narrowed<N>(one.columns),
                narrowed<N>(one.depth),
                {number(one.first_at[0]), number(one.first_at[1]), number(one.first_at[2])},
                number(one.first_a),
                number(one.first_to)};
  }
  to.chunk = number(chunk);
  to.elements = elements;
  return to;
}

/// Whether all numbers that kernels compute fit in 31 bits.
bool are_small(const Convolution& conv) {
  constexpr int64_t kMost = int64_t{1} << 29;
  bool small = conv.batch * conv.in * conv.in_places() < kMost && conv.batch * conv.out * conv.out_places() < kMost &&
               conv.filter_numel() < kMost;
  int64_t places = 1;  // the positions that windows reach may be beside the image
  for (const Window& window : conv.windows) {
    const int64_t reach = window.in + window.out * window.stride + window.reach() + std::abs(window.before);
    small = small && reach < kMost;
    places *= small ? reach : 0;
    small = small && places < kMost;
  }
  return small && places * std::max(conv.in, conv.out) < kMost;
}

using SmallTile = ConvTile<64, 64, 16>;
using LargeTile = ConvTile<128, 128, 8>;

int64_t ceil_of(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

/// The chunks of a sum over a long depth that has too few blocks to fill the device; their length is a multiple of `unit`.
struct Chunks {
  int64_t count, length;
};
Chunks chunks_of(int64_t depth, int64_t blocks, int64_t unit) {
  const int64_t wanted = std::min<int64_t>(int64_t{multiprocessors()} * 2 / blocks, 256);
  const int64_t count = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(depth / (8 * unit), 1));
  const int64_t length = ceil_of(ceil_of(depth, count), unit) * unit;
  return {ceil_of(depth, length), length};
}

/// One pass: `to` from the other two, a and image.
template <class T, class N>
class Pass {
  using C = math_t<T>;

 public:
  Pass(const OpContext& ctx, const Sums& sums, T* to, int64_t elements, const T* a, const T* image)
      : ctx_(ctx), sums_(sums), to_(to), elements_(elements), a_(a), image_(image) {
    for (const ConvClass<int64_t>& one : sums.classes) {
      columns_ = std::max(columns_, one.columns.product());
      depth_ = std::max(depth_, one.depth.product());
    }
  }

  void run(bool of_filter) const {
    if (!sums_.writes_all) zero();
    if (of_filter && small_matrix()) return by_depth();
    if (sums_.sum.rows <= 8 && !of_filter) return by_element();
    if constexpr (std::is_same_v<N, int>) {
      const int64_t large = tiles<LargeTile>();
      if (sums_.sum.rows > 64 && columns_ > 64 && large >= multiprocessors()) return by_tiles<LargeTile>();
    }
    by_tiles<SmallTile>();
  }

 private:
  static constexpr int kThreads = 256;

  void zero() const {
    check(cudaMemsetAsync(to_, 0, static_cast<size_t>(elements_) * sizeof(T), stream()), "cudaMemsetAsync");
  }

  /// Whether tiles would be almost empty.
  bool small_matrix() const {
    const int64_t rows = sums_.sum.rows, used = rows * columns_;
    return 8 * used <= ceil_of(rows, 64) * 64 * ceil_of(columns_, 64) * 64;
  }

  template <class Tile>
  int64_t tiles() const {
    return ceil_of(sums_.sum.rows, Tile::kRows) * ceil_of(columns_, Tile::kColumns) * sums_.sum.groups;
  }

  /// Calls body(sums of some classes, their number).
  template <class Body>
  void each_part(int64_t chunk, const Body& body) const {
    constexpr size_t kMost = ConvSum<N>::kClasses;
    for (size_t first = 0; first < sums_.classes.size(); first += kMost) {
      const size_t count = std::min(kMost, sums_.classes.size() - first);
      body(some_of<N>(sums_, first, count, chunk, elements_), static_cast<unsigned>(count));
    }
  }

  void by_element() const {
    const int64_t threads = columns_ * sums_.sum.rows * sums_.sum.groups;
    each_part(depth_, [&](const ConvSum<N>& sum, unsigned classes) {
      launch(ctx_, conv_element_kernel<T, N>, dim3(grid_for(threads, kThreads), classes), kThreads, to_, a_, image_,
             sum);
    });
  }

  /// Computes chunks by body(where to), or writes the result.
  template <class Body>
  void in_chunks(const Chunks& chunks, const Body& body) const {
    if (chunks.count == 1) return body(to_);
    const Scratch scratch(static_cast<size_t>(chunks.count * elements_) * sizeof(C));
    C* const parts = static_cast<C*>(scratch.data());
    body(parts);
    launch(ctx_, add_chunks_kernel<T>, grid_for(elements_, kThreads), kThreads, to_, parts, elements_,
           static_cast<int>(chunks.count));
  }

  void by_depth() const {
    const bool items = sums_.sum.rows_first;
    const int64_t blocks = ceil_of(columns_ * sums_.sum.rows * sums_.sum.groups, items ? kWarp : 1);
    const Chunks chunks = chunks_of(depth_, blocks, kThreads);
    in_chunks(chunks, [&]<class Out>(Out* to) {
      const ConvSum<N> sum = some_of<N>(sums_, 0, 1, chunks.length, elements_);
      const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(chunks.count));
      launch(ctx_, items ? conv_depth_kernel<kWarp, T, Out, N> : conv_depth_kernel<1, T, Out, N>, grid, kThreads, to,
             a_, image_, sum);
    });
  }

  template <class Tile>
  void by_tiles() const {
    const int64_t blocks = tiles<Tile>();
    const bool divides = sums_.classes.size() == 1 && sums_.writes_all;
    const Chunks chunks =
        divides ? chunks_of(depth_, blocks, Tile::kDepth) : Chunks{1, ceil_of(depth_, Tile::kDepth) * Tile::kDepth};
    in_chunks(chunks, [&]<class Out>(Out* to) {
      each_part(chunks.length, [&](const ConvSum<N>& sum, unsigned classes) {
        const dim3 grid(static_cast<unsigned>(blocks), classes, static_cast<unsigned>(chunks.count));
        launch(ctx_, conv_tile_kernel<Tile, T, Out, N>, grid, Tile::kThreads, to, a_, image_, sum);
      });
    });
  }

  const OpContext& ctx_;
  const Sums& sums_;
  T* to_;
  int64_t elements_;
  const T *a_, *image_;
  int64_t columns_ = 1, depth_ = 1;
};

/// What ConvOps needs of a backend.
template <class E>
struct ConvWork {
  using T = device_t<E>;

  static void convolve(const OpContext& ctx, ConvPass pass, const Convolution& conv, const DenseTensor& input,
                       const DenseTensor& filter, const DenseTensor& output) {
    if (input.numel() != 0 && filter.numel() != 0 && output.numel() != 0) {
      const DeviceScope scope(output.device().index);
      if (convolve_by_cudnn(ctx, pass, conv, input, filter, output)) return;
    }
    switch (pass) {
      case ConvPass::output: return run(ctx, conv, pass, output, filter, input);
      case ConvPass::input: return run(ctx, conv, pass, input, filter, output);
      case ConvPass::filter: return run(ctx, conv, pass, filter, output, input);
    }
  }

  static void write_images(const OpContext& ctx, const cpu::Reading& reading, const Fetched& outputs,
                           const DenseTensor& filter, int groups, const Dims& begin, DenseTensor& images) {
    const meta::Windows windows = reading.part({begin, images.dims()}, cpu::box_of(outputs));
    convolve(ctx, ConvPass::input, cpu::convolution(images, filter, groups, reading.image, windows), images, filter,
             outputs.tensor);
  }

 private:
  static void run(const OpContext& ctx, const Convolution& conv, ConvPass pass, const DenseTensor& to,
                  const DenseTensor& a, const DenseTensor& image) {
    if (to.numel() == 0) return;
    const DeviceScope scope(to.device().index);
    if (a.numel() == 0 || image.numel() == 0) return fill_zeros(to);
    const bool of_filter = pass == ConvPass::filter;
    const Sums sums = pass == ConvPass::input ? sums_over_output(conv) : sums_over_input(conv, of_filter);
    if (are_small(conv)) run_as<int>(ctx, sums, to, a, image, of_filter);
    else run_as<int64_t>(ctx, sums, to, a, image, of_filter);
  }

  template <class N>
  static void run_as(const OpContext& ctx, const Sums& sums, const DenseTensor& to, const DenseTensor& a,
                     const DenseTensor& image, bool of_filter) {
    Pass<T, N>(ctx, sums, elements<T>(to), to.numel(), elements<const T>(a), elements<const T>(image)).run(of_filter);
  }
};

}  // namespace

void register_conv(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { cpu::ConvOps<ConvWork<T>>::register_for(backend, dtype_of<T>); });
}

}  // namespace shard::cuda
