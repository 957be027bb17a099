// logsumexp, var, std and norms of vectors on CUDA. Where other ranks hold parts of what is reduced, all of them add up
// what they have, in double.
#include <cmath>

#include "shard/kernels/cpu/reduce_plan.h"
#include "shard/kernels/cuda/channels.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/each.cuh"
#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/cuda/reduce.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

DenseTensor doubles_of(const DenseTensor& out) {
  return DenseTensor::allocate(out.device(), {out.dims(), DType::float64});
}

/// The largest element, and the sum of exp(x - largest).
template <class M>
struct Exponents {
  M largest, sum;
};

struct SumOfExponentials {
  template <class T>
  using Acc = Exponents<math_t<T>>;
  template <class A>
  __device__ A identity() const {
    return {-INFINITY, 0};
  }
  /// One exponential for each element. Equal infinities are no distance.
  template <class A, class T, int K>
  __device__ A add(A to, const T (&values)[K]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      using M = math_t<T>;
      const M x = load(values[k]);
      const bool larger = x > to.largest;
      const M factor = x == to.largest ? M(1) : static_cast<M>(::exp(larger ? to.largest - x : x - to.largest));
      to = {larger ? x : to.largest, larger ? to.sum * factor + 1 : to.sum + factor};
    }
    return to;
  }
  template <class M>
  __device__ Exponents<M> combine(const Exponents<M>& a, const Exponents<M>& b) const {
    const M largest = a.largest > b.largest ? a.largest : b.largest;
    return {largest, scaled(a, largest) + scaled(b, largest)};
  }
  /// The sum of exp(x - largest).
  template <class M, class L>
  static __device__ L scaled(const Exponents<M>& part, L largest) {
    const L own = static_cast<L>(part.largest), sum = static_cast<L>(part.sum);
    return own == largest ? sum : sum * static_cast<L>(::exp(own - largest));
  }
};
struct Logarithm {
  template <class Out, class M>
  __device__ __forceinline__ Out operator()(const Exponents<M>& all) const {
    return round_to<Out>(::log(static_cast<double>(all.sum)) + static_cast<double>(all.largest));
  }
};

template <class M>
struct TakeLargest {
  const Exponents<M>* mine;
  double* largest;
  __device__ void operator()(int64_t i) const { largest[i] = static_cast<double>(mine[i].largest); }
};
template <class M>
struct ScaleToLargest {
  const Exponents<M>* mine;
  const double* largest;
  double* sums;
  __device__ void operator()(int64_t i) const { sums[i] = SumOfExponentials::scaled(mine[i], largest[i]); }
};
template <class T>
struct LogarithmOfAll {
  const double *largest, *sums;
  T* out;
  __device__ void operator()(int64_t i) const {
    out[i] = Logarithm{}.template operator()<T>(Exponents<double>{largest[i], sums[i]});
  }
};

template <class T>
void logsumexp(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, bool all, DenseTensor& out) {
  using D = device_t<T>;
  using M = math_t<D>;
  const DeviceScope scope(out.device().index);
  const IntArray along = all ? IntArray() : axes;
  const int64_t n = out.numel();
  D* const to = elements<D>(out);
  if (ctx.reducer() == nullptr) return reduction::reduce<D>(ctx, x, along, n, to, SumOfExponentials{}, Logarithm{});
  const Scratch parts(static_cast<size_t>(n) * sizeof(Exponents<M>));
  Exponents<M>* const mine = static_cast<Exponents<M>*>(parts.data());
  reduction::reduce<D>(ctx, x, along, n, mine, SumOfExponentials{}, reduction::Keep{});
  DenseTensor largest = doubles_of(out), sums = doubles_of(out);
  for_each(ctx, n, TakeLargest<M>{mine, largest.data<double>()});
  ctx.all_reduce(largest, ReduceType::max);
  for_each(ctx, n, ScaleToLargest<M>{mine, largest.data<double>(), sums.data<double>()});
  ctx.all_reduce(sums, ReduceType::sum);
  for_each(ctx, n, LogarithmOfAll<D>{largest.data<double>(), sums.data<double>(), to});
}

