// lamb on CUDA, in place: the updates of all elements with the sums of their squares by block, the rate from these
// sums, and the step. The order of additions depends only on the number of elements and the device.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/optim.cuh"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/optim.inc"

/// What a call has besides elements.
struct LambCall {
  double beta1, beta2, epsilon, weight_decay;
  bool always_adapt;
  DeviceNumber learning_rate, power1, power2;
  const bool* skip;

  template <class C>
  __device__ LambStep<C> step() const {
    return {static_cast<C>(beta1),
            static_cast<C>(beta2),
            static_cast<C>(epsilon),
            static_cast<C>(weight_decay),
            static_cast<C>(1.0 / (1.0 - power1.read())),
            static_cast<C>(1.0 / (1.0 - power2.read()))};
  }
  __device__ bool skips() const { return skip != nullptr && *skip; }
};

/// Sums of the squares of the parameter and of its update.
struct Squares {
  double of_values = 0, of_updates = 0;
};
struct AddSquares {
  __device__ Squares operator()(Squares a, Squares b) const {
    return {a.of_values + b.of_values, a.of_updates + b.of_updates};
  }
};

template <class T, class S>
struct LambTensors {
  T* values;
  float* master;  // null: none
  const T* grad;
  S *moment1, *moment2;
  math_t<T>* updates;

  template <int N>
  __device__ void load_values(int64_t i, math_t<T> (&to)[N]) const {
    if (master == nullptr) return load_numbers<N>(values, i, to);
    float exact[N];
    load_elements<N>(master, i, exact);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = static_cast<math_t<T>>(exact[k]);
  }
  template <int N>
  __device__ void advance(const LambStep<math_t<T>>& step, int64_t i, Squares& sums) const {
    using C = math_t<T>;
    C value[N], g[N], update[N];
    math_t<S> first[N], second[N];
    load_numbers<N>(grad, i, g);
    load_numbers<N>(moment1, i, first);
    load_numbers<N>(moment2, i, second);
    load_values<N>(i, value);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      C states[2] = {static_cast<C>(first[k]), static_cast<C>(second[k])};
      update[k] = step.update(value[k], g[k], states);
      first[k] = static_cast<math_t<S>>(states[0]);
      second[k] = static_cast<math_t<S>>(states[1]);
      sums.of_values += static_cast<double>(value[k]) * static_cast<double>(value[k]);
      sums.of_updates += static_cast<double>(update[k]) * static_cast<double>(update[k]);
    }
    store_numbers<N>(moment1, i, first);
    store_numbers<N>(moment2, i, second);
    store_elements<N>(updates, i, update);
  }
};

/// Packs that are not aligned are read and written one element after the other, so that sums are the same.
template <int N, class T, class S>
__global__ void lamb_updates(int64_t count, bool aligned, LambTensors<T, S> tensors, LambCall call, Squares* parts) {
  if (call.skips()) return;
  const auto step = call.step<math_t<T>>();
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t stride = gridDim.x * int64_t{blockDim.x};
  const int64_t packs = count / N;
  Squares sums;
  for (int64_t i = thread; i < packs; i += stride) {
    if (aligned) tensors.template advance<N>(step, i, sums);
    else
      for (int k = 0; k < N; ++k) tensors.template advance<1>(step, i * N + k, sums);
  }
  for (int64_t i = packs * N + thread; i < count; i += stride) tensors.template advance<1>(step, i, sums);
  sums = block_reduce<kElementThreads>(sums, AddSquares{});
  if (threadIdx.x == 0) parts[blockIdx.x] = sums;
}

/// One block: the sums of the parts, zeros in a step that is skipped.
__global__ void lamb_sums(int parts_count, const Squares* parts, LambCall call, Squares* all) {
  Squares sums;
  for (int i = static_cast<int>(threadIdx.x); !call.skips() && i < parts_count; i += kElementThreads)
    sums = AddSquares{}(sums, parts[i]);
  sums = block_reduce<kElementThreads>(sums, AddSquares{});
  if (threadIdx.x == 0) *all = sums;
}

/// One thread: the rate of the step, and the next powers of the betas.
__global__ void lamb_rate(const Squares* all, LambCall call, double* rate) {
  if (call.skips()) return;
  const Squares sums = *all;
  const bool adapts = (call.weight_decay > 0 || call.always_adapt) && sums.of_values > 0 && sums.of_updates > 0;
  *rate = call.learning_rate.read() * (adapts ? ::sqrt(sums.of_values / sums.of_updates) : 1.0);
  call.power1.write(call.power1.read() * call.beta1);
  call.power2.write(call.power2.read() * call.beta2);
}

