// Reductions of tensors over any of their axes, for each .cc that compiles itself once per instruction set.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_REDUCTION_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_REDUCTION_H
#undef SHARD_KERNELS_CPU_REDUCTION_H
#else
#define SHARD_KERNELS_CPU_REDUCTION_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/reduce_plan.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

// How elements are reduced is a struct of this form:
//   template <class T> using Acc = ...;               what elements of T are combined in
//   static C identity<C>();
//   static V combine<V>(V a, V b);                    of two numbers, or of each pair in two packs
//   C term<C>(T x, int64_t i) const;                  what an element contributes
//   Pack<C> terms<C>(Pack<C> x, int64_t i) const;     of a pack of elements, where C is their type of arithmetic
//   Of of_row(int64_t result) const;                  the reduction of one result
//   Of of_columns(int64_t first) const;               of results first, first + 1, ...: i is then the column, from `first` on

/// Elements contribute themselves.
template <class Reduction>
struct OfElements {
  template <class C, class T>
  static HWY_INLINE C term(T x, int64_t) {
    return static_cast<C>(x);
  }
  template <class C>
  static HWY_INLINE Pack<C> terms(Pack<C> x, int64_t) {
    return x;
  }
  static Reduction of_row(int64_t) { return {}; }
  static Reduction of_columns(int64_t) { return {}; }
};

/// The number of which others are added up: integers and bools modulo 2^64, to an int64.
template <class T>
using SumOf = std::conditional_t<is_float<T>, Compute<T>, uint64_t>;
/// The largest and smallest are compared without conversion; bools as bytes, so that std::vector
/// holds plain elements.
template <class T>
using ExtremeOf = std::conditional_t<std::is_same_v<T, bool>, uint8_t, Compute<T>>;
/// The type in which results of blocks are added up. The order of blocks is fixed, so that results
/// do not depend on threads.
template <class C>
using Total = std::conditional_t<std::is_same_v<C, float>, double, C>;

/// Adds terms up.
struct Adding {
  template <class T>
  using Acc = SumOf<T>;
  template <class C>
  static C identity() {
    return C(0);
  }
  template <class C>
  static C combine(C a, C b) {
    return a + b;
  }
};
struct KeepingLargest {
  template <class T>
  using Acc = ExtremeOf<T>;
  template <class C>
  static C identity() {
    return lowest<C>();
  }
  template <class C>
  static C combine(C a, C b) {
    return Larger()(a, b);
  }
};
struct KeepingSmallest {
  template <class T>
  using Acc = ExtremeOf<T>;
  template <class C>
  static C identity() {
    return highest<C>();
  }
  template <class C>
  static C combine(C a, C b) {
    return Smaller()(a, b);
  }
};
struct Sum : Adding, OfElements<Sum> {};
struct Max : KeepingLargest, OfElements<Max> {};
struct Min : KeepingSmallest, OfElements<Min> {};

/// The terms of contiguous elements, and of packs of them. The hardware prefetches within a page of 4096 bytes only, so each pack
/// asks for those `ahead` elements after it, which must be read soon: other lines only take bandwidth.
template <class Op, class C, class T>
struct Terms {
  const T* x;
  Op op;
  int64_t ahead = int64_t{4096 / sizeof(T)};

  HWY_INLINE C operator()(int64_t i) const { return op.template term<C>(x[i], i); }
  HWY_INLINE Pack<C> pack(int64_t i) const {
    __builtin_prefetch(x + i + ahead);
    if constexpr (std::is_same_v<C, Compute<T>> && requires { op.template terms<C>(Pack<C>(), i); }) {
      return op.template terms<C>(load_pack<C>(x + i), i);
    } else {
      return pack_of<C>([&](int64_t j) { return op.template term<C>(x[i + j], i + j); });
    }
  }
};

constexpr int64_t kReducedBlock = 512;  // elements of a row for one set of accumulators
constexpr int64_t kReducedRows = 32;    // rows for one row of accumulators
constexpr int kRowStep = 8;             // rows that are added to it at a time
constexpr int64_t kReducedTile = 1024;  // columns of an accumulator row

/// The reduction of blocks [begin, end) of the elements of one result, row by row; a row has
/// `blocks` of them.
template <class T, class C, class Op>
Total<C> reduce_blocks(const T* x, const Op& op, const ReducePlan& plan, int64_t blocks, int64_t begin, int64_t end) {
  Total<C> total = Op::template identity<Total<C>>();
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b % blocks * kReducedBlock;
    const T* row = x + plan.reduced.offset(b / blocks) + first;
    const C part = fold(std::min(kReducedBlock, plan.inner - first), Op::template identity<C>(),
                        Terms<Op, C, T>{row, op}, [](auto a, auto b) { return Op::combine(a, b); });
    total = Op::combine(total, static_cast<Total<C>>(part));
  }
  return total;
}

