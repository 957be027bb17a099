// Tensors of matrices, for kernels that call LAPACK for each of them: loops over them on all threads, and errors that name
// one of them.
#pragma once

#include <algorithm>
#include <atomic>

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"
#include "shard/kernels/cpu/matrix_batch.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/data_text.h"

namespace shard::cpu {

/// Calls body(i), which returns whether it succeeds, for each matrix, and returns the first for
/// which it does not, else -1. A loop that throws would stop the others halfway.
template <class Body>
int64_t first_failure(int64_t count, int64_t cost, const Body& body) {
  std::atomic<int64_t> first = count;
  parallel_for(count, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (body(i)) continue;
      for (int64_t known = first; i < known && !first.compare_exchange_weak(known, i);) {}
    }
  });
  return first < count ? first.load() : -1;
}

/// Throws unless `failure`, from first_failure, is -1. `problem` is what is wrong with the matrix of
/// x, input 0.
inline void check_matrices(const OpContext& ctx, const DenseTensor& x, int64_t failure, const char* problem) {
  if (failure < 0) return;
  fail_check(ErrorCode::invalid_argument, "{}", matrix_text(ctx.op, problem, ArgumentPlace(ctx, 0, x), failure));
}

}  // namespace shard::cpu
