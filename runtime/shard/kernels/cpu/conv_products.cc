// Convolutions as products of matrices: the elements that the windows of an image read become the columns of a matrix.
#include <algorithm>
#include <vector>

#include "shard/kernels/cpu/conv.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {
namespace {

using meta::Window;

/// The outputs of `window` whose element `tap` is inside of the image: those from begin to before end.
struct Span {
  int64_t begin, end;
};
Span inside(const Window& window, int64_t tap) {
  const int64_t offset = tap * window.dilation - window.before;  // of output 0
  const int64_t begin = offset >= 0 ? 0 : (-offset + window.stride - 1) / window.stride;
  const int64_t end = offset >= window.in ? 0 : (window.in - 1 - offset) / window.stride + 1;
  return {std::min(begin, window.out), std::clamp<int64_t>(end, std::min(begin, window.out), window.out)};
}

/// One image: of channel c the element at a place is at c * channel_step + place * place_step.
struct ImageSteps {
  int64_t channel, place;
};

/// Convolves one dtype. C is the dtype of sums.
template <class T>
class ByProducts {
  using C = Compute<T>;

 public:
  ByProducts(const Convolution& conv, const ConvTensors& tensors)
      : conv_(conv), input_(static_cast<T*>(tensors.input)), filter_(static_cast<T*>(tensors.filter)),
        output_(static_cast<T*>(tensors.output)), in_group_(conv.in / conv.groups), out_group_(conv.out / conv.groups),
        rows_(in_group_ * conv.kernel_places()), places_(conv.out_places()) {}

  void output() {
    std::vector<T> columns(size(rows_ * places_)), result(size(out_group_ * places_));
    each_group([&](int64_t n, int64_t g) {
      read_windows(input_of(n, g), columns);
      multiply({out_group_, places_, rows_, false, false}, {dtype_of<T>, filter_of(g), columns.data()},
               {dtype_of<T>, result.data()});
      const ImageSteps steps = steps_of(conv_.out, places_);
      T* const to = output_of(n, g);
      parallel_for(out_group_, places_, [&](int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
          for (int64_t i = 0; i < places_; ++i) to[c * steps.channel + i * steps.place] = result[size(c * places_ + i)];
        }
      });
    });
  }

  void input() {
    std::vector<C> columns(size(rows_ * places_));
    each_group([&](int64_t n, int64_t g) {
      const std::vector<T> grad = gathered_output(n, g);
      multiply({rows_, places_, out_group_, true, false}, {dtype_of<T>, filter_of(g), grad.data()},
               {dtype_of<C>, columns.data()});
      add_windows(columns, input_of(n, g));
    });
  }

  void filter() {
    const int64_t count = out_group_ * rows_;
    std::vector<T> columns(size(rows_ * places_));
    std::vector<C> product(size(count)), sums(size(count * conv_.groups));
    each_group([&](int64_t n, int64_t g) {
      read_windows(input_of(n, g), columns);
      const std::vector<T> grad = gathered_output(n, g);
      multiply({out_group_, rows_, places_, false, true}, {dtype_of<T>, grad.data(), columns.data()},
               {dtype_of<C>, product.data()});
      C* const sum = sums.data() + g * count;
      for (int64_t i = 0; i < count; ++i) sum[i] += product[size(i)];
    });
    for (size_t i = 0; i < sums.size(); ++i) filter_[i] = T(sums[i]);
  }

 private:
  static size_t size(int64_t count) { return static_cast<size_t>(count); }

  template <class Body>
  void each_group(const Body& body) {
    for (int64_t n = 0; n < conv_.batch; ++n) {
      for (int64_t g = 0; g < conv_.groups; ++g) body(n, g);
    }
  }

  ImageSteps steps_of(int64_t channels, int64_t places) const {
    return conv_.image.channels_last ? ImageSteps{1, channels} : ImageSteps{places, 1};
  }
  T* input_of(int64_t n, int64_t g) const {
    return input_ + n * conv_.in * conv_.in_places() + g * in_group_ * steps_of(conv_.in, conv_.in_places()).channel;
  }
  T* output_of(int64_t n, int64_t g) const {
    return output_ + n * conv_.out * places_ + g * out_group_ * steps_of(conv_.out, places_).channel;
  }
  const T* filter_of(int64_t g) const { return filter_ + g * out_group_ * rows_; }

