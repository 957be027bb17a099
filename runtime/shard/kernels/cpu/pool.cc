// CPU kernels of pooling and its gradients: maxima and means over windows of images.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/order.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/pool.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

using meta::Image;
using meta::Window;

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/window.inc"
#undef SHARD_FORMULA_INLINE

using Span = SpanOf<int64_t>;

/// The spans of a range of outputs of a dim, cut to the elements of `in` and counted from its first one.
std::vector<Span> spans_of(const Window& window, bool exclusive, Range in, Range out) {
  std::vector<Span> spans;
  for (int64_t o = out.begin; o < out.begin + out.size; ++o) {
    Span span = span_of(window, exclusive, o);
    span.begin = std::max(span.begin - in.begin, int64_t{0});
    span.end = std::min(span.end - in.begin, in.size);
    spans.push_back(span);
  }
  return spans;
}

/// Memory for a channel, which a thread keeps for the next one: fresh memory costs more than what is done in it.
struct Scratch {
  std::vector<uint64_t> keys, largest;
  std::vector<double> sums;
};

/// The windows of a box of outputs over a box of the images, for loops over one channel of one image. The places of a
/// channel are counted row by row, in the box.
class Pool {
 public:
  Pool(const Pooled& pooled, const ShardBox& in, const ShardBox& out)
      : image_(pooled.image), batch_(in.dims[0]), channels_(in.dims[pooled.image.channel()]) {
    for (int i = 3 - pooled.image.space; i < 3; ++i) {
      const auto k = static_cast<size_t>(i);
      const int dim = pooled.image.first() + i - 3 + pooled.image.space;
      in_[k] = in.dims[dim];
      begin_[k] = in.begin[dim];
      whole_[k] = pooled.windows[k].in;
      spans_[k] =
          spans_of(pooled.windows[k], pooled.exclusive, {in.begin[dim], in.dims[dim]}, {out.begin[dim], out.dims[dim]});
    }
  }

  /// The elements of a channel along space dim `i` of 3, and the spans of them that the outputs read.
  int64_t size(size_t i) const { return in_[i]; }
  const std::vector<Span>& spans(size_t i) const { return spans_[i]; }
  int64_t in() const { return in_[0] * in_[1] * in_[2]; }
  int64_t out() const { return outputs(0) * outputs(1) * outputs(2); }
  int64_t step() const { return image_.channels_last ? channels_ : 1; }  // between places of a channel
  /// The first element of channel `i`, counted over all images, in x and in out.
  int64_t first_in(int64_t i) const { return first(i, in()); }
  int64_t first_out(int64_t i) const { return first(i, out()); }
  /// A place in the whole image, and the place in the box of one of those; -1 beside the box.
  int64_t whole_place(int64_t place) const {
    if (in_ == whole_) return place;
    const std::array<int64_t, 3> at = index_of(place, in_);
    return ((at[0] + begin_[0]) * whole_[1] + at[1] + begin_[1]) * whole_[2] + at[2] + begin_[2];
  }
  int64_t place_of(int64_t whole) const {
    if (in_ == whole_) return whole;
    std::array<int64_t, 3> at = index_of(whole, whole_);
    for (size_t i = 0; i < 3; ++i) {
      at[i] -= begin_[i];
      if (at[i] < 0 || at[i] >= in_[i]) return -1;
    }
    return (at[0] * in_[1] + at[1]) * in_[2] + at[2];
  }
  /// Whether output `o` of a channel reads the place.
  bool reads(int64_t o, int64_t place) const {
    if (place < 0 || place >= in()) return false;
    const std::array<int64_t, 3> at = index_of(place, in_), output = index_of(o, {0, outputs(1), outputs(2)});
    for (size_t i = 0; i < 3; ++i) {
      const Span& span = spans_[i][static_cast<size_t>(output[i])];
      if (at[i] < span.begin || at[i] >= span.end) return false;
    }
    return true;
  }

