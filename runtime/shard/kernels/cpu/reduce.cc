// CPU kernels of reductions: sum, mean, max, min, prod, all, any, norms; and numel. argmax and
// cumsum are in scan.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/reduce.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <vector>

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/reduce_plan.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// Integers and bools add up modulo 2^64, to an int64.
template <class T>
using SumOf = std::conditional_t<is_float<T>, Compute<T>, uint64_t>;
template <class T>
using ResultOfSum = std::conditional_t<is_float<T>, T, int64_t>;
/// The largest and smallest are compared without conversion; bools as bytes, so that std::vector
/// holds plain elements.
template <class T>
using ExtremeOf = std::conditional_t<std::is_same_v<T, bool>, uint8_t, Compute<T>>;
/// The type in which results of blocks are added up. The order of blocks is fixed, so that results
/// do not depend on threads.
template <class C>
using Total = std::conditional_t<std::is_same_v<C, float>, double, C>;

struct Sum {
  template <class T>
  using Acc = SumOf<T>;
  template <class T>
  using Result = ResultOfSum<T>;
  template <class C>
  static C identity() {
    return C(0);
  }
  template <class C>
  static C combine(C a, C b) {
    return a + b;
  }
};
struct Prod {
  template <class T>
  using Acc = SumOf<T>;
  template <class T>
  using Result = ResultOfSum<T>;
  template <class C>
  static C identity() {
    return C(1);
  }
  template <class C>
  static C combine(C a, C b) {
    return a * b;
  }
};
struct Max {
  template <class T>
  using Acc = ExtremeOf<T>;
  template <class T>
  using Result = T;
  template <class C>
  static C identity() {
    return lowest<C>();
  }
  template <class C>
  static C combine(C a, C b) {
    return Larger()(a, b);
  }
};
struct Min {
  template <class T>
  using Acc = ExtremeOf<T>;
  template <class T>
  using Result = T;
  template <class C>
  static C identity() {
    return highest<C>();
  }
  template <class C>
  static C combine(C a, C b) {
    return Smaller()(a, b);
  }
};

/// Truth values as bytes, so that std::vector holds plain elements.
struct All {
  template <class T>
  using Acc = uint8_t;
  template <class T>
  using Result = bool;
  template <class C>
  static C identity() {
    return C(1);
  }
  template <class C>
  static C combine(C a, C b) {
    return static_cast<C>(a & b);
  }
};
struct Any {
  template <class T>
  using Acc = uint8_t;
  template <class T>
  using Result = bool;
  template <class C>
  static C identity() {
    return C(0);
  }
  template <class C>
  static C combine(C a, C b) {
    return static_cast<C>(a | b);
  }
};
struct SumOfSquares {
  template <class T>
  using Acc = Statistic<T>;
  template <class C>
  static C identity() {
    return C(0);
  }
  template <class C>
  static C combine(C a, C b) {
    return a + b;
  }
};

/// The contribution of an element to its reduction.
template <class Op, class C, class T>
C element(T x) {
  if constexpr (std::is_same_v<Op, All> || std::is_same_v<Op, Any>)
    return static_cast<C>(static_cast<Compute<T>>(x) != Compute<T>(0));
  else if constexpr (std::is_same_v<Op, SumOfSquares>) return static_cast<C>(x) * static_cast<C>(x);
  else return static_cast<C>(x);
}

/// element() of contiguous numbers, and of packs of them. The hardware prefetches within a page of 4096 bytes only, so each pack
/// asks for those `ahead` elements after it, which must be read soon: other lines only take bandwidth.
template <class Op, class C, class T>
struct Elements {
  const T* x;
  int64_t ahead = int64_t{4096 / sizeof(T)};

  HWY_INLINE C operator()(int64_t i) const { return element<Op, C>(x[i]); }
  HWY_INLINE Pack<C> pack(int64_t i) const {
    __builtin_prefetch(x + i + ahead);
    if constexpr (std::is_same_v<Op, All> || std::is_same_v<Op, Any> || !std::is_same_v<C, Compute<T>>) {
      return pack_of<C>([&](int64_t j) { return element<Op, C>(x[i + j]); });
    } else {
      const Pack<C> numbers = load_pack<C>(x + i);
      if constexpr (std::is_same_v<Op, SumOfSquares>) return numbers * numbers;
      else return numbers;
    }
  }
};

constexpr int64_t kBlock = 512;  // elements of a row for one set of accumulators
constexpr int64_t kRows = 32;    // rows for one row of accumulators
constexpr int kStep = 8;         // rows that are added to it at a time
constexpr int64_t kTile = 1024;  // columns of an accumulator row

/// Reduces at most kBlock contiguous elements.
template <class Op, class T, class C>
C reduce_block(const T* x, int64_t n) {
  return fold(n, Op::template identity<C>(), Elements<Op, C, T>{x}, [](auto a, auto b) { return Op::combine(a, b); });
}

