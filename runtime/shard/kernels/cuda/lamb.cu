// lamb on CUDA, in place, of one parameter and of lists: the updates of all elements with the sums of their squares by
// chunk, the sums of each parameter, and the steps. The order of additions depends only on the number of elements.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/optim.cuh"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/optim.inc"

/// The attributes of a call.
struct LambCall {
  double beta1, beta2, epsilon, weight_decay;
  bool always_adapt;
};

/// Sums of the squares of a parameter and of its update.
struct Squares {
  double of_values = 0, of_updates = 0;
};
struct AddSquares {
  __device__ Squares operator()(Squares a, Squares b) const {
    return {a.of_values + b.of_values, a.of_updates + b.of_updates};
  }
};

template <class T, class S>
struct LambParameter {
  T* values;
  float* master;  // null: none
  const T* grad;
  S *moment1, *moment2;
  math_t<T>* updates;
  DeviceNumber learning_rate, power1, power2;
  const bool* skip;  // null: never
  Squares* sums;     // of the whole parameter, when ranks have combined them
  int64_t count, chunks, chunks_before;

  __device__ bool skips() const { return skip != nullptr && *skip; }
  template <int N>
  __device__ bool is_aligned() const {
    return packs_are_aligned<N>(values, master, grad, moment1, moment2, updates);
  }

  template <int N>
  __device__ void load_values(int64_t i, math_t<T> (&to)[N]) const {
    if (master == nullptr) return load_numbers<N>(values, i, to);
    float exact[N];
    load_elements<N>(master, i, exact);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = static_cast<math_t<T>>(exact[k]);
  }
  template <int N>
  __device__ void advance(const LambStep<math_t<T>>& step, int64_t i, Squares& add_to) const {
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
      add_to.of_values += static_cast<double>(value[k]) * static_cast<double>(value[k]);
      add_to.of_updates += static_cast<double>(update[k]) * static_cast<double>(update[k]);
    }
    store_numbers<N>(moment1, i, first);
    store_numbers<N>(moment2, i, second);
    store_elements<N>(updates, i, update);
  }
  template <int N>
  __device__ void apply(math_t<T> rate, int64_t i) const {
    math_t<T> value[N], update[N];
    float exact[N];
    load_values<N>(i, value);
    load_elements<N>(updates, i, update);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      value[k] = value[k] - rate * update[k];
      exact[k] = static_cast<float>(value[k]);
      if (master != nullptr) value[k] = static_cast<math_t<T>>(exact[k]);
    }
    if (master != nullptr) store_elements<N>(master, i, exact);
    store_numbers<N>(values, i, value);
  }
};

/// The arguments of a launch: at most 4 KB.
template <class T, class S, int Capacity>
struct LambSteps {
  LambCall call;
  int parameters;
  int64_t chunks;
  Squares* parts;  // for each chunk
  LambParameter<T, S> of[Capacity];
};

constexpr int kMergedLamb = 24;  // parameters of a launch

template <int N>
constexpr int64_t kLambChunk = int64_t{kElementThreads} * kPacksOfThread* N;

/// Packs that are not aligned are read and written one element after the other, so that sums are the same.
template <int N, class T, class S, int Capacity>
__global__ void lamb_updates(const __grid_constant__ LambSteps<T, S, Capacity> steps) {
  SHARD_SHARED(shared_step, LambStep<math_t<T>>);  // one thread reads the numbers, and divides in double
  const void* step_is_of = nullptr;
  for (int64_t chunk = blockIdx.x; chunk < steps.chunks; chunk += gridDim.x) {
    const auto& p = owner_of(steps.of, steps.parameters, chunk);
    if (p.skips()) continue;
    if (&p != step_is_of) {  // all have read the last one: block_reduce has barriers
      using C = math_t<T>;
      if (threadIdx.x == 0) {
        shared_step = {static_cast<C>(steps.call.beta1),
                       static_cast<C>(steps.call.beta2),
                       static_cast<C>(steps.call.epsilon),
                       static_cast<C>(steps.call.weight_decay),
                       static_cast<C>(1.0 / (1.0 - p.power1.read())),
                       static_cast<C>(1.0 / (1.0 - p.power2.read()))};
      }
      __syncthreads();
      step_is_of = &p;
    }
    const int64_t begin = (chunk - p.chunks_before) * kLambChunk<N>, end = min(begin + kLambChunk<N>, p.count);
    const LambStep<math_t<T>> step = shared_step;
    const bool aligned = p.template is_aligned<N>();
    Squares sums;
    for (int64_t i = begin / N + threadIdx.x; i < end / N; i += kElementThreads) {
      if (aligned) p.template advance<N>(step, i, sums);
      else
        for (int k = 0; k < N; ++k) p.template advance<1>(step, i * N + k, sums);
    }
    for (int64_t i = end / N * N + threadIdx.x; i < end; i += kElementThreads) p.template advance<1>(step, i, sums);
    sums = block_reduce<kElementThreads>(sums, AddSquares{});
    if (threadIdx.x == 0) steps.parts[chunk] = sums;
  }
}

