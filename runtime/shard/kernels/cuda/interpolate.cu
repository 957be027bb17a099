// Interpolation and its gradient on CUDA. A first kernel finds the places and weights along each dim, which the elements of a row, of a
// column and of all images share.
#include "shard/kernels/cpu/interpolate.h"

#include <algorithm>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/images.cuh"

namespace shard::cuda {
namespace {

using meta::Interpolation;
using meta::Sampling;
using meta::Samplings;

#include "shard/kernels/formulas/interpolation.inc"

/// Along one dim, for a range of outputs and a range of elements, counted from their first ones: what each output reads, and for
/// gradients which outputs read each element.
template <class C, class N>
struct Table {
  N* places = nullptr;  // [outputs, count]
  C* weights = nullptr;
  N* readers = nullptr;  // [elements, 2]: the first output that may read the element, and the first that is behind it
  int count = 1;

  /// How much of element `at` is in output `o`; `cancels` is set where infinite elements would not add up to that, but to NaN,
  /// as several taps of an output read an element beside the edge.
  __device__ __forceinline__ C weight(N o, N at, bool& cancels) const {
    C sum = 0;
    for (int k = 0; k < count; ++k) {
      if (places[o * count + k] != at) continue;
      const C weight = weights[o * count + k];
      cancels = cancels || weight == 0 || weight * sum < 0;
      sum += weight;
    }
    return sum;
  }
};
template <class C, class N>
struct Tables {
  Table<C, N> of[3];
};

/// What is in the tables.
struct TableRanges {
  Sampling samplings[3];
  Range in[3], out[3];
};

/// Fills the tables: a thread for each output and, for gradients, for each element of each dim.
template <class C, class N>
__global__ void table_kernel(const __grid_constant__ Tables<C, N> tables, const __grid_constant__ TableRanges ranges) {
  const int dim = static_cast<int>(blockIdx.y);
  const Sampling& sampling = ranges.samplings[dim];
  const Range in = ranges.in[dim], out = ranges.out[dim];
  const Table<C, N>& table = tables.of[dim];
  const int count = table.count;
  for (int64_t i = grid_first<int64_t>(); i < out.size; i += grid_step<int64_t>()) {
    const TapWeights weights = tap_weights(sampling, out.begin + i);
    for (int k = 0; k < count; ++k) {
      table.places[i * count + k] = static_cast<N>(element_read(sampling, out.begin + i, k) - in.begin);
      table.weights[i * count + k] = static_cast<C>(weights.of[k]);
    }
  }
  if (table.readers == nullptr) return;
  for (int64_t i = grid_first<int64_t>(); i < in.size; i += grid_step<int64_t>()) {
    const int64_t first = first_output(sampling, in.begin + i, count - 1) - out.begin,
                  behind = first_output(sampling, in.begin + i + 1, 0) - out.begin;
    table.readers[2 * i] = static_cast<N>(max(first, int64_t{0}));
    table.readers[2 * i + 1] = static_cast<N>(min(behind, out.size));
  }
}

/// The tables of a call, in memory of its work.
template <class C, class N>
class FilledTables {
 public:
  FilledTables(const OpContext& ctx, const Interpolation& how, const Samplings& samplings, const ShardBox& in,
               const ShardBox& out, bool has_readers)
      : scratch_(bytes(how, samplings, in, out)) {
    const std::array<Range, 3> elements = cpu::space_of(how, in), outputs = cpu::space_of(how, out);
    TableRanges ranges{};
    char* next = static_cast<char*>(scratch_.data());
    const auto take = [&]<class E>(TypeTag<E>, int64_t count) {
      E* const taken = reinterpret_cast<E*>(next);
      next += static_cast<size_t>(count) * sizeof(E);
      return taken;
    };
    for (size_t i = 0; i < 3; ++i) {  // those of 8 bytes are first, where there are any
      tables_.of[i].count = samplings[i].count();
      if constexpr (sizeof(C) >= sizeof(N)) tables_.of[i].weights = take(TypeTag<C>(), taps(samplings, outputs, i));
    }
    int64_t most = 1;
    for (size_t i = 0; i < 3; ++i) {
      tables_.of[i].places = take(TypeTag<N>(), taps(samplings, outputs, i));
      if (has_readers) tables_.of[i].readers = take(TypeTag<N>(), 2 * elements[i].size);
      most = std::max({most, outputs[i].size, elements[i].size});
      ranges.samplings[i] = samplings[i];
      ranges.in[i] = elements[i];
      ranges.out[i] = outputs[i];
    }
    for (size_t i = 0; i < 3; ++i) {
      if constexpr (sizeof(C) < sizeof(N)) tables_.of[i].weights = take(TypeTag<C>(), taps(samplings, outputs, i));
    }
    constexpr int kThreads = 128;
    launch(ctx, table_kernel<C, N>, dim3(grid_for(most, kThreads), 3), kThreads, tables_, ranges);
  }

