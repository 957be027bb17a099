// Products of a vector and a matrix, which take as long as reading the matrix.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/gemm_vector.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <vector>

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = 512;  // terms that are added up in the type of arithmetic; blocks are added up in double

/// out[i] = the sum over b of sums[i * result_step + b * block_step], in this order.
template <class C, class R>
void add_blocks(const std::vector<C>& sums, int64_t blocks, int64_t result_step, int64_t block_step, int64_t results,
                R* out) {
  parallel_for(results, blocks, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      double total = 0;
      for (int64_t b = 0; b < blocks; ++b)
        total += static_cast<double>(sums[static_cast<size_t>(i * result_step + b * block_step)]);
      out[i] = R(static_cast<Compute<R>>(total));
    }
  });
}

/// out[i] = the sum of matrix[i][k] * vector[k]. A block of a row is a job of its own, so that threads share a few long
/// rows too.
template <class T, class C, class R>
void multiply_rows(const T* matrix, const C* vector, int64_t results, int64_t depth, R* out) {
  const int64_t blocks = (depth + kBlock - 1) / kBlock;
  std::vector<C> sums(static_cast<size_t>(results * blocks));
  parallel_for(results * blocks, std::min(depth, kBlock), [&](int64_t first, int64_t last) {
    for (int64_t job = first; job < last; ++job) {
      const int64_t begin = job % blocks * kBlock;
      const T* row = matrix + job / blocks * depth + begin;
      const C* factors = vector + begin;
      sums[static_cast<size_t>(job)] =
          sum_of<C>(std::min(kBlock, depth - begin), [=](int64_t k) { return static_cast<C>(row[k]) * factors[k]; });
    }
  });
  add_blocks(sums, blocks, blocks, 1, results, out);
}

/// sums[j] = the sum of vector[k] * matrix[k][j] for j below `columns`; rows of the matrix are `step` apart.
template <class T, class C>
void sum_columns(const T* matrix, int64_t step, const C* vector, int64_t columns, int64_t depth, C* sums) {
  std::fill_n(sums, columns, C(0));
  int64_t k = 0;
  for (; k + 8 <= depth; k += 8) {
    const T* rows = matrix + k * step;
    const C* f = vector + k;
    for (int64_t j = 0; j < columns; ++j) {
      const auto term = [&](int64_t r) { return f[r] * static_cast<C>(rows[r * step + j]); };
      sums[j] += ((term(0) + term(1)) + (term(2) + term(3))) + ((term(4) + term(5)) + (term(6) + term(7)));
    }
  }
  for (; k < depth; ++k) {
    const T* row = matrix + k * step;
    for (int64_t j = 0; j < columns; ++j) sums[j] += vector[k] * static_cast<C>(row[j]);
  }
}

/// out[j] = the sum of vector[k] * matrix[k][j]. A job has as many j as have room in the first-level cache, and a block of
/// k.
template <class T, class C, class R>
void multiply_columns(const T* matrix, const C* vector, int64_t results, int64_t depth, R* out) {
  constexpr int64_t kTile = 2048;  // long enough for the processor to read ahead in each row
  const int64_t tiles = (results + kTile - 1) / kTile, blocks = (depth + kBlock - 1) / kBlock;
  std::vector<C> sums(static_cast<size_t>(blocks * results));
  parallel_for(blocks * tiles, std::min(depth, kBlock) * std::min(results, kTile), [&](int64_t first, int64_t last) {
    for (int64_t job = first; job < last; ++job) {
      const int64_t begin = job / tiles * kBlock, column = job % tiles * kTile;
      sum_columns(matrix + begin * results + column, results, vector + begin, std::min(kTile, results - column),
                  std::min(kBlock, depth - begin), sums.data() + job / tiles * results + column);
    }
  });
  add_blocks(sums, blocks, 1, results, results, out);
}

template <class T, class R>
void multiply_typed(const Product& p, const T* x, const T* y, R* out) {
  using C = Compute<T>;
  const bool row = p.m == 1;
  const std::vector<C> vector(row ? x : y, (row ? x : y) + p.k);
  const T* matrix = row ? y : x;
  const int64_t results = row ? p.n : p.m;
  if (results == 1 || (row ? p.transpose_y : !p.transpose_x)) multiply_rows(matrix, vector.data(), results, p.k, out);
  else multiply_columns(matrix, vector.data(), results, p.k, out);
}

void multiply_vector_for_target(const Product& p, const Factors& factors, const Result& out) {
  visit_dtype(factors.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (is_float<T>) {
      const T *x = static_cast<const T*>(factors.x), *y = static_cast<const T*>(factors.y);
      if (out.dtype == factors.dtype) multiply_typed(p, x, y, static_cast<T*>(out.data));
      else multiply_typed(p, x, y, static_cast<Compute<T>*>(out.data));
    }
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(multiply_vector_for_target);
void multiply_vector(const Product& p, const Factors& factors, const Result& out) {
  HWY_DYNAMIC_DISPATCH(multiply_vector_for_target)(p, factors, out);
}
}  // namespace shard::cpu
#endif
