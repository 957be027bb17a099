// The windows of window.h.
#include "shard/meta/window.h"

#include <algorithm>
#include <limits>

namespace shard::meta {
namespace {

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/window.inc"
#undef SHARD_FORMULA_INLINE

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // so that nothing below overflows

/// Throws invalid_argument unless `values` has a number from `least` to kMost for each space dim.
void check_list(const OpContext& ctx, std::string_view name, const IntArray& values, int space, int64_t least) {
  const bool fits =
      static_cast<int>(values.size()) == space &&
      std::all_of(values.begin(), values.end(), [&](int64_t value) { return value >= least && value <= kMost; });
  if (fits) return;
  fail(ErrorCode::invalid_argument, "[{}] {} is {}, but must have {} numbers from {} to {}", ctx.op, name,
       to_string(values), space, least, kMost);
}

enum class Padding { explicit_, same, valid };

Padding padding_of(const OpContext& ctx, const std::string& algorithm, const IntArray& paddings, int space) {
  if (algorithm == "SAME") return Padding::same;
  if (algorithm == "VALID") return Padding::valid;
  if (algorithm != "EXPLICIT") {
    fail(ErrorCode::invalid_argument, "[{}] padding_algorithm is {}, but must be EXPLICIT, SAME or VALID", ctx.op,
         algorithm);
  }
  const auto count = static_cast<int>(paddings.size());
  const bool fits =
      (count == space || count == 2 * space) &&
      std::all_of(paddings.begin(), paddings.end(), [](int64_t value) { return value >= 0 && value <= kMost; });
  if (!fits) {
    fail(ErrorCode::invalid_argument,
         "[{}] paddings is {}, but must have {} numbers from 0 to {}, or {}: two for each space dim", ctx.op,
         to_string(paddings), space, kMost, 2 * space);
  }
  return Padding::explicit_;
}

/// Sets the padding of space dim `i`. SAME pads for ceil(size / stride) outputs, one more after than before where
/// that is odd.
void pad(Window& window, Padding padding, const IntArray& paddings, int i, int space, int64_t size) {
  if (padding == Padding::same) {
    const int64_t outputs = (size + window.stride - 1) / window.stride;
    const int64_t sum = std::max<int64_t>((outputs - 1) * window.stride + window.size - size, 0);
    window.before = sum / 2;
    window.after = sum - window.before;
  } else if (padding == Padding::explicit_) {
    const bool two = static_cast<int>(paddings.size()) == 2 * space;
    window.before = paddings[static_cast<size_t>(two ? 2 * i : i)];
    window.after = paddings[static_cast<size_t>(two ? 2 * i + 1 : i)];
  }
}

void check_dilations(const OpContext& ctx, const IntArray& dilations, int space, Padding padding) {
  check_list(ctx, "dilations", dilations, space, 1);
  if (padding != Padding::same || std::all_of(dilations.begin(), dilations.end(), [](int64_t d) { return d == 1; }))
    return;
  fail(ErrorCode::invalid_argument,
       "[{}] dilations is {}, but padding_algorithm SAME is defined for dilations of 1 only; give the paddings", ctx.op,
       to_string(dilations));
}

[[noreturn]] void fail_small(const OpContext& ctx, int64_t size, const Window& window) {
  fail(ErrorCode::shape_mismatch,
       "[{}] a space dim of {} with paddings of {} and {} is smaller than a window of {}; make the padding larger or "
       "the window smaller",
       ctx.op, size, window.before, window.after, window.reach());
}

/// Throws unless a dim of an image or of a filter has a size that windows can have.
void check_size(const OpContext& ctx, const char* name, int64_t size) {
  if (size >= 1 && size <= kMost) return;
  fail(ErrorCode::shape_mismatch, "[{}] a space dim of {} has the size {}, but must have one from 1 to {}", ctx.op,
       name, size, kMost);
}

/// How often a window fits along its dim.
int64_t outputs_of(const Window& window) {
  const int64_t room = window.in + window.before + window.after - window.reach();
  return room < 0 ? 0 : room / window.stride + 1;
}

Window& at(Windows& windows, const Image& image, int i) { return windows[static_cast<size_t>(3 - image.space + i)]; }

}  // namespace

Image image_of(const OpContext& ctx, const std::string& data_format, int space) {
  const std::string_view first = space == 2 ? "NCHW" : "NCDHW", last = space == 2 ? "NHWC" : "NDHWC";
  if (data_format != first && data_format != last) {
    fail(ErrorCode::invalid_argument, "[{}] data_format is {}, but must be {} or {}", ctx.op, data_format, first, last);
  }
  return {space, data_format == last};
}

Image transposed_image_of(const OpContext& ctx, const std::string& data_format, int space) {
  const bool short_name = space == 3 && (data_format == "NCHW" || data_format == "NHWC");
  return short_name ? Image{space, data_format == "NHWC"} : image_of(ctx, data_format, space);
}

void check_image(const OpContext& ctx, std::string_view name, const Meta& x, const Image& image) {
  if (x.dims.rank() == image.space + 2) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have {} dims: the batch, the channels and {} of space",
       ctx.op, name, to_string(x), image.space + 2, image.space);
}