  /// Calls body(channel, scratch) for all channels of all images, on several threads.
  template <class Body>
  void each_channel(const Body& body) const {
    parallel_for(batch_ * channels_, 2 * (in() + out()), [&](int64_t first, int64_t last) {
      Scratch scratch;
      for (int64_t i = first; i < last; ++i) body(i, scratch);
    });
  }

  /// Calls body(place of the output, depth, height, width) for all outputs of a channel.
  template <class Body>
  void each_output(const Body& body) const {
    int64_t place = 0;
    for (const Span& d : spans_[0]) {
      for (const Span& h : spans_[1]) {
        for (const Span& w : spans_[2]) body(place++, d, h, w);
      }
    }
  }

  /// Calls body(place) for the elements of a window.
  template <class Body>
  void each_element(const Span& d, const Span& h, const Span& w, const Body& body) const {
    for (int64_t i = d.begin; i < d.end; ++i) {
      for (int64_t j = h.begin; j < h.end; ++j) {
        for (int64_t k = w.begin; k < w.end; ++k) body((i * in_[1] + j) * in_[2] + k);
      }
    }
  }

  /// Calls body(place, element) for the elements of channel `i` of a tensor of images of shape `dims` that begins at
  /// `begin`.
  template <class Body>
  void each_place(const Dims& begin, const Dims& dims, int64_t i, const Body& body) const {
    std::array<Range, 3> part = {Range{0, 1}, Range{0, 1}, Range{0, 1}};
    for (int s = 0; s < image_.space; ++s) {
      const int dim = image_.first() + s;
      part[static_cast<size_t>(3 - image_.space + s)] = {begin[dim], dims[dim]};
    }
    int64_t element = first(i, part[0].size * part[1].size * part[2].size);
    for (int64_t d = part[0].begin; d < part[0].begin + part[0].size; ++d) {
      for (int64_t h = part[1].begin; h < part[1].begin + part[1].size; ++h) {
        const int64_t row = (d * in_[1] + h) * in_[2] + part[2].begin;
        for (int64_t w = 0; w < part[2].size; ++w, element += step()) body(row + w, element);
      }
    }
  }

 private:
  static std::array<int64_t, 3> index_of(int64_t place, const std::array<int64_t, 3>& dims) {
    return {place / (dims[1] * dims[2]), place / dims[2] % dims[1], place % dims[2]};
  }
  int64_t outputs(size_t i) const { return static_cast<int64_t>(spans_[i].size()); }
  int64_t first(int64_t i, int64_t places) const {
    return image_.channels_last ? i / channels_ * channels_ * places + i % channels_ : i * places;
  }

  Image image_;
  std::array<int64_t, 3> in_ = {1, 1, 1}, begin_ = {0, 0, 0}, whole_ = {1, 1, 1};
  std::array<std::vector<Span>, 3> spans_ = {std::vector<Span>{{0, 1, 1}}, {{0, 1, 1}}, {{0, 1, 1}}};
  int64_t batch_, channels_;
};

/// The place of the largest element of a window, the first of equal ones; NaN wins.
template <class T>
int64_t place_of_max(const Pool& pool, const T* x, const Span& d, const Span& h, const Span& w) {
  using C = Compute<T>;
  int64_t best = -1;
  C largest{};
  pool.each_element(d, h, w, [&](int64_t place) {
    const C value = static_cast<C>(x[place * pool.step()]);
    if (best >= 0 && !(value > largest) && !(std::isnan(value) && !std::isnan(largest))) return;
    best = place;
    largest = value;
  });
  return best;
}

/// Replaces `planes` planes of `rows` rows of `width` numbers by the largest of the rows of each span.
void reduce_rows(Scratch& scratch, int64_t planes, int64_t rows, int64_t width, const std::vector<Span>& spans) {
  scratch.largest.assign(static_cast<size_t>(planes * width) * spans.size(), 0);
  uint64_t* to = scratch.largest.data();
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (const Span& span : spans) {
      for (int64_t row = span.begin; row < span.end; ++row) {
        const uint64_t* const from = scratch.keys.data() + (plane * rows + row) * width;
        for (int64_t i = 0; i < width; ++i) to[i] = std::max(to[i], from[i]);
      }
      to += width;
    }
  }
  scratch.keys.swap(scratch.largest);
}