/// The reduction of blocks [begin, end) of the elements of one result, row by row; a row has
/// `blocks` of them.
template <class Op, class T, class C>
Total<C> reduce_blocks(const T* x, const ReducePlan& plan, int64_t blocks, int64_t begin, int64_t end) {
  Total<C> total = Op::template identity<Total<C>>();
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b % blocks * kBlock;
    const T* row = x + plan.reduced.offset(b / blocks) + first;
    const C part = reduce_block<Op, T, C>(row, std::min(kBlock, plan.inner - first));
    total = Op::combine(total, static_cast<Total<C>>(part));
  }
  return total;
}

/// The innermost dim is reduced: one result per kept index. Long reductions are split into groups
/// of blocks at fixed positions.
template <class Op, class T, class C, class Store>
void reduce_rows(const T* x, const ReducePlan& plan, const Store& store) {
  const int64_t results = plan.kept.count();
  const int64_t blocks = (plan.inner + kBlock - 1) / kBlock;
  const int64_t all = blocks * plan.reduced.count();
  constexpr int64_t kGroup = 64;
  const int64_t groups = (all + kGroup - 1) / kGroup;
  const int64_t block_size = std::min(plan.inner, kBlock);
  if (groups <= 1) {
    parallel_for(results, all * block_size, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        store(r, reduce_blocks<Op, T, C>(x + plan.kept.offset(r), plan, blocks, 0, all));
    });
    return;
  }
  std::vector<Total<C>> partial(static_cast<size_t>(results * groups));
  parallel_for(results * groups, kGroup * block_size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % groups * kGroup;
      partial[static_cast<size_t>(i)] =
          reduce_blocks<Op, T, C>(x + plan.kept.offset(i / groups), plan, blocks, first, std::min(first + kGroup, all));
    }
  });
  for (int64_t r = 0; r < results; ++r) {
    Total<C> total = Op::template identity<Total<C>>();
    for (int64_t g = 0; g < groups; ++g) total = Op::combine(total, partial[static_cast<size_t>(r * groups + g)]);
    store(r, total);
  }
}

/// sums[j] = sums[j] combined with element j of each of `count` rows, in their order. A constant
/// number of rows keeps the sums in registers meanwhile. The same columns of the `count` rows behind are prefetched.
template <class Op, int count, class T, class C>
void add_rows(const T* const* rows, int64_t columns, C* sums) {
  int64_t j = 0;
  for (; j + kPackWidth<C> <= columns; j += kPackWidth<C>) {
    Pack<C> sum;
    std::memcpy(&sum, sums + j, sizeof(sum));
#pragma GCC unroll 8
    for (int r = 0; r < count; ++r)
      sum = Op::combine(sum, Elements<Op, C, T>{rows[r], rows[r + count] - rows[r]}.pack(j));
    std::memcpy(sums + j, &sum, sizeof(sum));
  }
  for (; j < columns; ++j)
    for (int r = 0; r < count; ++r) sums[j] = Op::combine(sums[j], element<Op, C>(rows[r][j]));
}

/// Combines rows [begin, end) of one kept index into `total`, a tile of at most kTile columns.
template <class Op, class T, class C>
void reduce_tile(const T* x, const ReducePlan& plan, int64_t begin, int64_t end, int64_t columns, Total<C>* total) {
  std::fill_n(total, columns, Op::template identity<Total<C>>());
  C acc[kTile];
  for (int64_t first = begin; first < end; first += kRows) {
    std::fill_n(acc, columns, Op::template identity<C>());
    const int64_t last = std::min(first + kRows, end);
    const T* rows[kRows + kStep];
    for (int64_t r = first; r < last + kStep; ++r) rows[r - first] = x + plan.reduced.offset(std::min(r, end - 1));
    // Short rows are read one after the other, in the order of memory.
    int64_t r = 0;
    for (; columns == kTile && r + kStep <= last - first; r += kStep) add_rows<Op, kStep, T, C>(rows + r, columns, acc);
    for (; r < last - first; ++r) add_rows<Op, 1, T, C>(rows + r, columns, acc);
    for (int64_t j = 0; j < columns; ++j) total[j] = Op::combine(total[j], static_cast<Total<C>>(acc[j]));
  }
}

/// The innermost dim is kept: tiles of columns, and where rows are many, groups of rows at fixed
/// positions.
template <class Op, class T, class C, class Store>
void reduce_columns(const T* x, const ReducePlan& plan, const Store& store) {
  const int64_t tiles = (plan.inner + kTile - 1) / kTile;
  const int64_t rows = plan.reduced.count();
  constexpr int64_t kGroup = kRows * 16;
  const int64_t groups = std::max<int64_t>(1, (rows + kGroup - 1) / kGroup);
  const int64_t results = plan.kept.count() * plan.inner;
  std::vector<Total<C>> partial(static_cast<size_t>(groups > 1 ? results * groups : 0));
  const int64_t jobs = plan.kept.count() * tiles * groups;
  parallel_for(jobs, std::min(rows, kGroup) * std::min(plan.inner, kTile), [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t group = job % groups;
      const int64_t column = job / groups % tiles * kTile;
      const int64_t kept = job / groups / tiles;
      const int64_t columns = std::min(kTile, plan.inner - column);
      Total<C> tile[kTile];
      reduce_tile<Op, T, C>(x + plan.kept.offset(kept) + column, plan, group * kGroup,
                            std::min((group + 1) * kGroup, rows), columns, tile);
      for (int64_t j = 0; j < columns; ++j) {
        if (groups == 1) store(kept * plan.inner + column + j, tile[j]);
        else partial[static_cast<size_t>(group * results + kept * plan.inner + column + j)] = tile[j];
      }
    }
  });
  for (int64_t r = 0; groups > 1 && r < results; ++r) {
    Total<C> total = Op::template identity<Total<C>>();
    for (int64_t g = 0; g < groups; ++g) total = Op::combine(total, partial[static_cast<size_t>(g * results + r)]);
    store(r, total);
  }
}