/// The number, the mean, and the sum of squared distances from the mean, pack by pack.
struct MomentsOfElements {
  template <class T>
  using Acc = Moments<math_t<T>>;
  template <class A>
  __device__ A identity() const {
    return {0, 0, 0};
  }
  template <class A, class T, int K>
  __device__ A add(A to, const T (&values)[K]) const {
    using M = math_t<T>;
    M sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) sum += load(values[k]);
    const M mean = sum / K;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const M distance = load(values[k]) - mean;
      squares += distance * distance;
    }
    return combine(to, A{K, mean, squares});
  }
  template <class M>
  __device__ Moments<M> combine(const Moments<M>& a, const Moments<M>& b) const {
    return MomentSums<M>{}.then(a, b);
  }
};

struct Variance {
  double divisor;
  bool root;
  template <class Out>
  __device__ __forceinline__ Out of(double squares) const {
    return round_to<Out>(root ? ::sqrt(squares / divisor) : squares / divisor);
  }
  template <class Out, class M>
  __device__ __forceinline__ Out operator()(const Moments<M>& all) const {
    return of<Out>(static_cast<double>(all.squares));
  }
};

template <class M>
struct SumOfMoments {
  const Moments<M>* mine;
  double* sums;
  __device__ void operator()(int64_t i) const {
    sums[i] = static_cast<double>(mine[i].count) * static_cast<double>(mine[i].mean);
  }
};
template <class M>
struct SquaresAboutMean {
  const Moments<M>* mine;
  const double* sums;
  double count;
  double* squares;
  __device__ void operator()(int64_t i) const {
    const double distance = static_cast<double>(mine[i].mean) - sums[i] / count;
    squares[i] = mine[i].count == 0
                     ? 0
                     : static_cast<double>(mine[i].squares) + static_cast<double>(mine[i].count) * distance * distance;
  }
};
template <class T>
struct VarianceOfAll {
  const double* squares;
  Variance variance;
  T* out;
  __device__ void operator()(int64_t i) const { out[i] = variance.of<T>(squares[i]); }
};

template <class T, bool root>
void variance(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool unbiased, bool, DenseTensor& out) {
  using D = device_t<T>;
  using M = math_t<D>;
  const DeviceScope scope(out.device().index);
  const double count = cpu::reduced_count(ctx, ctx.input_box(0, x).global, axes);
  const Variance finish{unbiased && count > 0 ? std::max(count - 1, 1.0) : count, root};
  const int64_t n = out.numel();
  D* const to = elements<D>(out);
  if (ctx.reducer() == nullptr) return reduction::reduce<D>(ctx, x, axes, n, to, MomentsOfElements{}, finish);
  const Scratch parts(static_cast<size_t>(n) * sizeof(Moments<M>));
  Moments<M>* const mine = static_cast<Moments<M>*>(parts.data());
  reduction::reduce<D>(ctx, x, axes, n, mine, MomentsOfElements{}, reduction::Keep{});
  DenseTensor sums = doubles_of(out), squares = doubles_of(out);
  for_each(ctx, n, SumOfMoments<M>{mine, sums.data<double>()});
  ctx.all_reduce(sums, ReduceType::sum);
  for_each(ctx, n, SquaresAboutMean<M>{mine, sums.data<double>(), count, squares.data<double>()});
  ctx.all_reduce(squares, ReduceType::sum);
  for_each(ctx, n, VarianceOfAll<D>{squares.data<double>(), finish, to});
}

struct SumOfSquares : reduction::Sum {
  template <class A, class T>
  __device__ A term(T value) const {
    const A number = static_cast<A>(load(value));
    return number * number;
  }
};