template <class T, class S>
struct LambApply {
  LambTensors<T, S> tensors;
  const bool* skip;
  const double* rate;

  template <int N>
  __device__ void run(int64_t i) const {
    if (skip != nullptr && *skip) return;
    const math_t<T> by = static_cast<math_t<T>>(*rate);
    math_t<T> value[N], update[N];
    float exact[N];
    tensors.template load_values<N>(i, value);
    load_elements<N>(tensors.updates, i, update);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      value[k] = value[k] - by * update[k];
      exact[k] = static_cast<float>(value[k]);
      if (tensors.master != nullptr) value[k] = static_cast<math_t<T>>(exact[k]);
    }
    if (tensors.master != nullptr) store_elements<N>(tensors.master, i, exact);
    store_numbers<N>(tensors.values, i, value);
  }
};

template <class T, class S>
void run_lamb(const OpContext& ctx, Device device, int64_t count, LambTensors<T, S> tensors, const LambCall& call) {
  constexpr int kN = kTogether<T, S, float>;
  const Scratch updates(static_cast<size_t>(count) * sizeof(math_t<T>));
  tensors.updates = static_cast<math_t<T>*>(updates.data());
  const bool aligned =
      packs_are_aligned<kN>(tensors.values, tensors.master, tensors.grad, tensors.moment1, tensors.moment2);
  const unsigned blocks = grid_for(count / kN + 1, kElementThreads);
  const Scratch sums(blocks * sizeof(Squares) + sizeof(double));
  Squares* const parts = static_cast<Squares*>(sums.data());
  double* const rate = reinterpret_cast<double*>(parts + blocks);
  DenseTensor all = DenseTensor::allocate(device, {Dims{2}, DType::float64});
  Squares* const total = reinterpret_cast<Squares*>(all.data<double>());
  launch(ctx, lamb_updates<kN, T, S>, blocks, kElementThreads, count, aligned, tensors, call, parts);
  launch(ctx, lamb_sums, 1, kElementThreads, static_cast<int>(blocks), parts, call, total);
  ctx.all_reduce(all, ReduceType::sum);  // over the ranks that hold other parts of the parameter
  launch(ctx, lamb_rate, 1, 1, total, call, rate);
  launch(ctx, map_kernel<kN, LambApply<T, S>>, blocks, kElementThreads, aligned ? count / kN : 0, count,
         LambApply<T, S>{tensors, call.skip, rate});
}

template <class T>
void lamb(const OpContext& ctx, const DenseTensor&, const DenseTensor& grad, const DenseTensor& learning_rate,
          const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
          const DenseTensor& skip_update, float weight_decay, float beta1, float beta2, float epsilon,
          bool always_adapt, bool multi_precision, DenseTensor& param, DenseTensor& moment1, DenseTensor& moment2,
          DenseTensor& beta1_pow, DenseTensor& beta2_pow, DenseTensor& master_param) {
  using D = device_t<T>;
  const DeviceScope scope(param.device().index);
  const LambCall call{static_cast<double>(beta1),
                      static_cast<double>(beta2),
                      static_cast<double>(epsilon),
                      static_cast<double>(weight_decay),
                      always_adapt,
                      DeviceNumber(learning_rate),
                      DeviceNumber(beta1_pow),
                      DeviceNumber(beta2_pow),
                      skip_update.defined() ? elements<const bool>(skip_update) : nullptr};
  const auto run = [&]<class S>(S* first, S* second) {
    float* const master = multi_precision ? elements<float>(master_param) : nullptr;
    run_lamb(ctx, param.device(), param.numel(),
             LambTensors<D, S>{elements<D>(param), master, elements<const D>(grad), first, second, nullptr}, call);
  };
  if (moment1.dtype() == dtype_of<T>) run(elements<D>(moment1), elements<D>(moment2));
  else if constexpr (!std::is_same_v<T, float>) run(elements<float>(moment1), elements<float>(moment2));
}

}  // namespace

void register_lamb(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("lamb", backend, dtype_of<T>, &lamb<T>); });
}

}  // namespace shard::cuda