  const Tables<C, N>& tables() const { return tables_; }

 private:
  static int64_t taps(const Samplings& samplings, const std::array<Range, 3>& outputs, size_t i) {
    return outputs[i].size * samplings[i].count();
  }
  static size_t bytes(const Interpolation& how, const Samplings& samplings, const ShardBox& in, const ShardBox& out) {
    const std::array<Range, 3> elements = cpu::space_of(how, in), outputs = cpu::space_of(how, out);
    int64_t bytes = 0;
    for (size_t i = 0; i < 3; ++i)
      bytes += taps(samplings, outputs, i) * static_cast<int64_t>(sizeof(C) + sizeof(N)) +
               2 * elements[i].size * static_cast<int64_t>(sizeof(N));
    return static_cast<size_t>(bytes);
  }

  Scratch scratch_;
  Tables<C, N> tables_;
};

/// An output for each thread, which reads kTaps elements of each row.
template <int kTaps, class T, class N>
__global__ void interpolate_kernel(T* out, const T* x, ImageShape<N> in, ImageShape<N> outputs,
                                   Tables<math_t<T>, N> tables) {
  using C = math_t<T>;
  const Table<C, N>&depth = tables.of[0], &height = tables.of[1], &width = tables.of[2];
  for (N i = grid_first<N>(), count = outputs.numel(); i < count; i += grid_step<N>()) {
    const ImageElement<N> output(outputs, i);
    const N image = output.outer * in.places();
    N columns[kTaps];
    C weights[kTaps];
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      columns[k] = width.places[output.at[2] * kTaps + k];
      weights[k] = width.weights[output.at[2] * kTaps + k];
    }
    C sum = 0;
    for (int a = 0; a < depth.count; ++a) {
      const N plane = depth.places[output.at[0] * depth.count + a];
      const C of_plane = depth.weights[output.at[0] * depth.count + a];
      for (int b = 0; b < height.count; ++b) {
        const N row = image + (plane * in.size[1] + height.places[output.at[1] * height.count + b]) * in.size[2];
        C line = 0;
#pragma unroll
        for (int k = 0; k < kTaps; ++k) line += weights[k] * load(x[(row + columns[k]) * in.inner + output.inner]);
        sum += of_plane * height.weights[output.at[1] * height.count + b] * line;
      }
    }
    out[i] = store<T>(sum);
  }
}

/// The gradient of an element: those of the outputs that read it, by one thread or by a warp.
template <int kLanes, class T, class N>
__global__ void interpolate_grad_kernel(T* x_grad, const T* out_grad, ImageShape<N> in, ImageShape<N> outputs,
                                        Tables<math_t<T>, N> tables) {
  using C = math_t<T>;
  const Table<C, N>&depth = tables.of[0], &height = tables.of[1], &width = tables.of[2];
  for (N i = first_item<kLanes, N>(), count = in.numel(); i < count; i += item_step<kLanes, N>()) {
    const ImageElement<N> element(in, i);
    const N image = element.outer * outputs.places();
    N begin[3], end[3];
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      begin[d] = tables.of[d].readers[2 * element.at[d]];
      end[d] = tables.of[d].readers[2 * element.at[d] + 1];
    }
    C sum = 0;
    each_place<kLanes>(begin, end, [&](N d, N h, N w) {
      bool cancels = false;
      const C weight = depth.weight(d, element.at[0], cancels) * height.weight(h, element.at[1], cancels) *
                       width.weight(w, element.at[2], cancels);
      const C grad = load(out_grad[(image + outputs.place(d, h, w)) * outputs.inner + element.inner]);
      sum += weight * grad;
      if (cancels) sum += C(0) * grad;
    });
    sum = sum_of_lanes<kLanes>(sum);
    if (is_first_lane<kLanes>()) x_grad[i] = store<T>(sum);
  }
}

