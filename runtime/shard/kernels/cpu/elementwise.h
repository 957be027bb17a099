// The driver of elementwise kernels: it splits any broadcast into rows and calls a row loop for
// them. Loops are in binary.cc, unary.cc, scalar.cc and cast.cc, which compile them for several
// instruction sets.
#pragma once

#include "shard/core/dense_tensor.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {

inline constexpr int kMaxInputs = 3;

/// One row of n elements: in[i] advances by `step[i]` elements, which is 0 or 1; `params` are the op's own numbers.
struct Row {
  const void* in[kMaxInputs];
  int64_t step[kMaxInputs];
  void* out;
  int64_t n;
  const void* params;
};
using RowLoop = void (*)(const Row&);

/// Runs `loop` over all elements of out, to which the inputs broadcast.
void run_broadcast(RowLoop loop, std::span<const DenseTensor* const> inputs, DenseTensor& out, const void* params);
/// Runs `loop` over n elements at equal positions of all inputs, on several threads.
void run_parallel(RowLoop loop, const Row& row, std::span<const size_t> in_sizes, size_t out_size);

/// `count` elements of x as numbers of another dtype, on several threads.
void convert_elements(DType from, const void* x, DType to, void* out, int64_t count);

inline void run_binary(RowLoop loop, const DenseTensor& x, const DenseTensor& y, DenseTensor& out,
                       const void* params = nullptr) {
  if (x.dims() == y.dims()) {
    const Row row{{x.raw(), y.raw(), nullptr}, {1, 1, 0}, out.raw(), out.numel(), params};
    if (row.n <= kGrain) return loop(row);
    const size_t sizes[] = {size_of(x.dtype()), size_of(y.dtype())};
    return run_parallel(loop, row, sizes, size_of(out.dtype()));
  }
  const DenseTensor* const inputs[] = {&x, &y};
  run_broadcast(loop, inputs, out, params);
}

inline void run_unary(RowLoop loop, const DenseTensor& x, DenseTensor& out, const void* params = nullptr) {
  const Row row{{x.raw(), nullptr, nullptr}, {1, 0, 0}, out.raw(), out.numel(), params};
  if (row.n <= kGrain) return loop(row);
  const size_t sizes[] = {size_of(x.dtype())};
  run_parallel(loop, row, sizes, size_of(out.dtype()));
}

}  // namespace shard::cpu