/// The innermost dim is reduced: one result per kept index. Long reductions are split into groups
/// of blocks at fixed positions.
template <class T, class C, class Op, class Store>
void reduce_rows(const T* x, const Op& op, const ReducePlan& plan, const Store& store) {
  const int64_t results = plan.kept.count();
  const int64_t blocks = (plan.inner + kReducedBlock - 1) / kReducedBlock;
  const int64_t all = blocks * plan.reduced.count();
  constexpr int64_t kGroup = 64;
  const int64_t groups = (all + kGroup - 1) / kGroup;
  const int64_t block_size = std::min(plan.inner, kReducedBlock);
  const auto reduce = [&](int64_t r, int64_t begin, int64_t end) {
    return reduce_blocks<T, C>(x + plan.kept.offset(r), op.of_row(r), plan, blocks, begin, end);
  };
  if (groups <= 1) {
    parallel_for(results, all * block_size, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) store(r, reduce(r, 0, all));
    });
    return;
  }
  std::vector<Total<C>> partial(static_cast<size_t>(results * groups));
  parallel_for(results * groups, kGroup * block_size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % groups * kGroup;
      partial[static_cast<size_t>(i)] = reduce(i / groups, first, std::min(first + kGroup, all));
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
template <int count, class T, class C, class Op>
void add_rows(const T* const* rows, const Op& op, int64_t columns, C* sums) {
  int64_t j = 0;
  for (; j + kPackWidth<C> <= columns; j += kPackWidth<C>) {
    Pack<C> sum;
    std::memcpy(&sum, sums + j, sizeof(sum));
#pragma GCC unroll 8
    for (int r = 0; r < count; ++r)
      sum = Op::combine(sum, Terms<Op, C, T>{rows[r], op, rows[r + count] - rows[r]}.pack(j));
    std::memcpy(sums + j, &sum, sizeof(sum));
  }
  for (; j < columns; ++j)
    for (int r = 0; r < count; ++r) sums[j] = Op::combine(sums[j], op.template term<C>(rows[r][j], j));
}

/// Combines rows [begin, end) of one kept index into `total`, a tile of at most kReducedTile columns.
template <class T, class C, class Op>
void reduce_tile(const T* x, const Op& op, const ReducePlan& plan, int64_t begin, int64_t end, int64_t columns,
                 Total<C>* total) {
  std::fill_n(total, columns, Op::template identity<Total<C>>());
  C acc[kReducedTile];
  for (int64_t first = begin; first < end; first += kReducedRows) {
    std::fill_n(acc, columns, Op::template identity<C>());
    const int64_t last = std::min(first + kReducedRows, end);
    const T* rows[kReducedRows + kRowStep];
    for (int64_t r = first; r < last + kRowStep; ++r) rows[r - first] = x + plan.reduced.offset(std::min(r, end - 1));
    // Short rows are read one after the other, in the order of memory.
    int64_t r = 0;
    for (; columns == kReducedTile && r + kRowStep <= last - first; r += kRowStep)
      add_rows<kRowStep, T, C>(rows + r, op, columns, acc);
    for (; r < last - first; ++r) add_rows<1, T, C>(rows + r, op, columns, acc);
    for (int64_t j = 0; j < columns; ++j) total[j] = Op::combine(total[j], static_cast<Total<C>>(acc[j]));
  }
}

/// The innermost dim is kept: tiles of columns, and where rows are many, groups of rows at fixed
/// positions.
template <class T, class C, class Op, class Store>
void reduce_columns(const T* x, const Op& op, const ReducePlan& plan, const Store& store) {
  const int64_t tiles = (plan.inner + kReducedTile - 1) / kReducedTile;
  const int64_t rows = plan.reduced.count();
  constexpr int64_t kGroup = kReducedRows * 16;
  const int64_t groups = std::max<int64_t>(1, (rows + kGroup - 1) / kGroup);
  const int64_t results = plan.kept.count() * plan.inner;
  std::vector<Total<C>> partial(static_cast<size_t>(groups > 1 ? results * groups : 0));
  const int64_t jobs = plan.kept.count() * tiles * groups;
  parallel_for(jobs, std::min(rows, kGroup) * std::min(plan.inner, kReducedTile), [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t group = job % groups;
      const int64_t column = job / groups % tiles * kReducedTile;
      const int64_t kept = job / groups / tiles;
      const int64_t columns = std::min(kReducedTile, plan.inner - column);
      const int64_t result = kept * plan.inner + column;
      Total<C> tile[kReducedTile];
      reduce_tile<T, C>(x + plan.kept.offset(kept) + column, op.of_columns(result), plan, group * kGroup,
                        std::min((group + 1) * kGroup, rows), columns, tile);
      for (int64_t j = 0; j < columns; ++j) {
        if (groups == 1) store(result + j, tile[j]);
        else partial[static_cast<size_t>(group * results + result + j)] = tile[j];
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
template <class T, class Op, class Store>
void reduce_all(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, const Op& op, const Store& store) {
  using C = typename Op::template Acc<T>;
  const ReducePlan plan = make_reduce_plan(ctx, x.dims(), axis);
  if (plan.inner_reduced) reduce_rows<T, C>(x.data<T>(), op, plan, store);
  else reduce_columns<T, C>(x.data<T>(), op, plan, store);
}

/// A number that was computed in double.
template <class T>
T rounded(double value) {
  if constexpr (is_half<T>) return T(static_cast<float>(value));
  else return static_cast<T>(value);
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
