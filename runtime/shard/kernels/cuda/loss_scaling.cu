// Loss scaling on CUDA - check_finite_and_unscale, update_loss_scaling - and average_accumulates. Numbers stay on the
// device: the host never waits for them.
#include "shard/kernels/cuda/convert.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/optim.cuh"

namespace shard::cuda {
namespace {

constexpr int kTensors = 96;  // of a launch, whose arguments have at most 4 KB

/// Tensors of a list, cut into chunks.
template <class T>
struct TensorList {
  struct One {
    const T* in;
    T* out;
    int64_t count;
    int64_t chunks_before;
  };
  int tensors = 0;
  int64_t chunks = 0;
  One of[kTensors];
};

template <class T>
inline constexpr int64_t kChunkOf = int64_t{kElementThreads} * kPacksOfThread* kTogether<T>;

/// Calls use(list, blocks) for lists of as many tensors as a launch takes. `in` may be `out`.
template <class T, class In, class Use>
void for_lists(In in, std::span<DenseTensor> out, const Use& use) {
  for (size_t first = 0; first < out.size(); first += kTensors) {
    TensorList<T> list;
    for (size_t i = first; i < std::min<size_t>(out.size(), first + kTensors); ++i) {
      const int64_t count = out[i].numel();
      if (count == 0) continue;
      list.of[list.tensors++] = {elements<const T>(in[i]), elements<T>(out[i]), count, list.chunks};
      list.chunks += (count + kChunkOf<T> - 1) / kChunkOf<T>;
    }
    if (list.tensors > 0) use(list, grid_for(list.chunks * kElementThreads, kElementThreads));
  }
}

/// Calls body.run<N>(in, out, i) for the packs of a list, as map_kernel does for those of a tensor.
template <class T, class Body>
__device__ void for_chunks(const TensorList<T>& list, Body& body) {
  constexpr int kN = kTogether<T>;
  for (int64_t chunk = blockIdx.x; chunk < list.chunks; chunk += gridDim.x) {
    const auto& one = owner_of(list.of, list.tensors, chunk);
    const int64_t begin = (chunk - one.chunks_before) * kChunkOf<T>, end = min(begin + kChunkOf<T>, one.count);
    const int64_t packs_end = packs_are_aligned<kN>(one.in, one.out) ? end / kN : begin / kN;
    for (int64_t i = begin / kN + threadIdx.x; i < packs_end; i += kElementThreads)
      body.template run<kN>(one.in, one.out, i);
    for (int64_t i = packs_end * kN + threadIdx.x; i < end; i += kElementThreads)
      body.template run<1>(one.in, one.out, i);
  }
}

template <class T>
struct Unscale {
  math_t<T> factor;
  unsigned infinite = 0;

