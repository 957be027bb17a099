// CPU kernels of pooling and its gradients: maxima and means over windows of images.
#include <algorithm>
#include <cmath>
#include <vector>

#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"
#include "shard/kernels/cpu/value.h"
#include "shard/meta/window.h"

namespace shard::cpu {
namespace {

using meta::Image;
using meta::Window;
using meta::Windows;

/// The elements from begin to before end of one dim that an output reads, and how many places it counts.
struct Span {
  int64_t begin, end, counted;
};

/// The spans of all outputs of a dim. Where the padding counts, at most as much counts after x as before it, as in
/// PaddlePaddle.
std::vector<Span> spans_of(const Window& window, bool exclusive) {
  std::vector<Span> spans;
  for (int64_t o = 0; o < window.out; ++o) {
    Span span{};
    if (window.size == 0) {  // adaptive
      span = {o * window.in / window.out, ((o + 1) * window.in + window.out - 1) / window.out, 0};
      span.counted = span.end - span.begin;
    } else {
      const int64_t begin = o * window.stride - window.before,
                    end = std::min(begin + window.size, window.in + window.before);
      span = {std::max<int64_t>(begin, 0), std::min(end, window.in), end - begin};
      if (exclusive) span.counted = span.end - span.begin;
    }
    spans.push_back(span);
  }
  return spans;
}

/// The windows of images, for loops over one channel of one image.
class Pool {
 public:
  Pool(const Dims& x, const Image& image, const Windows& windows, bool exclusive)
      : windows_(windows), depth_(spans_of(windows[0], exclusive)), height_(spans_of(windows[1], exclusive)),
        width_(spans_of(windows[2], exclusive)), batch_(x[0]), channels_(x[image.channel()]),
        last_(image.channels_last) {}

  int64_t in() const { return windows_[0].in * windows_[1].in * windows_[2].in; }
  int64_t out() const { return windows_[0].out * windows_[1].out * windows_[2].out; }
  int64_t step() const { return last_ ? channels_ : 1; }  // between places of a channel

  /// Calls body(first element of the channel in x, that in out) for all channels of all images, on several threads.
  template <class Body>
  void each_channel(const Body& body) const {
    parallel_for(batch_ * channels_, 2 * (in() + out()), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t n = i / channels_, c = i % channels_;
        if (last_) body(n * channels_ * in() + c, n * channels_ * out() + c);
        else body(i * in(), i * out());
      }
    });
  }

  /// Calls body(place of the output, depth, height, width) for all outputs of a channel.
  template <class Body>
  void each_output(const Body& body) const {
    int64_t place = 0;
    for (const Span& d : depth_) {
      for (const Span& h : height_) {
        for (const Span& w : width_) body(place++, d, h, w);
      }
    }
  }

  /// Calls body(place) for the elements of a window.
  template <class Body>
  void each_element(const Span& d, const Span& h, const Span& w, const Body& body) const {
    for (int64_t i = d.begin; i < d.end; ++i) {
      for (int64_t j = h.begin; j < h.end; ++j) {
        for (int64_t k = w.begin; k < w.end; ++k) body((i * windows_[1].in + j) * windows_[2].in + k);
      }
    }
  }