  /// The output of one group as [channels, places].
  std::vector<T> gathered_output(int64_t n, int64_t g) const {
    std::vector<T> result(size(out_group_ * places_));
    const ImageSteps steps = steps_of(conv_.out, places_);
    const T* const from = output_of(n, g);
    for (int64_t c = 0; c < out_group_; ++c) {
      for (int64_t i = 0; i < places_; ++i) result[size(c * places_ + i)] = from[c * steps.channel + i * steps.place];
    }
    return result;
  }

  /// Calls body(row, first place, outputs of the row, offset of the first element in the image, its step) for each row
  /// of outputs that element `tap` of the kernel, counted row by row, finds inside of the image.
  template <class Body>
  void each_row(int64_t tap, const Body& body) const {
    const auto& [depth, height, width] = conv_.windows;
    const int64_t kd = tap / (height.size * width.size), kh = tap / width.size % height.size, kw = tap % width.size;
    const Span d = inside(depth, kd), h = inside(height, kh), w = inside(width, kw);
    for (int64_t od = d.begin; od < d.end; ++od) {
      for (int64_t oh = h.begin; oh < h.end; ++oh) {
        const int64_t id = od * depth.stride - depth.before + kd * depth.dilation,
                      ih = oh * height.stride - height.before + kh * height.dilation,
                      iw = w.begin * width.stride - width.before + kw * width.dilation;
        if (w.begin < w.end)
          body((od * height.out + oh) * width.out + w.begin, w.end - w.begin, (id * height.in + ih) * width.in + iw,
               width.stride);
      }
    }
  }

  /// columns [channels * taps, places]: what each tap of each window reads, 0 outside of the image.
  void read_windows(const T* image, std::vector<T>& columns) const {
    const int64_t taps = conv_.kernel_places();
    const ImageSteps steps = steps_of(conv_.in, conv_.in_places());
    parallel_for(rows_, places_, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        T* const to = columns.data() + r * places_;
        const T* const from = image + r / taps * steps.channel;
        std::fill(to, to + places_, T{});
        each_row(r % taps, [&](int64_t place, int64_t count, int64_t offset, int64_t step) {
          for (int64_t i = 0; i < count; ++i) to[place + i] = from[(offset + i * step) * steps.place];
        });
      }
    });
  }

  /// The transpose of read_windows: each element of the image is the sum of what was read from it.
  void add_windows(const std::vector<C>& columns, T* image) const {
    const int64_t taps = conv_.kernel_places(), count = conv_.in_places();
    const ImageSteps steps = steps_of(conv_.in, count);
    parallel_for(in_group_, taps * places_ + count, [&](int64_t first, int64_t last) {
      std::vector<C> sums(size(count));
      for (int64_t c = first; c < last; ++c) {
        std::fill(sums.begin(), sums.end(), C(0));
        for (int64_t tap = 0; tap < taps; ++tap) {
          const C* const from = columns.data() + (c * taps + tap) * places_;
          each_row(tap, [&](int64_t place, int64_t row, int64_t offset, int64_t step) {
            for (int64_t i = 0; i < row; ++i) sums[size(offset + i * step)] += from[place + i];
          });
        }
        for (int64_t i = 0; i < count; ++i) image[c * steps.channel + i * steps.place] = T(sums[size(i)]);
      }
    });
  }

  const Convolution& conv_;
  T *input_, *filter_, *output_;
  int64_t in_group_, out_group_;
  int64_t rows_;    // elements that a window reads
  int64_t places_;  // windows of an image
};

}  // namespace

void convolve_by_products(ConvPass pass, const Convolution& conv, const ConvTensors& tensors) {
  visit_dtype(conv.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (is_half<T> || std::is_floating_point_v<T>) {
      ByProducts<T> work(conv, tensors);
      switch (pass) {
        case ConvPass::output: return work.output();
        case ConvPass::input: return work.input();
        case ConvPass::filter: return work.filter();
      }
    }
  });
}

}  // namespace shard::cpu
