// Elementwise ops of several dtypes on CUDA: where, isclose, allclose, dropout and its gradient, label_smooth.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/map.cuh"
#include "shard/kernels/cuda/philox.cuh"

namespace shard::cuda {
namespace {

/// Elements are copied as integers of their size.
template <class Bits>
struct WhereBody {
  static constexpr int kInputs = 3, kPack = kTogether<Bits>;
  const bool* condition;
  const Bits *x, *y;
  Bits* out;

  __device__ void run(const ResultPack<kPack, kInputs>& pack) const {
    bool chosen[kPack];
    Bits a[kPack], b[kPack];
    pack.read(0, condition, chosen);
    pack.read(1, x, a);
    pack.read(2, y, b);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (pack.has(k) && !chosen[k]) a[k] = b[k];
    }
    pack.write(out, a);
  }
};

template <class Bits>
void where_bits(const OpContext& ctx, const DenseTensor& condition, const DenseTensor& x, const DenseTensor& y,
                DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  map_broadcast(ctx, out, {&condition, &x, &y},
                WhereBody<Bits>{elements<const bool>(condition), elements<const Bits>(x), elements<const Bits>(y),
                                elements<Bits>(out)});
}

void where(const OpContext& ctx, const DenseTensor& condition, const DenseTensor& x, const DenseTensor& y,
           DenseTensor& out) {
  const DenseTensor* const inputs[] = {&condition, &x, &y};
  constexpr auto alone = [](const OpContext& its_ctx, const LoopCall&, std::span<const DenseTensor> in,
                            DenseTensor& result) { where(its_ctx, in[0], in[1], in[2], result); };
  if (out.numel() != 0 && loop_is_open() &&
      join_loop({.op = ctx.op, .name = "choose", .inputs = inputs, .out = &out, .launch_alone = alone}))
    return;
  switch (size_of(x.dtype())) {
    case 1: return where_bits<uint8_t>(ctx, condition, x, y, out);
    case 2: return where_bits<uint16_t>(ctx, condition, x, y, out);
    case 4: return where_bits<uint32_t>(ctx, condition, x, y, out);
    default: return where_bits<uint64_t>(ctx, condition, x, y, out);
  }
}

#include "shard/kernels/formulas/closeness.inc"

/// Formulas have at most two numbers, so that there are two of them.
template <bool equal_nan>
struct IsClose {
  template <class C>
  static __device__ bool apply(C a, C b, const Numbers<C>& p) {
    return is_close(a, b, p.first, p.second, equal_nan);
  }
};

/// Integers are compared as doubles, in which their difference does not wrap.
template <class T>
using CloseMath = std::conditional_t<std::is_floating_point_v<math_t<device_t<T>>>, math_t<device_t<T>>, double>;

template <class T>
void isclose(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const Scalar& rtol, const Scalar& atol,
             bool equal_nan, DenseTensor& out) {
  using C = CloseMath<T>;
  const Numbers<C> limits{static_cast<C>(rtol.to<double>()), static_cast<C>(atol.to<double>())};
  const auto run = equal_nan ? &run_elementwise<IsClose<true>, C, device_t<T>, bool, 2>
                             : &run_elementwise<IsClose<false>, C, device_t<T>, bool, 2>;
  run(ctx, {&x, &y}, out, limits);
}

/// Whether the elements of each block are all close.
template <class T, class C>
__global__ void all_close_blocks(int64_t count, const T* x, const T* y, C rtol, C atol, bool equal_nan,
                                 unsigned* of_blocks) {
  unsigned close = 1;
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += step) {
    if (!is_close(static_cast<C>(load(x[i])), static_cast<C>(load(y[i])), rtol, atol, equal_nan)) close = 0;
  }
  close = block_reduce<kElementThreads>(close, [](unsigned a, unsigned b) { return a & b; });
  if (threadIdx.x == 0) of_blocks[blockIdx.x] = close;
}

__global__ void all_of(int64_t count, const unsigned* flags, bool* out) {
  unsigned all = 1;
  for (int64_t i = threadIdx.x; i < count; i += kElementThreads) all &= flags[i];
  all = block_reduce<kElementThreads>(all, [](unsigned a, unsigned b) { return a & b; });
  if (threadIdx.x == 0) *out = all != 0;
}

template <class T>
void allclose(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const Scalar& rtol, const Scalar& atol,
              bool equal_nan, DenseTensor& out) {
  using C = CloseMath<T>;
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const unsigned blocks = grid_for(x.numel(), kElementThreads);
  const Scratch flags(blocks * sizeof(unsigned));
  unsigned* const of_blocks = static_cast<unsigned*>(flags.data());
  launch(ctx, all_close_blocks<D, C>, blocks, kElementThreads, x.numel(), elements<const D>(x), elements<const D>(y),
         static_cast<C>(rtol.to<double>()), static_cast<C>(atol.to<double>()), equal_nan, of_blocks);
  launch(ctx, all_of, 1, kElementThreads, int64_t{blocks}, of_blocks, elements<bool>(out));
}

/// Multiplies by a factor and keeps an element if its random number is at least p.
template <class T>
struct DropoutBody {
  const T* x;
  T* out;
  uint8_t* mask;
  RandomKey key;
  const void* seed_tensor;  // null: the key is as given
  bool seed_is_wide;
  GlobalIndex index;
  math_t<T> factor;
  float p;