Windows conv_windows(const OpContext& ctx, const Image& image, const Dims& input, const Dims& filter,
                     const IntArray& strides, const IntArray& paddings, const std::string& algorithm,
                     const IntArray& dilations) {
  const int space = image.space;
  check_list(ctx, "strides", strides, space, 1);
  const Padding padding = padding_of(ctx, algorithm, paddings, space);
  check_dilations(ctx, dilations, space, padding);
  Windows windows;
  for (int i = 0; i < space; ++i) {
    Window& window = at(windows, image, i);
    window.in = input[image.first() + i];
    window.size = filter[2 + i];
    check_size(ctx, "the filter", window.size);
    window.stride = strides[static_cast<size_t>(i)];
    window.dilation = dilations[static_cast<size_t>(i)];
    pad(window, padding, paddings, i, space, window.in);
    window.out = outputs_of(window);
    if (window.out == 0) fail_small(ctx, window.in, window);
  }
  return windows;
}

Windows unfold_windows(int64_t height, int64_t width, const IntArray& kernel_sizes, const IntArray& strides,
                       const IntArray& paddings, const IntArray& dilations) {
  Windows windows;
  for (size_t d = 0; d < 2; ++d) {
    Window& window = windows[d + 1];
    window = {d == 0 ? height : width, kernel_sizes[d], strides[d], paddings[d], paddings[d + 2], dilations[d]};
    window.out = outputs_of(window);
  }
  return windows;
}

Windows conv_transpose_windows(const OpContext& ctx, const Image& image, const Dims& x, const Dims& filter,
                               const IntArray& strides, const IntArray& paddings, const IntArray& output_padding,
                               const IntArray& output_size, const std::string& algorithm, const IntArray& dilations) {
  const int space = image.space;
  check_list(ctx, "strides", strides, space, 1);
  const Padding padding = padding_of(ctx, algorithm, paddings, space);
  check_dilations(ctx, dilations, space, padding);
  if (!output_padding.empty()) check_list(ctx, "output_padding", output_padding, space, 0);
  if (!output_size.empty()) check_list(ctx, "output_size", output_size, space, 1);
  Windows windows;
  for (int i = 0; i < space; ++i) {
    const auto k = static_cast<size_t>(i);
    Window& window = at(windows, image, i);
    window.out = x[image.first() + i];
    window.size = filter[2 + i];
    check_size(ctx, "x", window.out);
    check_size(ctx, "the filter", window.size);
    window.stride = strides[k];
    window.dilation = dilations[k];
    pad(window, padding, paddings, i, space, window.out);
    const int64_t least = (window.out - 1) * window.stride - window.before - window.after + window.reach();
    if (least < 1) {
      fail(ErrorCode::shape_mismatch,
           "[{}] paddings of {} and {} would leave nothing of dim {} of the result; make the padding smaller", ctx.op,
           window.before, window.after, image.first() + i);
    }
    window.in = !output_size.empty() ? output_size[k] : least + (output_padding.empty() ? 0 : output_padding[k]);
    if (window.in >= least && window.in < least + window.stride) continue;
    fail(ErrorCode::invalid_argument,
         "[{}] dim {} of the result would be {}, by output_size or output_padding, but must be from {} to {}", ctx.op,
         image.first() + i, window.in, least, least + window.stride - 1);
  }
  return windows;
}

