// Convolutions by oneDNN, in the memory formats that it prefers. It keeps the code that it generates in a cache of its
// own.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "shard/core/error.h"
#include "shard/core/host_cache.h"
#include "shard/kernels/cpu/conv.h"
#include "shard/kernels/cpu/onednn.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {
namespace {

using Memory = dnnl::memory;
using Format = Memory::desc;

/// What one job computes: some of the images and of the channels of the result, or of the filter's gradient. (The channels
/// of the pass `input` are those of the input, else they are those of the output.)
struct Part {
  int64_t first_image, images, first_channel, channels;
};

int64_t written_channels(ConvPass pass, const Convolution& conv) {
  return pass == ConvPass::input ? conv.in : conv.out;
}

/// The parts of a pass: `images` times `channels` of them.
struct Parts {
  int64_t images, channels;

  Part at(ConvPass pass, const Convolution& conv, int64_t i) const {
    const int64_t b = i / channels, c = i % channels, all = written_channels(pass, conv);
    const auto image = [&](int64_t part) { return conv.batch * part / images; };
    // In steps of channels that vectors hold, but for the last part.
    const auto channel = [&](int64_t part) { return part == channels ? all : all / 16 * part / channels * 16; };
    return {image(b), image(b + 1) - image(b), channel(c), channel(c + 1) - channel(c)};
  }
};

/// About as many parts as threads can use, by the shapes alone, so that results do not depend on threads. Each part of the
/// images copies the filter into oneDNN's format, or adds up another gradient of it, and each part of the channels copies
/// the images: of about as many parts those are chosen that copy least.
Parts parts_of(ConvPass pass, const Convolution& conv) {
  const int64_t work = conv.batch * conv.out_places() * conv.filter_numel();
  const int64_t image = pass == ConvPass::input ? conv.out * conv.out_places() : conv.in * conv.in_places();
  // Where filters are much smaller than images, parts of these are smaller in the caches, too.
  const int64_t cheap = std::min(conv.batch, conv.batch * image / (4 * conv.filter_numel()));
  const int64_t wanted = std::clamp<int64_t>(std::max(work >> 24, cheap), 1, 16);
  const int64_t most = conv.groups > 1 ? 1 : std::clamp<int64_t>(written_channels(pass, conv) / 64, 1, 16);
  Parts best{std::min(conv.batch, wanted), 1};
  const auto copied = [&](const Parts& p) { return p.images * conv.filter_numel() + p.channels * conv.batch * image; };
  const auto count = [&](const Parts& p) { return std::min(p.images * p.channels, (3 * wanted + 3) / 4); };
  for (int64_t channels = 2; channels <= most; ++channels) {
    const Parts each{std::min((wanted + channels - 1) / channels, conv.batch), channels};
    if (count(each) > count(best) || (count(each) == count(best) && copied(each) < copied(best))) best = each;
  }
  return best;
}

/// The memory of the library's tensors, and what describes the windows to oneDNN.
struct Description {
  Format input, filter, output;
  Memory::dims strides, dilations, before, after;
};

/// The strides of images with these dims in a tensor of `channels` channels.
Memory::dims image_strides(const meta::Image& image, const Memory::dims& dims, int64_t channels) {
  Memory::dims strides(dims.size());
  int64_t step = 1;
  if (image.channels_last) strides[1] = 1, step = channels;
  for (size_t d = dims.size() - 1; d >= 2; --d) {
    strides[d] = step;
    step *= dims[d];
  }
  if (!image.channels_last) strides[1] = step, step *= channels;
  strides[0] = step;
  return strides;
}

Description describe(ConvPass pass, const Convolution& conv, const Part& part, Memory::data_type filter_type) {
  Description d;
  const int64_t in_channels = pass == ConvPass::input ? part.channels : conv.in,
                out_channels = pass == ConvPass::input ? conv.out : part.channels;
  Memory::dims in{part.images, in_channels}, out{part.images, out_channels}, filter, whole;
  if (conv.groups > 1) filter = whole = {conv.groups, conv.out / conv.groups, conv.in / conv.groups};
  else filter = {out_channels, in_channels}, whole = {conv.out, conv.in};
  for (size_t i = static_cast<size_t>(3 - conv.image.space); i < 3; ++i) {
    const meta::Window& window = conv.windows[i];
    in.push_back(window.in);
    out.push_back(window.out);
    filter.push_back(window.size);
    whole.push_back(window.size);
    d.strides.push_back(window.stride);
    d.dilations.push_back(window.dilation - 1);
    d.before.push_back(window.before);
    d.after.push_back(window.after);
  }
  Memory::dims steps(filter.size());
  int64_t step = 1;
  for (size_t i = whole.size(); i-- > 0;) {
    steps[i] = step;
    step *= whole[i];
  }
  d.input = Format(in, onednn_type(conv.dtype), image_strides(conv.image, in, conv.in));
  d.output = Format(out, onednn_type(conv.dtype), image_strides(conv.image, out, conv.out));
  d.filter = Format(filter, filter_type, steps);
  return d;
}

/// A tensor of a pass in our format and in the one that the code takes, and what copies it from one to the other; both are
/// null where the formats are the same. Making them takes as long as copying a small image.
struct Slot {
  Format ours, theirs;
  dnnl::reorder to_theirs, to_ours;