enum class Order { zero, one, other, largest, smallest };

Order kind_of(double order) {
  if (order == 0) return Order::zero;
  if (order == 1) return Order::one;
  if (!std::isinf(order)) return Order::other;
  return order > 0 ? Order::largest : Order::smallest;
}

/// How absolute values are combined to a norm of an order but 2: one kernel for all of these orders, which differ little.
struct CombinedSizes {
  Order kind;
  double order;

  explicit CombinedSizes(double porder) : kind(kind_of(porder)), order(porder) {}

  template <class T>
  using Acc = math_t<T>;
  template <class A>
  __device__ A identity() const {
    return kind == Order::smallest ? A(INFINITY) : A(0);
  }
  template <class A, class T>
  __device__ A term(T value) const {
    const A size = ::fabs(load(value));
    if (kind == Order::zero) return size != 0 ? 1 : 0;
    return kind == Order::other ? static_cast<A>(::pow(size, static_cast<A>(order))) : size;
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    if (kind == Order::largest) return reduction::Max{}.combine(a, b);
    return kind == Order::smallest ? reduction::Min{}.combine(a, b) : a + b;
  }
};

/// Of a negative order the norm of no elements is infinite.
struct Root {
  double order;
  bool has_root;

  explicit Root(double porder) : order(porder), has_root(kind_of(porder) == Order::other) {}

  template <class Out, class A>
  __device__ __forceinline__ Out operator()(A of) const {
    const double total = static_cast<double>(of);
    if (order == 2) return round_to<Out>(::sqrt(total));
    return round_to<Out>(has_root ? ::pow(total, 1 / order) : total);
  }
};
template <class T>
struct RootOfAll {
  const double* totals;
  Root root;
  T* out;
  __device__ void operator()(int64_t i) const { out[i] = root.template operator()<T>(totals[i]); }
};

template <class T, class Op>
void norm_of(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, const Op& op, double order,
             ReduceType type, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const int64_t n = out.numel();
  if (ctx.reducer() == nullptr) return reduction::reduce<D>(ctx, x, axes, n, elements<D>(out), op, Root(order));
  DenseTensor totals = doubles_of(out);
  reduction::reduce<D>(ctx, x, axes, n, totals.data<double>(), op, reduction::Keep{});
  ctx.all_reduce(totals, type);
  for_each(ctx, n, RootOfAll<D>{totals.data<double>(), Root(order), elements<D>(out)});
}

template <class T>
void p_norm(const OpContext& ctx, const DenseTensor& x, float porder, int axis, float, bool, bool asvector,
            DenseTensor& out) {
  const IntArray axes = asvector ? IntArray() : IntArray{axis};
  if (porder == 2) return norm_of<T>(ctx, x, axes, SumOfSquares{}, 2, ReduceType::sum, out);
  const ReduceType type = !std::isinf(porder) ? ReduceType::sum : porder > 0 ? ReduceType::max : ReduceType::min;
  norm_of<T>(ctx, x, axes, CombinedSizes(porder), porder, type, out);
}
template <class T>
void frobenius_norm(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, bool all,
                    DenseTensor& out) {
  norm_of<T>(ctx, x, all ? IntArray() : axes, SumOfSquares{}, 2, ReduceType::sum, out);
}

/// Of the local shard: sums of others are pending.
template <class T, class Op>
void total_of(const OpContext& ctx, const DenseTensor& x, DenseTensor& out, const Op& op) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  reduction::reduce<D>(ctx, x, {}, 1, elements<D>(out), op, reduction::Keep{});
}
template <class T>
void squared_l2_norm(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  total_of<T>(ctx, x, out, SumOfSquares{});
}
template <class T>
void l1_norm(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  total_of<T>(ctx, x, out, CombinedSizes(1));
}

