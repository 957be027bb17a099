// Running sums, products, best elements and logarithms of sums on CUDA, and the gradient of running products.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/scan.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

template <class T>
__device__ T comparable(const T& value) {
  return value;
}

#include "shard/kernels/formulas/running.inc"

Lines lines_of(const OpContext& ctx, const DenseTensor& x, int64_t axis, bool flatten = false, bool reverse = false) {
  Lines lines = flatten ? Lines{1, x.numel(), 1} : lines_along(ctx, x.dims(), axis);
  lines.reverse = reverse;
  return lines;
}

/// The type of running values: double for floats, so that long lines keep their accuracy, and the unsigned type of integers,
/// which wrap.
template <class T, bool = std::is_integral_v<T>>
struct RunningType {
  using type = double;
};
template <class T>
struct RunningType<T, true> {
  using type = std::make_unsigned_t<T>;
};

template <class D>
struct RunningSum {
  using State = typename RunningType<D>::type;
  static constexpr bool kExclusive = true;
  const D* x;
  D* out;
  bool exclusive;

  __device__ State nothing() const { return 0; }
  __device__ State element(int64_t place, int64_t) const { return static_cast<State>(load(x[place])); }
  __device__ State then(State before, State next) const { return static_cast<State>(before + next); }
  __device__ void write(int64_t place, State state) const {
    if constexpr (std::is_integral_v<D>) out[place] = static_cast<D>(state);
    else out[place] = round_to<D>(state);
  }
};

template <class D>
struct RunningProduct {
  using State = std::conditional_t<std::is_integral_v<D>, uint64_t, Scaled>;
  static constexpr bool kExclusive = false;
  const D* x;
  D* out;

  __device__ State nothing() const {
    if constexpr (std::is_integral_v<D>) return 1;
    else return Scaled{};
  }
  __device__ State element(int64_t place, int64_t) const {
    if constexpr (std::is_integral_v<D>) return static_cast<State>(x[place]);
    else return Scaled::of(load(x[place]));
  }
  __device__ State then(const State& before, const State& next) const {
    if constexpr (std::is_integral_v<D>) return before * next;
    else return before.times(next);
  }
  __device__ void write(int64_t place, const State& state) const {
    if constexpr (std::is_integral_v<D>) out[place] = static_cast<D>(state);
    else out[place] = round_to<D>(state.value());
  }
};

template <class D, class Replaces>
struct RunningBest {
  using State = Best<math_t<D>>;
  static constexpr bool kExclusive = false;
  const D* x;
  D* out;
  int64_t* indices;  // one of these is null
  int32_t* short_indices;
  int64_t first;  // of the whole line: the index of the first element that is here

  __device__ State nothing() const { return {}; }
  __device__ State element(int64_t place, int64_t k) const { return {first + k, load(x[place])}; }
  __device__ State then(const State& before, const State& next) const { return before.then(next, Replaces()); }
  __device__ void write(int64_t place, const State& state) const {
    out[place] = store<D>(state.value);
    if (indices != nullptr) indices[place] = state.index;
    else short_indices[place] = static_cast<int32_t>(state.index);
  }
};

template <class D>
struct RunningLogSum {
  using State = double;
  static constexpr bool kExclusive = true;
  const D* x;
  D* out;
  bool exclusive;

  __device__ State nothing() const { return -INFINITY; }
  __device__ State element(int64_t place, int64_t) const { return load(x[place]); }
  __device__ State then(State before, State next) const { return log_add(before, next); }
  __device__ void write(int64_t place, State state) const { out[place] = round_to<D>(state); }
};

template <class T>
void cumsum(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, bool exclusive, bool reverse,
            DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  run_scan_of_ranks(ctx, RunningSum<D>{elements<const D>(x), elements<D>(out), exclusive},
                    lines_of(ctx, x, axis.to<int64_t>(), flatten, reverse), x.device());
}

template <class T>
void cumprod(const OpContext& ctx, const DenseTensor& x, int dim, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  run_scan_of_ranks(ctx, RunningProduct<D>{elements<const D>(x), elements<D>(out)}, lines_of(ctx, x, dim), x.device());
}