/// A block for each parameter: the sums of its chunks, zeros in a step that is skipped, and the next powers of the betas.
template <class T, class S, int Capacity>
__global__ void lamb_sums(const __grid_constant__ LambSteps<T, S, Capacity> steps) {
  const auto& p = steps.of[blockIdx.x];
  const bool skips = p.skips();
  Squares sums;
#pragma unroll 4  // reads that do not wait for each other
  for (int64_t i = threadIdx.x; i < (skips ? 0 : p.chunks); i += kElementThreads)
    sums = AddSquares{}(sums, steps.parts[p.chunks_before + i]);
  sums = block_reduce<kElementThreads>(sums, AddSquares{});
  if (threadIdx.x != 0) return;
  *p.sums = sums;
  if (skips) return;
  p.power1.write(p.power1.read() * steps.call.beta1);
  p.power2.write(p.power2.read() * steps.call.beta2);
}

template <int N, class T, class S, int Capacity>
__global__ void lamb_apply(const __grid_constant__ LambSteps<T, S, Capacity> steps) {
  SHARD_SHARED(shared_rate, math_t<T>);
  const void* rate_is_of = nullptr;
  for (int64_t chunk = blockIdx.x; chunk < steps.chunks; chunk += gridDim.x) {
    const auto& p = owner_of(steps.of, steps.parameters, chunk);
    if (p.skips()) continue;
    if (&p != rate_is_of) {
      __syncthreads();  // all have read the last one
      if (threadIdx.x == 0) {
        const Squares sums = *p.sums;
        const LambCall& call = steps.call;
        const bool adapts = (call.weight_decay > 0 || call.always_adapt) && sums.of_values > 0 && sums.of_updates > 0;
        shared_rate =
            static_cast<math_t<T>>(p.learning_rate.read() * (adapts ? ::sqrt(sums.of_values / sums.of_updates) : 1.0));
      }
      __syncthreads();
      rate_is_of = &p;
    }
    const math_t<T> rate = shared_rate;
    const int64_t begin = (chunk - p.chunks_before) * kLambChunk<N>, end = min(begin + kLambChunk<N>, p.count);
    const int64_t packs_end = p.template is_aligned<N>() ? end / N : begin / N;
    for (int64_t i = begin / N + threadIdx.x; i < packs_end; i += kElementThreads) p.template apply<N>(rate, i);
    for (int64_t i = packs_end * N + threadIdx.x; i < end; i += kElementThreads) p.template apply<1>(rate, i);
  }
}

/// The launches of parameters whose moments have one dtype.
template <class T, class S, int Capacity>
class LambLaunches {
 public:
  explicit LambLaunches(const LambCall& call) : call_(call) {}