 private:
  Windows windows_;
  std::vector<Span> depth_, height_, width_;
  int64_t batch_, channels_;
  bool last_;
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

/// Of each window of `values` the mean, or the element where that of x is the largest.
template <class T>
void pool_forward(const Pool& pool, bool max, const DenseTensor& x, const DenseTensor& values, DenseTensor& out) {
  pool.each_channel([&](int64_t in_first, int64_t out_first) {
    const T* const from = values.data<T>() + in_first;
    T* const to = out.data<T>() + out_first;
    pool.each_output([&](int64_t o, const Span& d, const Span& h, const Span& w) {
      if (max) {
        to[o * pool.step()] = from[place_of_max(pool, x.data<T>() + in_first, d, h, w) * pool.step()];
        return;
      }
      double sum = 0;
      pool.each_element(d, h, w, [&](int64_t place) {
        sum += static_cast<double>(static_cast<Compute<T>>(from[place * pool.step()]));
      });
      const double mean = sum / static_cast<double>(d.counted * h.counted * w.counted);
      to[o * pool.step()] = T(static_cast<Compute<T>>(mean));
    });
  });
}

/// Writes for each channel the sums that `add(sums, first element in x, that in out)` makes, one for each place.
template <class T, class Add>
void write_sums(const Pool& pool, DenseTensor& x_grad, const Add& add) {
  pool.each_channel([&](int64_t in_first, int64_t out_first) {
    std::vector<double> sums(static_cast<size_t>(pool.in()));
    add(sums, in_first, out_first);
    T* const to = x_grad.data<T>() + in_first;
    for (size_t i = 0; i < sums.size(); ++i)
      to[static_cast<int64_t>(i) * pool.step()] = T(static_cast<Compute<T>>(sums[i]));
  });
}

template <class T>
double number(const T& value) {
  return static_cast<double>(static_cast<Compute<T>>(value));
}

template <class T>
void pool_backward(const Pool& pool, bool max, const DenseTensor& x, const DenseTensor& out_grad, DenseTensor& x_grad) {
  write_sums<T>(pool, x_grad, [&](std::vector<double>& sums, int64_t in_first, int64_t out_first) {
    const T *const from = x.data<T>() + in_first, *const grads = out_grad.data<T>() + out_first;
    pool.each_output([&](int64_t o, const Span& d, const Span& h, const Span& w) {
      const double grad = number(grads[o * pool.step()]);
      if (max) {
        sums[static_cast<size_t>(place_of_max(pool, from, d, h, w))] += grad;
        return;
      }
      const double share = grad / static_cast<double>(d.counted * h.counted * w.counted);
      pool.each_element(d, h, w, [&](int64_t place) { sums[static_cast<size_t>(place)] += share; });
    });
  });
}

Pool pool_of(const OpContext& ctx, const DenseTensor& x, const meta::Pooling& pooling, bool exclusive,
             const std::string& data_format) {
  const Image image = meta::image_of(ctx, data_format, x.dims().rank() - 2);
  return {x.dims(), image, meta::pool_windows(ctx, image, x.dims(), pooling), exclusive};
}

template <class T>
void pool(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size, const IntArray& strides,
          const IntArray& paddings, bool ceil_mode, bool exclusive, const std::string& data_format,
          const std::string& pooling_type, bool global_pooling, bool adaptive, const std::string& padding_algorithm,
          DenseTensor& out) {
  pool_forward<T>(
      pool_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
              exclusive, data_format),
      pooling_type == "max", x, x, out);
}

template <class T>
void pool_double_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& grad_x_grad,
                      const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings, bool ceil_mode,
                      bool exclusive, const std::string& data_format, const std::string& pooling_type,
                      bool global_pooling, bool adaptive, const std::string& padding_algorithm,
                      DenseTensor& grad_out_grad) {
  pool_forward<T>(
      pool_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
              exclusive, data_format),
      pooling_type == "max", x, grad_x_grad, grad_out_grad);
}

template <class T>
void pool_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, const IntArray& kernel_size,
               const IntArray& strides, const IntArray& paddings, bool ceil_mode, bool exclusive,
               const std::string& data_format, const std::string& pooling_type, bool global_pooling, bool adaptive,
               const std::string& padding_algorithm, DenseTensor& x_grad) {
  pool_backward<T>(
      pool_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
              exclusive, data_format),
      pooling_type == "max", x, out_grad, x_grad);
}

Pool index_pool(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size, const IntArray& strides,
                const IntArray& paddings, bool global_pooling, bool adaptive) {
  const Image image{x.dims().rank() - 2, false};
  const meta::Pooling pooling{kernel_size, strides, paddings, false, global_pooling, adaptive};
  return {x.dims(), image, meta::pool_windows(ctx, image, x.dims(), pooling), true};
}