  template <int N>
  __device__ void run(const T* in, T* out, int64_t i) {
    math_t<T> values[N];
    load_numbers<N>(in, i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (!std::isfinite(values[k])) infinite = 1;
      values[k] *= factor;
    }
    store_numbers<N>(out, i, values);
  }
};

/// Whether a block met a number that is not finite goes to of_blocks[block].
template <class T>
__global__ void unscale_kernel(TensorList<T> list, DeviceNumber scale, unsigned* of_blocks) {
  Unscale<T> body{static_cast<math_t<T>>(1.0 / scale.read())};
  for_chunks(list, body);
  const unsigned any = block_reduce<kElementThreads>(body.infinite, [](unsigned a, unsigned b) { return a | b; });
  if (threadIdx.x == 0) of_blocks[blockIdx.x] = any;
}

__global__ void any_of(int64_t count, const unsigned* flags, bool* out) {
  unsigned any = 0;
  for (int64_t i = threadIdx.x; i < count; i += kElementThreads) any |= flags[i];
  any = block_reduce<kElementThreads>(any, [](unsigned a, unsigned b) { return a | b; });
  if (threadIdx.x == 0) *out = any != 0;
}

template <class T>
void check_finite_and_unscale(const OpContext& ctx, std::span<const DenseTensor> x, const DenseTensor& scale,
                              std::span<DenseTensor> out, DenseTensor& found_infinite) {
  using D = device_t<T>;
  const DeviceScope scope(found_infinite.device().index);
  int64_t flags = 0;
  for_lists<D>(x, out, [&](const auto&, unsigned blocks) { flags += blocks; });
  const Scratch scratch(static_cast<size_t>(std::max<int64_t>(flags, 1)) * sizeof(unsigned));
  unsigned* const all = static_cast<unsigned*>(scratch.data());
  unsigned* next = all;
  for_lists<D>(x, out, [&](const TensorList<D>& list, unsigned blocks) {
    launch(ctx, unscale_kernel<D>, blocks, kElementThreads, list, DeviceNumber(scale), next);
    next += blocks;
  });
  launch(ctx, any_of, 1, kElementThreads, flags, all, elements<bool>(found_infinite));
  ctx.all_reduce(found_infinite, ReduceType::any);
}

template <class T>
struct Zero {
  template <int N>
  __device__ void run(const T*, T* out, int64_t i) const {
    math_t<T> zeros[N] = {};
    store_numbers<N>(out, i, zeros);
  }
};
template <class T>
__global__ void zero_where_found(TensorList<T> list, const bool* found) {
  if (!*found) return;
  Zero<T> body;
  for_chunks(list, body);
}

/// How the scale changes, for one thread.
struct ScaleUpdate {
  const bool* found;
  DeviceNumber scale;
  int32_t *good_steps, *bad_steps;
  int increase_every, decrease_every;
  float increase_ratio, decrease_ratio;
};
__global__ void update_scale(ScaleUpdate u) {
  const bool found = *u.found;
  const int32_t counted = (found ? *u.bad_steps : *u.good_steps) + 1;
  const bool changes = counted >= (found ? u.decrease_every : u.increase_every);
  *(found ? u.good_steps : u.bad_steps) = 0;
  *(found ? u.bad_steps : u.good_steps) = changes ? 0 : counted;
  if (!changes) return;
  const double scale = u.scale.read();
  if (found) {
    const double less = scale * static_cast<double>(u.decrease_ratio);
    u.scale.write(less < 1.0 ? 1.0 : less);
  } else {
    u.scale.write(scale * static_cast<double>(u.increase_ratio));
    if (!std::isfinite(u.scale.read())) u.scale.write(scale);
  }
}

template <class T>
void update_loss_scaling(const OpContext& ctx, std::span<const DenseTensor>, const DenseTensor& found_infinite,
                         const DenseTensor&, const DenseTensor&, const DenseTensor&, int incr_every_n_steps,
                         int decr_every_n_nan_or_inf, float incr_ratio, float decr_ratio, const Scalar& stop_update,
                         std::span<DenseTensor> out, DenseTensor& loss_scaling, DenseTensor& good_steps,
                         DenseTensor& bad_steps) {
  using D = device_t<T>;
  const DeviceScope scope(found_infinite.device().index);
  const bool* const found = elements<const bool>(found_infinite);
  for_lists<D>(out, out, [&](const TensorList<D>& list, unsigned blocks) {
    launch(ctx, zero_where_found<D>, blocks, kElementThreads, list, found);
  });
  if (stop_update.to<bool>()) return;
  const ScaleUpdate update{found,
                           DeviceNumber(loss_scaling),
                           elements<int32_t>(good_steps),
                           elements<int32_t>(bad_steps),
                           incr_every_n_steps,
                           decr_every_n_nan_or_inf,
                           incr_ratio,
                           decr_ratio};
  launch(ctx, update_scale, 1, 1, update);
}

/// How many updates and parameters were counted before, and what becomes of the sums now.
struct Counts {
  const int64_t *accumulates, *old_accumulates, *updates;
  float window;
  int64_t longest, shortest;