Windows pool_windows(const OpContext& ctx, const Image& image, const Dims& x, const Pooling& pooling) {
  const int space = image.space;
  if (!pooling.global_pooling) check_list(ctx, "kernel_size", pooling.kernel_size, space, 1);
  const bool fixed = !pooling.global_pooling && !pooling.adaptive;
  if (fixed) check_list(ctx, "strides", pooling.strides, space, 1);
  const Padding padding = fixed ? padding_of(ctx, pooling.algorithm, pooling.paddings, space) : Padding::valid;
  Windows windows;
  for (int i = 0; i < space; ++i) {
    const auto k = static_cast<size_t>(i);
    Window& window = at(windows, image, i);
    window.in = x[image.first() + i];
    check_size(ctx, "x", window.in);
    if (pooling.adaptive && !pooling.global_pooling) {
      window.size = 0;
      window.out = pooling.kernel_size[k];
      continue;
    }
    window.size = pooling.global_pooling ? window.in : pooling.kernel_size[k];
    window.stride = fixed ? pooling.strides[k] : 1;
    pad(window, padding, pooling.paddings, i, space, window.in);
    const int64_t room = window.in + window.before + window.after - window.size;
    if (room < 0) fail_small(ctx, window.in, window);
    window.out = (room + (pooling.ceil_mode ? window.stride - 1 : 0)) / window.stride + 1;
    if (window.size > window.before && (window.out - 1) * window.stride - window.before < window.in) continue;
    fail(
        ErrorCode::invalid_argument,
        "[{}] a window of {} with a stride of {} and paddings of {} and {} would lie beside the {} elements of dim {}; "
        "make the padding smaller{}",
        ctx.op, window.size, window.stride, window.before, window.after, window.in, image.first() + i,
        pooling.ceil_mode ? " or use no ceil_mode" : "");
  }
  return windows;
}

Range elements_read(const Window& window, Range outputs) {
  if (outputs.size == 0) return {};
  const int64_t last = outputs.begin + outputs.size - 1;
  int64_t begin, end;
  if (window.size == 0) {  // adaptive
    begin = outputs.begin * window.in / window.out;
    end = ((last + 1) * window.in + window.out - 1) / window.out;
  } else {
    begin = std::clamp<int64_t>(window.first(outputs.begin), 0, window.in);
    end = std::clamp<int64_t>(window.first(last) + window.reach(), begin, window.in);
  }
  return begin == end ? Range() : Range{begin, end - begin};
}

Range outputs_reading(const Window& window, Range elements) {
  if (elements.size == 0) return {};
  const int64_t begin = first_reading(window, elements.begin),
                end = std::max(first_behind(window, elements.begin + elements.size - 1), begin);
  return begin == end ? Range() : Range{begin, end - begin};
}

namespace {

template <class Change>
ShardBox changed_box(const Image& image, const Windows& windows, ShardBox box, const ShardBox& other, Change* change) {
  for (int i = 0; i < image.space; ++i) {
    const int dim = image.first() + i;
    const Range range = change(windows[static_cast<size_t>(3 - image.space + i)], {other.begin[dim], other.dims[dim]});
    box.begin[dim] = range.begin;
    box.dims[dim] = range.size;
  }
  return box;
}

}  // namespace

ShardBox box_read(const Image& image, const Windows& windows, ShardBox box, const ShardBox& outputs) {
  return changed_box(image, windows, box, outputs, elements_read);
}

ShardBox box_reading(const Image& image, const Windows& windows, ShardBox box, const ShardBox& elements) {
  return changed_box(image, windows, box, elements, outputs_reading);
}

Window part_of(const Window& window, Range elements, Range outputs) {
  Window part = window;
  part.in = elements.size;
  part.out = outputs.size;
  part.before = elements.begin - window.first(outputs.begin);
  const int64_t end = window.first(outputs.begin + outputs.size - 1) + window.reach();
  part.after = std::max<int64_t>(end - elements.begin - elements.size, 0);
  return part;
}

Dims image_dims(const Image& image, int64_t batch, int64_t channels, const Windows& windows, int64_t Window::*size) {
  Dims dims{batch};
  if (!image.channels_last) dims.push_back(channels);
  for (size_t i = static_cast<size_t>(3 - image.space); i < 3; ++i) dims.push_back(windows[i].*size);
  if (image.channels_last) dims.push_back(channels);
  return dims;
}

}  // namespace shard::meta