template <class T, class Replaces>
void running_best(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices) {
  using D = std::conditional_t<std::is_same_v<T, bool>, uint8_t, device_t<T>>;
  const DeviceScope scope(out.device().index);
  const bool is_long = indices.dtype() == DType::int64;
  const int rank = x.dims().rank();
  const int64_t first = rank == 0 ? 0 : ctx.input_box(0, x).begin[normalize_axis(ctx.op, "axis", axis, rank)];
  run_scan_of_ranks(
      ctx,
      RunningBest<D, Replaces>{elements<const D>(x), elements<D>(out), is_long ? elements<int64_t>(indices) : nullptr,
                               is_long ? nullptr : elements<int32_t>(indices), first},
      lines_of(ctx, x, axis), x.device());
}

template <class T>
void logcumsumexp(const OpContext& ctx, const DenseTensor& x, int axis, bool flatten, bool exclusive, bool reverse,
                  DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  run_scan_of_ranks(ctx, RunningLogSum<D>{elements<const D>(x), elements<D>(out), exclusive},
                    lines_of(ctx, x, axis, flatten, reverse), x.device());
}

/// Before the first 0 of a line, an element times its gradient is the sum of out_grad * out from there on.
template <class D>
struct GradSums {
  using State = double;
  static constexpr bool kExclusive = false;
  const D *x, *out, *out_grad;
  D* x_grad;

  __device__ State nothing() const { return 0; }
  __device__ State element(int64_t place, int64_t) const {
    return static_cast<double>(load(out_grad[place])) * static_cast<double>(load(out[place]));
  }
  __device__ State then(State before, State next) const { return before + next; }
  __device__ void write(int64_t place, State state) const { x_grad[place] = round_to<D>(state / load(x[place])); }
};

/// The gradient of the first 0 of each line has the products without it; what comes after it has no influence. One warp for each
/// line: lines without a 0 are only read.
template <class D>
__global__ void grads_from_zero(const D* x, const D* out, const D* out_grad, D* x_grad, Lines lines) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t line = blockIdx.x; line < lines.count(); line += gridDim.x) {
    int64_t zero = lines.size;
    for (int64_t begin = 0; begin < lines.size && zero == lines.size; begin += kWarp) {
      const bool is_zero = begin + lane < lines.size && load(x[lines.place(line, begin + lane)]) == 0;
      const unsigned zeros = __ballot_sync(kAllLanes, is_zero);
      if (zeros != 0) zero = begin + __ffs(static_cast<int>(zeros)) - 1;
    }
    if (zero == lines.size) continue;
    double product = zero == 0 ? 1.0 : static_cast<double>(load(out[lines.place(line, zero - 1)])), sum = 0;
    for (int64_t begin = zero; begin < lines.size; begin += kWarp) {
      const int64_t k = begin + lane, place = lines.place(line, k < lines.size ? k : zero);
      const double factor = k > zero && k < lines.size ? static_cast<double>(load(x[place])) : 1.0;
      const auto times = [](double a, double b) { return a * b; };
      const double here = product * warp_scan(factor, times);
      if (k < lines.size) {
        sum += static_cast<double>(load(out_grad[place])) * here;
        if (k > zero) x_grad[place] = round_to<D>(0.0);
      }
      product = shuffle_from(here, kWarp - 1);
    }
    sum = warp_reduce(sum, [](double a, double b) { return a + b; });
    if (lane == 0) x_grad[lines.place(line, zero)] = round_to<D>(sum);
  }
}

template <class T>
void cumprod_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out, const DenseTensor& out_grad,
                  int dim, DenseTensor& x_grad) {
  using D = device_t<T>;
  const DeviceScope scope(x_grad.device().index);
  Lines lines = lines_of(ctx, x, dim);
  if (x.numel() == 0) return;
  const D *from = elements<const D>(x), *products = elements<const D>(out), *grads = elements<const D>(out_grad);
  lines.reverse = true;
  run_scan(ctx, GradSums<D>{from, products, grads, elements<D>(x_grad)}, lines);
  lines.reverse = false;
  launch(ctx, grads_from_zero<D>, grid_for(lines.count() * kWarp, kWarp), kWarp, from, products, grads,
         elements<D>(x_grad), lines);
}

}  // namespace

void register_running(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("cumprod_grad", backend, dtype_of<T>, &cumprod_grad<T>);
    register_kernel("logcumsumexp", backend, dtype_of<T>, &logcumsumexp<T>);
  });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("cumsum", backend, dtype_of<T>, &cumsum<T>);
    register_kernel("cumprod", backend, dtype_of<T>, &cumprod<T>);
  });
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("cummax", backend, dtype_of<T>, &running_best<T, NotBelow>);
    register_kernel("cummin", backend, dtype_of<T>, &running_best<T, NotAbove>);
  });
}

}  // namespace shard::cuda