/// Reduces x over axis; calls store(i, value) for result i in row-major order.
template <class Op, class T, class Store>
void reduce_all(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, const Store& store) {
  using C = typename Op::template Acc<T>;
  const ReducePlan plan = make_reduce_plan(ctx, x.dims(), axis);
  if (plan.inner_reduced) reduce_rows<Op, T, C>(x.data<T>(), plan, store);
  else reduce_columns<Op, T, C>(x.data<T>(), plan, store);
}

template <class Op, class T>
void reduce(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool, DenseTensor& out) {
  using R = typename Op::template Result<T>;
  R* result = out.data<R>();
  reduce_all<Op, T>(ctx, x, axis, [result](int64_t i, auto value) {
    if constexpr (is_half<T>) result[i] = R(static_cast<float>(value));
    else result[i] = static_cast<R>(value);
  });
}

template <class T>
T rounded(double value) {
  if constexpr (is_half<T>) return T(static_cast<float>(value));
  else return static_cast<T>(value);
}

/// The sum of the local shard divided by the number of elements of the whole tensor.
template <class T>
void mean(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool, DenseTensor& out) {
  const Dims global = ctx.input_box(0, x).global;
  const unsigned mask = axis_mask(ctx, global.rank(), axis);
  double count = 1;
  for (int i = 0; i < global.rank(); ++i) count *= mask >> i & 1u ? static_cast<double>(global[i]) : 1.0;
  T* result = out.data<T>();
  reduce_all<Sum, T>(ctx, x, axis, [result, count](int64_t i, double value) { result[i] = rounded<T>(value / count); });
}

template <class T>
void squared_l2_norm(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  reduce_all<SumOfSquares, T>(ctx, x, {}, [&](int64_t, double value) { *out.data<T>() = rounded<T>(value); });
}

/// The squares of all shards are added up, in double, before the root is taken.
template <class T>
void frobenius_norm(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool, bool all,
                    DenseTensor& out) {
  DenseTensor squares = DenseTensor::allocate(kCpu, {out.dims(), DType::float64});
  double* sums = squares.data<double>();
  reduce_all<SumOfSquares, T>(ctx, x, all ? IntArray() : axis, [sums](int64_t i, double value) { sums[i] = value; });
  ctx.all_reduce(squares, ReduceType::sum);
  for (int64_t i = 0; i < out.numel(); ++i) out.data<T>()[i] = rounded<T>(std::sqrt(sums[i]));
}

void frobenius_norm_dry(const OpContext& ctx, const DenseTensor&, const IntArray&, bool, bool, DenseTensor& out) {
  dry_all_reduce(ctx, {out.dims(), DType::float64}, ReduceType::sum);
}

void numel(const OpContext& ctx, const DenseTensor& x, DenseTensor& size) {
  *size.data<int64_t>() = ctx.input_box(0, x).global.numel();
}

void register_reduce_for_target() {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sum", kBackend, dtype_of<T>, &reduce<Sum, T>);
    register_kernel("prod", kBackend, dtype_of<T>, &reduce<Prod, T>);
    register_kernel("max", kBackend, dtype_of<T>, &reduce<Max, T>);
    register_kernel("min", kBackend, dtype_of<T>, &reduce<Min, T>);
    register_kernel("amax", kBackend, dtype_of<T>, &reduce<Max, T>);
    register_kernel("amin", kBackend, dtype_of<T>, &reduce<Min, T>);
    register_kernel("all", kBackend, dtype_of<T>, &reduce<All, T>);
    register_kernel("any", kBackend, dtype_of<T>, &reduce<Any, T>);
  });
  register_for_all("numel", &numel);
  register_dry_kernel("frobenius_norm", &frobenius_norm_dry);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("mean", kBackend, dtype_of<T>, &mean<T>);
    register_kernel("squared_l2_norm", kBackend, dtype_of<T>, &squared_l2_norm<T>);
    register_kernel("frobenius_norm", kBackend, dtype_of<T>, &frobenius_norm<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_reduce_for_target);
void register_reduce() { HWY_DYNAMIC_DISPATCH(register_reduce_for_target)(); }
}  // namespace shard::cpu
#endif