  static constexpr int64_t kMostInOneSum = 16384;
  __device__ bool moves() const { return (*updates + 1) % kMostInOneSum == 0; }
  __device__ bool restarts() const {
    const int64_t share = to_integer<int64_t>(static_cast<float>(*updates + 1) * window), count = *accumulates + 1;
    return count >= shortest && count >= min(longest, share);
  }
};

template <class T>
struct AverageBody {
  Counts counts;
  const T *param, *in[3];
  T* out[3];

  template <int N>
  __device__ void run(int64_t i) const {
    const bool moves = counts.moves(), restarts = counts.restarts();
    math_t<T> added[N], newest[N], middle[N], oldest[N];
    load_numbers<N>(param, i, added);
    load_numbers<N>(in[0], i, newest);
#pragma unroll
    for (int k = 0; k < N; ++k) newest[k] += added[k];
    if (!moves && !restarts && in[1] == out[1] && in[2] == out[2]) return store_numbers<N>(out[0], i, newest);
    load_numbers<N>(in[1], i, middle);
    load_numbers<N>(in[2], i, oldest);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (moves) {
        middle[k] += newest[k];
        newest[k] = 0;
      }
      if (restarts) {
        oldest[k] = newest[k] + middle[k];
        newest[k] = middle[k] = 0;
      }
    }
    store_numbers<N>(out[0], i, newest);
    store_numbers<N>(out[1], i, middle);
    store_numbers<N>(out[2], i, oldest);
  }
};

/// When all elements have been computed with the old counts.
__global__ void advance_counts(Counts counts, int64_t* accumulates, int64_t* old_accumulates, int64_t* updates) {
  const bool restarts = counts.restarts();
  const int64_t count = *counts.accumulates + 1, old = *counts.old_accumulates;
  *updates = *counts.updates + 1;
  *accumulates = restarts ? 0 : count;
  *old_accumulates = restarts ? count : old;
}

template <class T>
void average_accumulates(const OpContext& ctx, const DenseTensor& param, const DenseTensor& in_sum_1,
                         const DenseTensor& in_sum_2, const DenseTensor& in_sum_3,
                         const DenseTensor& in_num_accumulates, const DenseTensor& in_old_num_accumulates,
                         const DenseTensor& in_num_updates, float average_window, int64_t max_average_window,
                         int64_t min_average_window, DenseTensor& out_sum_1, DenseTensor& out_sum_2,
                         DenseTensor& out_sum_3, DenseTensor& out_num_accumulates, DenseTensor& out_old_num_accumulates,
                         DenseTensor& out_num_updates) {
  using D = device_t<T>;
  const DeviceScope scope(param.device().index);
  const Counts counts{elements<const int64_t>(in_num_accumulates),
                      elements<const int64_t>(in_old_num_accumulates),
                      elements<const int64_t>(in_num_updates),
                      average_window,
                      max_average_window,
                      min_average_window};
  const AverageBody<D> body{counts,
                            elements<const D>(param),
                            {elements<const D>(in_sum_1), elements<const D>(in_sum_2), elements<const D>(in_sum_3)},
                            {elements<D>(out_sum_1), elements<D>(out_sum_2), elements<D>(out_sum_3)}};
  map(ctx, param.numel(), body, body.param, body.in[0], body.in[1], body.in[2], elements<const D>(out_sum_1),
      elements<const D>(out_sum_2), elements<const D>(out_sum_3));
  launch(ctx, advance_counts, 1, 1, counts, elements<int64_t>(out_num_accumulates),
         elements<int64_t>(out_old_num_accumulates), elements<int64_t>(out_num_updates));
}

}  // namespace

void register_loss_scaling(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("check_finite_and_unscale", backend, dtype_of<T>, &check_finite_and_unscale<T>);
    register_kernel("update_loss_scaling", backend, dtype_of<T>, &update_loss_scaling<T>);
    register_kernel("average_accumulates", backend, dtype_of<T>, &average_accumulates<T>);
  });
}

}  // namespace shard::cuda