/// A line over its norm. `totals`: the sums of squares of lines of which other ranks hold parts, else null.
template <class T>
struct UnitLine {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T *out, *norms;
  const double* totals;
  double epsilon;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    double squares = 0;
    if (totals != nullptr) {
      squares = totals[line.index];
    } else {
      M mine = 0;
      line.each([&](int64_t, const auto& x) { mine += x[0] * x[0]; });
      squares = static_cast<double>(line.reduce(mine, Plus{}));
    }
    const M norm = static_cast<M>(::sqrt(squares + epsilon));
    line.write(out, [&](int64_t, const auto& x) { return x[0] / norm; });
    if (line.leads()) norms[line.index] = store<T>(norm);
  }
};

/// The norms of lines whose elements are apart, also in the type of arithmetic, and the elements over them. A thread for each element: there may
/// be few long lines.
template <class T>
struct RootsOfLines {
  const double* totals;
  double epsilon;
  math_t<T>* roots;
  T* norms;
  __device__ void operator()(int64_t i) const {
    roots[i] = static_cast<math_t<T>>(::sqrt(totals[i] + epsilon));
    norms[i] = store<T>(roots[i]);
  }
};
template <class T>
struct OverRoots {
  const T* x;
  const math_t<T>* roots;
  int64_t elements_of_outer, inner;
  T* out;
  __device__ void operator()(int64_t i) const {
    int64_t line = 0;
    if (i >> 31 == 0 && elements_of_outer >> 31 == 0) {  // divisions of 32 bits take a fraction of the time
      const uint32_t at = static_cast<uint32_t>(i), each = static_cast<uint32_t>(inner);
      line = at / static_cast<uint32_t>(elements_of_outer) * each + at % each;
    } else {
      line = i / elements_of_outer * inner + i % inner;
    }
    out[i] = store<T>(load(x[i]) / roots[line]);
  }
};

template <class T>
void norm(const OpContext& ctx, const DenseTensor& x, int axis, float epsilon, bool, DenseTensor& out,
          DenseTensor& norm) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const LineShape shape = line_shape(ctx, x.dims(), axis);
  DenseTensor totals;
  if (ctx.reducer() != nullptr || shape.inner > 1) {
    totals = doubles_of(norm);
    reduction::reduce<D>(ctx, x, {axis}, norm.numel(), totals.data<double>(), SumOfSquares{}, reduction::Keep{});
    ctx.all_reduce(totals, ReduceType::sum);  // nothing where lines are whole
  }
  if (shape.inner > 1) {
    const Scratch scratch(static_cast<size_t>(norm.numel()) * sizeof(math_t<D>));
    auto* const roots = static_cast<math_t<D>*>(scratch.data());
    for_each(ctx, norm.numel(), RootsOfLines<D>{totals.data<double>(), epsilon, roots, elements<D>(norm)});
    return for_each(ctx, x.numel(),
                    OverRoots<D>{elements<const D>(x), roots, shape.size * shape.inner, shape.inner, elements<D>(out)});
  }
  const double* const sums = totals.defined() ? totals.data<double>() : nullptr;
  launch_lines(ctx, UnitLine<D>{{elements<const D>(x)}, elements<D>(out), elements<D>(norm), sums, epsilon}, shape);
}

}  // namespace

void register_statistics(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("logsumexp", backend, dtype_of<T>, logsumexp<T>);
    register_kernel("var", backend, dtype_of<T>, variance<T, false>);
    register_kernel("std", backend, dtype_of<T>, variance<T, true>);
    register_kernel("p_norm", backend, dtype_of<T>, p_norm<T>);
    register_kernel("frobenius_norm", backend, dtype_of<T>, frobenius_norm<T>);
    register_kernel("squared_l2_norm", backend, dtype_of<T>, squared_l2_norm<T>);
    register_kernel("norm", backend, dtype_of<T>, norm<T>);
    register_kernel("l1_norm", backend, dtype_of<T>, l1_norm<T>);
  });
}

}  // namespace shard::cuda