  template <int N>
  __device__ void run(int64_t i) const {
    RandomKey own = key;
    if (seed_tensor != nullptr) {
      own = {static_cast<uint64_t>(seed_is_wide ? *static_cast<const int64_t*>(seed_tensor)
                                                : int64_t{*static_cast<const int32_t*>(seed_tensor)}),
             0};
    }
    math_t<T> values[N];
    uint8_t kept[N];
    load_numbers<N>(x, i, values);
    PhiloxWords words(own);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const bool keeps = uniform_fraction(words.at(static_cast<uint64_t>(index.of(i * N + k)))) >= p;
      values[k] = keeps ? values[k] * factor : math_t<T>(0);
      kept[k] = keeps ? 1 : 0;
    }
    store_numbers<N>(out, i, values);
    store_elements<N>(mask, i, kept);
  }
};

/// Dropout in tests: x times a factor, and a mask of ones.
template <class T>
struct KeepBody {
  const T* x;
  T* out;
  uint8_t* mask;
  math_t<T> factor;

  template <int N>
  __device__ void run(int64_t i) const {
    math_t<T> values[N];
    uint8_t kept[N];
    load_numbers<N>(x, i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      values[k] *= factor;
      kept[k] = 1;
    }
    store_numbers<N>(out, i, values);
    store_elements<N>(mask, i, kept);
  }
};

template <class T>
void dropout(const OpContext& ctx, const DenseTensor& x, const DenseTensor& seed_tensor, const Scalar& p, bool is_test,
             const std::string& mode, int seed, bool fix_seed, RandomKey drawn, DenseTensor& out, DenseTensor& mask) {
  using D = device_t<T>;
  using C = math_t<D>;
  const DeviceScope scope(out.device().index);
  const bool upscale = mode == "upscale_in_train";
  const C keep = static_cast<C>(1.0 - p.to<double>());
  const D* const from = elements<const D>(x);
  D* const to = elements<D>(out);
  uint8_t* const kept = elements<uint8_t>(mask);
  if (is_test) {
    return map(ctx, x.numel(), KeepBody<D>{from, to, kept, upscale ? C(1) : keep}, from, static_cast<const D*>(to),
               static_cast<const uint8_t*>(kept));
  }
  const bool fixed = fix_seed || seed != 0;
  const RandomKey key = fixed ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn;
  const DropoutBody<D> body{from,
                            to,
                            kept,
                            key,
                            seed_tensor.defined() ? seed_tensor.raw() : nullptr,
                            seed_tensor.defined() && seed_tensor.dtype() == DType::int64,
                            GlobalIndex(ctx.input_box(0, x), x.dims()),
                            upscale && keep != C(0) ? C(1) / keep : C(1),
                            p.to<float>()};
  map(ctx, x.numel(), body, from, static_cast<const D*>(to), static_cast<const uint8_t*>(kept));
}

template <class T>
struct DropoutGradBody {
  const uint8_t* mask;
  const T* out_grad;
  T* x_grad;
  math_t<T> factor;

  template <int N>
  __device__ void run(int64_t i) const {
    uint8_t kept[N];
    math_t<T> values[N];
    load_elements<N>(mask, i, kept);
    load_numbers<N>(out_grad, i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = kept[k] != 0 ? values[k] * factor : math_t<T>(0);
    store_numbers<N>(x_grad, i, values);
  }
};

template <class T>
void dropout_grad(const OpContext& ctx, const DenseTensor& mask, const DenseTensor& out_grad, const Scalar& p,
                  bool is_test, const std::string& mode, DenseTensor& x_grad) {
  using D = device_t<T>;
  using C = math_t<D>;
  const DeviceScope scope(x_grad.device().index);
  const C keep = static_cast<C>(1.0 - p.to<double>());
  const bool upscale = mode == "upscale_in_train";
  const C factor = upscale == is_test ? C(1) : is_test ? keep : keep == C(0) ? C(1) : C(1) / keep;
  const DropoutGradBody<D> body{elements<const uint8_t>(mask), elements<const D>(out_grad), elements<D>(x_grad),
                                factor};
  map(ctx, out_grad.numel(), body, body.mask, body.out_grad, static_cast<const D*>(body.x_grad));
}

struct Smooth {
  template <class C>
  static __device__ C apply(C label, const Numbers<C>& p) {
    return p.first * label + p.second;
  }
};
/// The numbers are 1 - epsilon and epsilon.
struct SmoothTo {
  template <class C>
  static __device__ C apply(C label, C prior, const Numbers<C>& p) {
    return p.first * label + p.second * prior;
  }
};

/// The classes are the last dim of the whole label.
template <class T>
void label_smooth(const OpContext& ctx, const DenseTensor& label, const DenseTensor& prior, float epsilon,
                  DenseTensor& out) {
  using D = device_t<T>;
  using C = math_t<D>;
  const Dims global = ctx.input_box(0, label).global;
  const C share = static_cast<C>(epsilon), keep = C(1) - share;
  if (!prior.defined()) {
    const Numbers<C> numbers{keep, share / static_cast<C>(global[global.rank() - 1])};
    return run_elementwise<Smooth, C, D, D, 1>(ctx, {&label}, out, numbers);
  }
  run_elementwise<SmoothTo, C, D, D, 2>(ctx, {&label, &prior}, out, Numbers<C>{keep, share});
}

}  // namespace

void register_mixed(int backend) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("where", backend, dtype_of<T>, &where); });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("isclose", backend, dtype_of<T>, &isclose<T>);
    register_kernel("allclose", backend, dtype_of<T>, &allclose<T>);
  });
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("dropout", backend, dtype_of<T>, &dropout<T>);
    register_kernel("dropout_grad", backend, dtype_of<T>, &dropout_grad<T>);
    register_kernel("label_smooth", backend, dtype_of<T>, &label_smooth<T>);
  });
}

}  // namespace shard::cuda