  void add(LambParameter<T, S> p) {
    if (all_.empty() || all_.back().parameters == Capacity) all_.push_back({call_, 0, 0, nullptr, {}});
    auto& steps = all_.back();
    p.chunks = divided_up(p.count, kLambChunk<kN>);
    p.chunks_before = steps.chunks;
    steps.chunks += p.chunks;
    steps.of[steps.parameters++] = p;
  }
  void advance(const OpContext& ctx) {
    for (auto& steps : all_) {
      const Scratch parts(static_cast<size_t>(steps.chunks) * sizeof(Squares));
      steps.parts = static_cast<Squares*>(parts.data());
      if (steps.chunks > 0) launch(ctx, lamb_updates<kN, T, S, Capacity>, grid_of(steps), kElementThreads, steps);
      launch(ctx, lamb_sums<T, S, Capacity>, static_cast<unsigned>(steps.parameters), kElementThreads, steps);
    }
  }
  void apply(const OpContext& ctx) const {
    for (const auto& steps : all_) {
      if (steps.chunks > 0) launch(ctx, lamb_apply<kN, T, S, Capacity>, grid_of(steps), kElementThreads, steps);
    }
  }

 private:
  static constexpr int kN = kTogether<T, S, float>;
  using Steps = LambSteps<T, S, Capacity>;
  static_assert(sizeof(Steps) <= 4096);
  static unsigned grid_of(const Steps& steps) { return grid_for(steps.chunks * kElementThreads, kElementThreads); }

  LambCall call_;
  std::vector<Steps> all_;
};

/// The steps of a list of parameters. Ranks combine the sums of all of them at once, over the axes that shard any: along
/// an axis that does not shard a parameter each rank counts it, in both of its sums alike, so that their ratio stays.
template <int Capacity, class T>
void lamb(const OpContext& ctx, Tensors, Tensors grad, Tensors learning_rate, Tensors, Tensors, Tensors, Tensors,
          Tensors, Tensors skip_update, float weight_decay, float beta1, float beta2, float epsilon, bool always_adapt,
          bool multi_precision, Outputs param, Outputs moment1, Outputs moment2, Outputs beta1_pow, Outputs beta2_pow,
          Outputs master_param) {
  using D = device_t<T>;
  const Device device = param[0].device();
  const DeviceScope scope(device.index);
  const LambCall call{static_cast<double>(beta1), static_cast<double>(beta2), static_cast<double>(epsilon),
                      static_cast<double>(weight_decay), always_adapt};
  const auto padded = [](const DenseTensor& x) { return (x.numel() + 15) / 16 * 16; };  // so that packs are aligned
  int64_t length = 0;
  for (const DenseTensor& x : param) length += padded(x);
  const Scratch updates(static_cast<size_t>(length) * sizeof(math_t<D>));
  auto* next = static_cast<math_t<D>*>(updates.data());
  DenseTensor all = DenseTensor::allocate(device, {Dims{static_cast<int64_t>(param.size()), 2}, DType::float64});
  Squares* const sums = reinterpret_cast<Squares*>(all.data<double>());

  LambLaunches<D, D, Capacity> like_param(call);
  LambLaunches<D, float, Capacity> in_float(call);
  for (size_t i = 0; i < param.size(); ++i) {
    const DenseTensor& skip = entry_of(skip_update, i);
    const auto add = [&]<class S>(LambLaunches<D, S, Capacity>& launches) {
      launches.add({elements<D>(param[i]), multi_precision ? elements<float>(master_param[i]) : nullptr,
                    elements<const D>(grad[i]), elements<S>(moment1[i]), elements<S>(moment2[i]), next,
                    DeviceNumber(entry_of(learning_rate, i)), DeviceNumber(beta1_pow[i]), DeviceNumber(beta2_pow[i]),
                    skip.defined() ? elements<const bool>(skip) : nullptr, sums + i, param[i].numel(), 0, 0});
    };
    if (moment1[i].dtype() == dtype_of<T>) add(like_param);
    else add(in_float);
    next += padded(param[i]);
  }
  like_param.advance(ctx);
  in_float.advance(ctx);
  ctx.all_reduce(all, ReduceType::sum);  // over the ranks that hold other parts of the parameters
  like_param.apply(ctx);
  in_float.apply(ctx);
}

}  // namespace

void register_lamb(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("lamb", backend, dtype_of<T>, &OfOne<&lamb<1, T>>::run);
    register_kernel("merged_lamb", backend, dtype_of<T>, &lamb<kMergedLamb, T>);
  });
}

}  // namespace shard::cuda