/// Calls body(N()) with a type for numbers of elements.
template <class Body>
void visit_numbers(const Samplings& samplings, const Dims& in, const Dims& out, const Body& body) {
  constexpr int64_t kMost = int64_t{1} << 28;  // of four taps
  bool small = in.numel() < kMost && out.numel() < kMost;
  for (const Sampling& sampling : samplings) small = small && sampling.in < kMost && sampling.out < kMost;
  if (small) body(int{0});
  else body(int64_t{0});
}

int channel_of(const Interpolation& how, const Dims& dims) { return how.channels_last() ? dims.rank() - 1 : 1; }

/// What InterpolateOps needs of a backend.
template <class E>
struct InterpolateWork {
  using T = device_t<E>;

  static void forward(const OpContext& ctx, const Interpolation& how, const Samplings& samplings, const Fetched& read,
                      const ShardBox& outputs, DenseTensor& output) {
    const DeviceScope scope(output.device().index);
    visit_numbers(samplings, read.tensor.dims(), outputs.dims, [&]<class N>(N) {
      const ShardBox in = {read.begin, read.tensor.dims()};
      const FilledTables<math_t<T>, N> filled(ctx, how, samplings, in, outputs, false);
      const int taps = samplings[2].count();
      launch(ctx,
             taps == 1   ? interpolate_kernel<1, T, N>
             : taps == 2 ? interpolate_kernel<2, T, N>
                         : interpolate_kernel<4, T, N>,
             grid_for(output.numel(), 256), 256, elements<T>(output), elements<const T>(read.tensor),
             image_shape<N>(in.dims, channel_of(how, in.dims)),
             image_shape<N>(outputs.dims, channel_of(how, outputs.dims)), filled.tables());
    });
  }

  static void backward(const OpContext& ctx, const Interpolation& how, const Samplings& samplings, const Fetched& grads,
                       const ShardBox& x, DenseTensor& x_grad) {
    const DeviceScope scope(x_grad.device().index);
    visit_numbers(samplings, x.dims, grads.tensor.dims(), [&]<class N>(N) {
      const ShardBox outputs = {grads.begin, grads.tensor.dims()};
      const FilledTables<math_t<T>, N> filled(ctx, how, samplings, x, outputs, true);
      const bool warps = !how.channels_last() && outputs.dims.numel() / x.dims.numel() >= kWarpPlaces;
      launch_lanes(ctx, warps, static_cast<N>(x_grad.numel()), interpolate_grad_kernel<1, T, N>,
                   interpolate_grad_kernel<kWarp, T, N>, elements<T>(x_grad), elements<const T>(grads.tensor),
                   image_shape<N>(x.dims, channel_of(how, x.dims)),
                   image_shape<N>(outputs.dims, channel_of(how, outputs.dims)), filled.tables());
    });
  }
};

}  // namespace

void register_interpolate(int backend) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { cpu::InterpolateOps<InterpolateWork<T>>::register_for(backend, dtype_of<T>); });
}

}  // namespace shard::cuda
