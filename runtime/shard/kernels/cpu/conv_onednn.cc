// Convolutions by oneDNN, in the memory formats that it prefers. It keeps the code that it generates in a cache of its
// own.
#include <algorithm>
#include <atomic>
#include <vector>

#include "shard/core/error.h"
#include "shard/kernels/cpu/conv.h"
#include "shard/kernels/cpu/onednn.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {
namespace {

using Memory = dnnl::memory;
using Format = Memory::desc;

/// The memory of the library's tensors, and what describes the windows to oneDNN.
struct Description {
  Format input, filter, output;
  Memory::dims strides, dilations, before, after;
};

Memory::dims image_strides(const meta::Image& image, const Memory::dims& dims) {
  Memory::dims strides(dims.size());
  int64_t step = 1;
  if (image.channels_last) strides[1] = 1, step = dims[1];
  for (size_t d = dims.size() - 1; d >= 2; --d) {
    strides[d] = step;
    step *= dims[d];
  }
  if (!image.channels_last) strides[1] = step, step *= dims[1];
  strides[0] = step;
  return strides;
}

Description describe(const Convolution& conv, int64_t batch, Memory::data_type filter_type) {
  Description d;
  Memory::dims in{batch, conv.in}, out{batch, conv.out}, filter;
  if (conv.groups > 1) filter = {conv.groups, conv.out / conv.groups, conv.in / conv.groups};
  else filter = {conv.out, conv.in};
  for (size_t i = static_cast<size_t>(3 - conv.image.space); i < 3; ++i) {
    const meta::Window& window = conv.windows[i];
    in.push_back(window.in);
    out.push_back(window.out);
    filter.push_back(window.size);
    d.strides.push_back(window.stride);
    d.dilations.push_back(window.dilation - 1);
    d.before.push_back(window.before);
    d.after.push_back(window.after);
  }
  Memory::dims steps(filter.size());
  int64_t step = 1;
  for (size_t i = filter.size(); i-- > 0;) {
    steps[i] = step;
    step *= filter[i];
  }
  d.input = Format(in, onednn_type(conv.dtype), image_strides(conv.image, in));
  d.output = Format(out, onednn_type(conv.dtype), image_strides(conv.image, out));
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

std::vector<int64_t> key_of(ConvPass pass, const Convolution& conv, int64_t batch) {
  std::vector<int64_t> key = {int64_t(pass),    int64_t(conv.dtype),     batch, conv.in, conv.out, conv.groups,
                              conv.image.space, conv.image.channels_last};
  for (const meta::Window& w : conv.windows)
    key.insert(key.end(), {w.in, w.size, w.stride, w.before, w.after, w.dilation, w.out});
  return key;
}

/// The plan of this thread for `batch` images. Throws dnnl::error where oneDNN has no code.
Thread& planned(ConvPass pass, const Convolution& conv, int64_t batch) {
  thread_local Thread thread;
  std::vector<int64_t> key = key_of(pass, conv, batch);
  if (key == thread.key) return thread;
  thread.key.clear();
  // The gradient of the filter is a sum over jobs, which is rounded once.
  const Memory::data_type type = pass == ConvPass::filter ? Memory::data_type::f32 : onednn_type(conv.dtype);
  thread.plan = make_plan(pass, describe(conv, batch, type), thread.engine);
  thread.key = std::move(key);
  return thread;
}

/// A tensor in the format of the library, and the same in the format of the plan.
class Operand {
 public:
  Operand(Thread& thread, const Slot& slot, void* data)
      : slot_(slot), ours_(slot.ours, thread.engine, data),
        theirs_(slot.to_ours ? Memory(slot.theirs, thread.engine) : ours_) {}

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
  Memory ours_, theirs_;
};

void execute(Thread& thread, ConvPass pass, const ConvTensors& at) {
  const Plan& plan = thread.plan;
  Operand input(thread, plan.input, at.input), filter(thread, plan.filter, at.filter),
      output(thread, plan.output, at.output);
  const Memory scratchpad(plan.scratchpad, thread.engine);
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

/// Writes the sums of `parts` filters of float32 in the dtype of the convolution.
void write_sums(const Convolution& conv, const std::vector<float>& filters, int64_t parts, void* out) {
  const int64_t count = conv.filter_numel();
  visit_dtype(conv.dtype, [&]<class T>(TypeTag<T>) {
    parallel_for(count, parts, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        float sum = 0;
        for (int64_t p = 0; p < parts; ++p) sum += filters[static_cast<size_t>(p * count + i)];
        static_cast<T*>(out)[i] = static_cast<T>(static_cast<Compute<T>>(sum));
      }
    });
  });
}

}  // namespace

bool convolve_by_onednn(ConvPass pass, const Convolution& conv, const ConvTensors& tensors) {
  // Jobs are parts of the batch whose sizes depend on the shapes alone, so that results do not depend on threads.
  const int64_t limit = pass == ConvPass::filter ? std::clamp<int64_t>((1 << 22) / conv.filter_numel(), 1, 16) : 16;
  const int64_t parts = std::min(conv.batch, limit);
  const auto begin = [&](int64_t part) { return conv.batch * part / parts; };
  try {
    const OneThread alone;
    for (int64_t part = 0; part < parts; ++part) planned(pass, conv, begin(part + 1) - begin(part));
  } catch (const dnnl::error&) { return false; }
  const int64_t in = conv.in * conv.in_places(), out = conv.out * conv.out_places();
  std::vector<float> filters(pass == ConvPass::filter ? static_cast<size_t>(parts * conv.filter_numel()) : 0);
  std::atomic<bool> failed = false;  // as for want of memory; jobs must not throw
  run_each(parts, [&](int64_t part) {
    try {
      const OneThread alone;
      const int64_t first = begin(part);
      Thread& thread = planned(pass, conv, begin(part + 1) - first);
      void* const filter = pass == ConvPass::filter ? filters.data() + part * conv.filter_numel() : tensors.filter;
      execute(
          thread, pass,
          {advanced(tensors.input, conv.dtype, first * in), filter, advanced(tensors.output, conv.dtype, first * out)});
    } catch (const dnnl::error&) { failed = true; }
  });
  if (failed) return false;
  if (pass == ConvPass::filter) write_sums(conv, filters, parts, tensors.filter);
  return true;
}

}  // namespace shard::cpu