template <class T>
void max_pool_with_index(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size,
                         const IntArray& strides, const IntArray& paddings, bool global_pooling, bool adaptive,
                         DenseTensor& out, DenseTensor& mask) {
  const Pool pool = index_pool(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive);
  pool.each_channel([&](int64_t in_first, int64_t out_first) {
    const T* const from = x.data<T>() + in_first;
    pool.each_output([&](int64_t o, const Span& d, const Span& h, const Span& w) {
      const int64_t place = place_of_max(pool, from, d, h, w);
      out.data<T>()[out_first + o] = from[place];
      mask.data<int32_t>()[out_first + o] = static_cast<int32_t>(place);
    });
  });
}

/// The places in mask, input 1 of the op.
const int32_t* checked_places(const OpContext& ctx, const Pool& pool, const DenseTensor& mask) {
  const int32_t* const places = mask.data<int32_t>();
  for (int64_t i = 0; i < mask.numel(); ++i) {
    if (places[i] >= 0 && places[i] < pool.in()) continue;
    fail_check(ErrorCode::out_of_range, "[{}] mask is {} at element {}, but must be from 0 to {} (mask is {})", ctx.op,
               places[i], index_text(ctx, 1, mask, i), pool.in() - 1, global_text(ctx, 1, mask));
  }
  return places;
}

template <class T>
void max_pool_with_index_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mask,
                              const DenseTensor& out_grad, const IntArray& kernel_size, const IntArray& strides,
                              const IntArray& paddings, bool global_pooling, bool adaptive, DenseTensor& x_grad) {
  const Pool pool = index_pool(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive);
  const int32_t* const places = checked_places(ctx, pool, mask);
  write_sums<T>(pool, x_grad, [&](std::vector<double>& sums, int64_t, int64_t out_first) {
    for (int64_t o = 0; o < pool.out(); ++o)
      sums[static_cast<size_t>(places[out_first + o])] += number(out_grad.data<T>()[out_first + o]);
  });
}

template <class T>
void max_pool_with_index_double_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mask,
                                     const DenseTensor& grad_x_grad, const IntArray& kernel_size,
                                     const IntArray& strides, const IntArray& paddings, bool global_pooling,
                                     bool adaptive, DenseTensor& grad_out_grad) {
  const Pool pool = index_pool(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive);
  const int32_t* const places = checked_places(ctx, pool, mask);
  pool.each_channel([&](int64_t in_first, int64_t out_first) {
    for (int64_t o = 0; o < pool.out(); ++o)
      grad_out_grad.data<T>()[out_first + o] = grad_x_grad.data<T>()[in_first + places[out_first + o]];
  });
}

}  // namespace

void register_pool() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    for (const char* name : {"pool2d", "pool3d"}) register_kernel(name, kBackend, dtype_of<T>, &pool<T>);
    for (const char* name : {"pool2d_grad", "pool3d_grad"}) register_kernel(name, kBackend, dtype_of<T>, &pool_grad<T>);
    for (const char* name : {"max_pool2d_with_index", "max_pool3d_with_index"})
      register_kernel(name, kBackend, dtype_of<T>, &max_pool_with_index<T>);
    for (const char* name : {"max_pool2d_with_index_grad", "max_pool3d_with_index_grad"})
      register_kernel(name, kBackend, dtype_of<T>, &max_pool_with_index_grad<T>);
    for (const char* name : {"pool2d_double_grad", "pool3d_double_grad"})
      register_kernel(name, kBackend, dtype_of<T>, &pool_double_grad<T>);
    for (const char* name : {"max_pool2d_with_index_double_grad", "max_pool3d_with_index_double_grad"})
      register_kernel(name, kBackend, dtype_of<T>, &max_pool_with_index_double_grad<T>);
  });
}

}  // namespace shard::cpu