  Slot() = default;
  Slot(const Format& ours, const Format& theirs, const dnnl::engine& engine) : ours(ours), theirs(theirs) {
    if (ours == theirs) return;
    to_theirs = dnnl::reorder({engine, ours, engine, theirs});
    to_ours = dnnl::reorder({engine, theirs, engine, ours});
  }
};

/// The code of one pass, and the formats in which it takes its tensors.
struct Plan {
  dnnl::primitive primitive;
  Slot input, filter, output;
  Format scratchpad;
};

Format any(const Format& format) { return {format.dims(), format.data_type(), Memory::format_tag::any}; }

Plan make_plan(ConvPass pass, const Description& d, const dnnl::engine& engine) {
  using dnnl::algorithm;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const Format input = any(d.input), output = any(d.output), filter = any(d.filter);
  // The gradients want to know the forward pass; its filter has the type of the images.
  const Format forward_filter{d.filter.dims(), d.input.data_type(), Memory::format_tag::any};
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, algorithm::convolution_direct, input, forward_filter, output, d.strides,
       d.dilations, d.before, d.after},
      attributes, engine);
  const auto made = [&](const auto& code, dnnl::primitive primitive, const Format& in, const Format& weights,
                        const Format& out) {
    return Plan{std::move(primitive), Slot(d.input, in, engine), Slot(d.filter, weights, engine),
                Slot(d.output, out, engine), code.scratchpad_desc()};
  };
  switch (pass) {
    case ConvPass::output:
      return made(forward, dnnl::convolution_forward(forward), forward.src_desc(), forward.weights_desc(),
                  forward.dst_desc());
    case ConvPass::input: {
      const dnnl::convolution_backward_data::primitive_desc backward(
          {algorithm::convolution_direct, input, forward_filter, output, d.strides, d.dilations, d.before, d.after},
          attributes, engine, forward);
      return made(backward, dnnl::convolution_backward_data(backward), backward.diff_src_desc(),
                  backward.weights_desc(), backward.diff_dst_desc());
    }
    case ConvPass::filter: {
      const dnnl::convolution_backward_weights::primitive_desc backward(
          {algorithm::convolution_direct, input, filter, output, d.strides, d.dilations, d.before, d.after}, attributes,
          engine, forward);
      return made(backward, dnnl::convolution_backward_weights(backward), backward.src_desc(),
                  backward.diff_weights_desc(), backward.diff_dst_desc());
    }
  }
  __builtin_unreachable();
}

/// What a thread keeps: the plan of its last convolution, which is often the next one too.
struct Thread {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<int64_t> key;
  Plan plan;
};

std::vector<int64_t> key_of(ConvPass pass, const Convolution& conv, const Part& part) {
  std::vector<int64_t> key = {int64_t(pass), int64_t(conv.dtype), part.images,      part.channels,           conv.in,
                              conv.out,      conv.groups,         conv.image.space, conv.image.channels_last};
  for (const meta::Window& w : conv.windows)
    key.insert(key.end(), {w.in, w.size, w.stride, w.before, w.after, w.dilation, w.out});
  return key;
}

/// The plan of this thread for a part of this size. Throws dnnl::error where oneDNN has no code.
Thread& planned(ConvPass pass, const Convolution& conv, const Part& part) {
  // Not the object itself: programs that load the library later have 1664 bytes for the variables of threads (core/thread_state.h).
  thread_local const auto mine = std::make_unique<Thread>();
  Thread& thread = *mine;
  std::vector<int64_t> key = key_of(pass, conv, part);
  if (key == thread.key) return thread;
  thread.key.clear();
  // The gradient of the filter is a sum over jobs, which is rounded once.
  const Memory::data_type type = pass == ConvPass::filter ? Memory::data_type::f32 : onednn_type(conv.dtype);
  thread.plan = make_plan(pass, describe(pass, conv, part, type), thread.engine);
  thread.key = std::move(key);
  return thread;
}

/// A tensor in the format of the library, and the same in the format of the plan.
class Operand {
 public:
  Operand(Thread& thread, const Slot& slot, void* data)
      : slot_(slot), ours_(slot.ours, thread.engine, data), copy_(slot.to_ours ? slot.theirs.get_size() : 0),
        theirs_(slot.to_ours ? Memory(slot.theirs, thread.engine, copy_.data()) : ours_) {}

  const Memory& read(Thread& thread) {
    if (slot_.to_theirs) slot_.to_theirs.execute(thread.stream, ours_, theirs_);
    return theirs_;
  }
  const Memory& write() { return theirs_; }
  void finish(Thread& thread) {
    if (slot_.to_ours) slot_.to_ours.execute(thread.stream, theirs_, ours_);
  }

 private:
  const Slot& slot_;
  Memory ours_;
  HostBlock copy_;
  Memory theirs_;
};