/// The same for spans of the last dim.
void reduce_columns(Scratch& scratch, int64_t rows, int64_t width, const std::vector<Span>& spans) {
  scratch.largest.resize(static_cast<size_t>(rows) * spans.size());
  uint64_t* to = scratch.largest.data();
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t* const from = scratch.keys.data() + row * width;
    for (const Span& span : spans) {
      uint64_t largest = 0;
      for (int64_t i = span.begin; i < span.end; ++i) largest = std::max(largest, from[i]);
      *to++ = largest;
    }
  }
  scratch.keys.swap(scratch.largest);
}

/// Calls body(output, place) for all outputs of a channel with the place of the largest element of their windows, as
/// place_of_max does. Elements of at most 32 bits become integers in the order of which the largest is the first of
/// equal ones, so that windows are reduced dim by dim without branches.
template <class T, class Body>
void each_max(const Pool& pool, const T* x, Scratch& scratch, const Body& body) {
  if (sizeof(T) > 4 || pool.in() > std::numeric_limits<uint32_t>::max()) {
    return pool.each_output(
        [&](int64_t o, const Span& d, const Span& h, const Span& w) { body(o, place_of_max(pool, x, d, h, w)); });
  }
  const int64_t step = pool.step(), in = pool.in(), out = pool.out();
  scratch.keys.resize(static_cast<size_t>(in));
  uint64_t* const keys = scratch.keys.data();
  for (int64_t i = 0; i < in; ++i) keys[i] = uint64_t{rank_of(x[i * step])} << 32 | ~static_cast<uint32_t>(i);
  const auto width = static_cast<int64_t>(pool.spans(2).size()), height = static_cast<int64_t>(pool.spans(1).size());
  reduce_columns(scratch, pool.size(0) * pool.size(1), pool.size(2), pool.spans(2));
  reduce_rows(scratch, pool.size(0), pool.size(1), width, pool.spans(1));
  if (pool.size(0) > 1 || pool.spans(0).size() > 1)
    reduce_rows(scratch, 1, pool.size(0), height * width, pool.spans(0));
  const uint64_t* const best = scratch.keys.data();
  for (int64_t o = 0; o < out; ++o) body(o, static_cast<int64_t>(~static_cast<uint32_t>(best[o])));
}

/// Of each window of `values` the mean, or the element where that of x is the largest.
template <class T>
void pool_forward(const Pool& pool, bool max, const DenseTensor& x, const DenseTensor& values, DenseTensor& out) {
  const int64_t step = pool.step();
  pool.each_channel([&](int64_t channel, Scratch& scratch) {
    const T* const from = values.data<T>() + pool.first_in(channel);
    T* const to = out.data<T>() + pool.first_out(channel);
    if (max) {
      return each_max(pool, x.data<T>() + pool.first_in(channel), scratch,
                      [=](int64_t o, int64_t place) { to[o * step] = from[place * step]; });
    }
    pool.each_output([&](int64_t o, const Span& d, const Span& h, const Span& w) {
      double sum = 0;
      pool.each_element(
          d, h, w, [&](int64_t place) { sum += static_cast<double>(static_cast<Compute<T>>(from[place * step])); });
      const double mean = sum / static_cast<double>(d.counted * h.counted * w.counted);
      to[o * step] = T(static_cast<Compute<T>>(mean));
    });
  });
}

/// Writes for each channel the sums that `add(scratch, channel)` makes in scratch.sums, one for each place of the pool. x_grad begins at
/// `begin` in them.
template <class T, class Add>
void write_sums(const Pool& pool, const Dims& begin, DenseTensor& x_grad, const Add& add) {
  pool.each_channel([&](int64_t channel, Scratch& scratch) {
    scratch.sums.assign(static_cast<size_t>(pool.in()), 0.0);
    add(scratch, channel);
    const double* const from = scratch.sums.data();
    T* const to = x_grad.data<T>();
    pool.each_place(begin, x_grad.dims(), channel,
                    [=](int64_t place, int64_t element) { to[element] = T(static_cast<Compute<T>>(from[place])); });
  });
}

template <class T>
double number(const T& value) {
  return static_cast<double>(static_cast<Compute<T>>(value));
}

template <class T>
void pool_backward(const Pool& pool, bool max, const DenseTensor& x, const DenseTensor& out_grad, const Dims& begin,
                   DenseTensor& x_grad) {
  const int64_t step = pool.step();
  write_sums<T>(pool, begin, x_grad, [&](Scratch& scratch, int64_t channel) {
    const T* const grads = out_grad.data<T>() + pool.first_out(channel);
    double* const to = scratch.sums.data();
    if (max) {
      return each_max(pool, x.data<T>() + pool.first_in(channel), scratch,
                      [=](int64_t o, int64_t place) { to[place] += number(grads[o * step]); });
    }
    pool.each_output([&](int64_t o, const Span& d, const Span& h, const Span& w) {
      const double share = number(grads[o * step]) / static_cast<double>(d.counted * h.counted * w.counted);
      pool.each_element(d, h, w, [&](int64_t place) { to[place] += share; });
    });
  });
}

/// What PoolOps needs of a backend.
template <class T>
struct Work {
  static void forward(const OpContext&, const Pooled& pooled, bool max, const DenseTensor& compared,
                      const Fetched& values, const ShardBox& outputs, DenseTensor& out) {
    pool_forward<T>(Pool(pooled, box_of(values), outputs), max, compared, values.tensor, out);
  }

  static void backward(const OpContext&, const Pooled& pooled, bool max, const Fetched& compared, const Fetched& grads,
                       const Dims& begin, DenseTensor& x_grad) {
    pool_backward<T>(Pool(pooled, box_of(compared), box_of(grads)), max, compared.tensor, grads.tensor, begin, x_grad);
  }

  static void with_index(const OpContext&, const Pooled& pooled, const Fetched& read, const ShardBox& outputs,
                         DenseTensor& out, DenseTensor& mask) {
    const Pool pool(pooled, box_of(read), outputs);
    pool.each_channel([&](int64_t channel, Scratch& scratch) {
      const T* const from = read.tensor.data<T>() + pool.first_in(channel);
      const int64_t out_first = pool.first_out(channel);
      each_max(pool, from, scratch, [&](int64_t o, int64_t place) {
        out.data<T>()[out_first + o] = from[place];
        mask.data<int32_t>()[out_first + o] = static_cast<int32_t>(pool.whole_place(place));
      });
    });
  }

  /// Throws unless the shard of mask, input 1, has a place of its window for each output: those are what ranks fetch.
  static void check_places(const OpContext& ctx, const Pooled& pooled, const DenseTensor& mask) {
    const ShardBox shard = {ctx.input_box(1, mask).begin, mask.dims()};
    const Pool pool(pooled, whole_images(pooled, shard), shard);
    const int32_t* const places = mask.data<int32_t>();
    const int64_t wrong =
        first_where(mask.numel(), 16, [&](int64_t i) { return !pool.reads(i % pool.out(), places[i]); });
    if (wrong == mask.numel()) return;
    fail_check(ErrorCode::out_of_range, "{}",
               place_text(ctx.op, ArgumentPlace(ctx, 1, mask), wrong, places[wrong], pool.in()));
  }

  static void index_backward(const OpContext&, const Pooled& pooled, const ShardBox& x, const DenseTensor& places,
                             const Fetched& grads, DenseTensor& x_grad) {
    const Pool pool(pooled, x, box_of(grads));
    write_sums<T>(pool, Dims::filled(x_grad.dims().rank(), 0), x_grad, [&](Scratch& scratch, int64_t channel) {
      const int64_t out_first = pool.first_out(channel);
      for (int64_t o = out_first; o < out_first + pool.out(); ++o) {
        const int64_t place = pool.place_of(places.data<int32_t>()[o]);
        if (place >= 0) scratch.sums[static_cast<size_t>(place)] += number(grads.tensor.data<T>()[o]);
      }
    });
  }