void execute(Thread& thread, ConvPass pass, const ConvTensors& at) {
  const Plan& plan = thread.plan;
  Operand input(thread, plan.input, at.input), filter(thread, plan.filter, at.filter),
      output(thread, plan.output, at.output);
  const HostBlock scratch(plan.scratchpad.get_size());
  const Memory scratchpad(plan.scratchpad, thread.engine, scratch.data());
  switch (pass) {
    case ConvPass::output:
      plan.primitive.execute(thread.stream, {{DNNL_ARG_SRC, input.read(thread)},
                                             {DNNL_ARG_WEIGHTS, filter.read(thread)},
                                             {DNNL_ARG_DST, output.write()},
                                             {DNNL_ARG_SCRATCHPAD, scratchpad}});
      return output.finish(thread);
    case ConvPass::input:
      plan.primitive.execute(thread.stream, {{DNNL_ARG_DIFF_DST, output.read(thread)},
                                             {DNNL_ARG_WEIGHTS, filter.read(thread)},
                                             {DNNL_ARG_DIFF_SRC, input.write()},
                                             {DNNL_ARG_SCRATCHPAD, scratchpad}});
      return input.finish(thread);
    case ConvPass::filter:
      plan.primitive.execute(thread.stream, {{DNNL_ARG_SRC, input.read(thread)},
                                             {DNNL_ARG_DIFF_DST, output.read(thread)},
                                             {DNNL_ARG_DIFF_WEIGHTS, filter.write()},
                                             {DNNL_ARG_SCRATCHPAD, scratchpad}});
      return filter.finish(thread);
  }
}

void* advanced(void* data, DType dtype, int64_t elements) {
  return static_cast<char*>(data) + elements * static_cast<int64_t>(size_of(dtype));
}

/// Where a part begins in the tensors. Elements of the filter's gradient have the dtype `filter`.
ConvTensors part_of(ConvPass pass, const Convolution& conv, const ConvTensors& whole, const Part& part, DType filter) {
  const int64_t step = conv.image.channels_last ? 1 : pass == ConvPass::input ? conv.in_places() : conv.out_places();
  const int64_t skipped = part.first_channel * step, kernel = conv.kernel_places();
  const int64_t input = part.first_image * conv.in * conv.in_places(),
                output = part.first_image * conv.out * conv.out_places();
  if (pass == ConvPass::input) {
    return {advanced(whole.input, conv.dtype, input + skipped),
            advanced(whole.filter, filter, part.first_channel * kernel), advanced(whole.output, conv.dtype, output)};
  }
  return {advanced(whole.input, conv.dtype, input),
          advanced(whole.filter, filter, part.first_channel * (conv.in / conv.groups) * kernel),
          advanced(whole.output, conv.dtype, output + skipped)};
}

/// Writes the sums of `parts` filters of float32 in the dtype of the convolution.
void write_sums(const Convolution& conv, const float* filters, int64_t parts, void* out) {
  constexpr int64_t kBlock = 1024;  // elements whose sums stay in the nearest cache
  const int64_t count = conv.filter_numel();
  visit_dtype(conv.dtype, [&]<class T>(TypeTag<T>) {
    parallel_for((count + kBlock - 1) / kBlock, parts * kBlock, [&](int64_t first, int64_t last) {
      std::array<float, kBlock> sums;
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = block * kBlock, n = std::min(kBlock, count - begin);
        std::copy_n(filters + begin, n, sums.data());
        for (int64_t p = 1; p < parts; ++p) {
          const float* const part = filters + p * count + begin;
          for (int64_t i = 0; i < n; ++i) sums[size_t(i)] += part[i];
        }
        for (int64_t i = 0; i < n; ++i) static_cast<T*>(out)[begin + i] = T(static_cast<Compute<T>>(sums[size_t(i)]));
      }
    });
  });
}

}  // namespace

bool convolve_by_onednn(ConvPass pass, const Convolution& conv, const ConvTensors& tensors) {
  const Parts parts = parts_of(pass, conv);
  const int64_t count = parts.images * parts.channels;
  try {
    const OneThread alone;
    for (int64_t i = 0; i < count; ++i) planned(pass, conv, parts.at(pass, conv, i));
  } catch (const dnnl::error&) { return false; }
  // Gradients of the filter are added up over parts of the images, and rounded once.
  const bool adds = pass == ConvPass::filter && (parts.images > 1 || conv.dtype != DType::float32);
  const HostBlock sums(adds ? sizeof(float) * static_cast<size_t>(parts.images * conv.filter_numel()) : 0);
  float* const filters = static_cast<float*>(sums.data());
  std::atomic<bool> failed = false;  // as for want of memory; jobs must not throw
  run_each(count, [&](int64_t i) {
    try {
      const OneThread alone;
      const Part part = parts.at(pass, conv, i);
      ConvTensors whole = tensors;
      if (adds) whole.filter = filters + i / parts.channels * conv.filter_numel();
      execute(planned(pass, conv, part), pass, part_of(pass, conv, whole, part, adds ? DType::float32 : conv.dtype));
    } catch (const std::exception&) { failed = true; }
  });
  if (failed) return false;
  if (adds) write_sums(conv, filters, parts.images, tensors.filter);
  return true;
}

}  // namespace shard::cpu