  static void index_double(const OpContext&, const Pooled& pooled, const DenseTensor& mask, const Fetched& values,
                           const ShardBox& outputs, DenseTensor& grad_out_grad) {
    const Pool pool(pooled, box_of(values), outputs);
    pool.each_channel([&](int64_t channel, Scratch&) {
      const T* const from = values.tensor.data<T>() + pool.first_in(channel);
      const int64_t out_first = pool.first_out(channel);
      for (int64_t o = out_first; o < out_first + pool.out(); ++o)
        grad_out_grad.data<T>()[o] = from[pool.place_of(mask.data<int32_t>()[o])];
    });
  }
};

void pool_dry(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size, const IntArray& strides,
              const IntArray& paddings, bool ceil_mode, bool exclusive, const std::string& data_format,
              const std::string&, bool global_pooling, bool adaptive, const std::string& padding_algorithm,
              DenseTensor&) {
  const Pooled pooled =
      pooled_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
                exclusive, data_format);
  fetch_read(ctx, pooled, 0, x);
}

void pool_double_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor& grad_x_grad,
                          const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                          bool ceil_mode, bool exclusive, const std::string& data_format,
                          const std::string& pooling_type, bool global_pooling, bool adaptive,
                          const std::string& padding_algorithm, DenseTensor&) {
  const Pooled pooled =
      pooled_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
                exclusive, data_format);
  if (pooling_type == "max") fetch_read(ctx, pooled, 0, x);
  fetch_read(ctx, pooled, 1, grad_x_grad);
}

void pool_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, const IntArray& kernel_size,
                   const IntArray& strides, const IntArray& paddings, bool ceil_mode, bool exclusive,
                   const std::string& data_format, const std::string& pooling_type, bool global_pooling, bool adaptive,
                   const std::string& padding_algorithm, DenseTensor&) {
  const Pooled pooled =
      pooled_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
                exclusive, data_format);
  fetch_reading(ctx, pooled, 1, out_grad);
  if (pooling_type == "max") fetch_compared(ctx, pooled, x);
}

void max_pool_with_index_dry(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size,
                             const IntArray& strides, const IntArray& paddings, bool global_pooling, bool adaptive,
                             DenseTensor&, DenseTensor&) {
  fetch_read(ctx, index_pooled(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive), 0, x);
}

void max_pool_with_index_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mask,
                                  const DenseTensor& out_grad, const IntArray& kernel_size, const IntArray& strides,
                                  const IntArray& paddings, bool global_pooling, bool adaptive, DenseTensor&) {
  const Pooled pooled = index_pooled(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive);
  fetch_reading(ctx, pooled, 1, mask);
  fetch_reading(ctx, pooled, 2, out_grad);
}

void max_pool_with_index_double_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&,
                                         const DenseTensor& grad_x_grad, const IntArray& kernel_size,
                                         const IntArray& strides, const IntArray& paddings, bool global_pooling,
                                         bool adaptive, DenseTensor&) {
  fetch_read(ctx, index_pooled(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive), 2, grad_x_grad);
}

}  // namespace

void register_pool() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { PoolOps<Work<T>>::register_for(kBackend, dtype_of<T>); });
  for (const char* name : {"pool2d", "pool3d"}) register_dry_kernel(name, &pool_dry);
  for (const char* name : {"pool2d_grad", "pool3d_grad"}) register_dry_kernel(name, &pool_grad_dry);
  for (const char* name : {"pool2d_double_grad", "pool3d_double_grad"})
    register_dry_kernel(name, &pool_double_grad_dry);
  for (const char* name : {"max_pool2d_with_index", "max_pool3d_with_index"})
    register_dry_kernel(name, &max_pool_with_index_dry);
  for (const char* name : {"max_pool2d_with_index_grad", "max_pool3d_with_index_grad"})
    register_dry_kernel(name, &max_pool_with_index_grad_dry);
  for (const char* name : {"max_pool2d_with_index_double_grad", "max_pool3d_with_index_double_grad"})
    register_dry_kernel(name, &max_pool_with_index_double_grad_dry);
}

}  // namespace shard::cpu
