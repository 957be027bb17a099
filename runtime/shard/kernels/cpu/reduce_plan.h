// How a reduction traverses a tensor: dims merged into kept and reduced ones, with the innermost as
// contiguous rows. Kernels that scan along one axis only (softmax, argmax, cumsum) use axis.h
// instead.
#pragma once

#include "shard/core/dims.h"
#include "shard/core/op_context.h"

namespace shard::cpu {

/// Dims with strides; a flat index, last dim fastest, becomes an offset.
struct Walk {
  int rank = 0;
  int64_t size[2 * kMaxRank];  // tile traverses each dim and its repetition
  int64_t stride[2 * kMaxRank];

  void add(int64_t n, int64_t step) {
    size[rank] = n;
    stride[rank++] = step;
  }
  int64_t count() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= size[i];
    return product;
  }
  int64_t offset(int64_t index) const {
    int64_t sum = 0;
    for (int i = rank - 1; i > 0; --i) {
      sum += index % size[i] * stride[i];
      index /= size[i];
    }
    return rank == 0 ? 0 : sum + index * stride[0];
  }
};

struct ReducePlan {
  Walk kept;          // outer dims that are kept
  Walk reduced;       // outer dims that are reduced
  int64_t inner = 1;  // the contiguous innermost run
  bool inner_reduced = true;
};

ReducePlan make_reduce_plan(const OpContext& ctx, const Dims& dims, const IntArray& axis);
/// The axes as a bit mask: all of them where none is given.
unsigned axis_mask(const OpContext& ctx, int rank, const IntArray& axis);
/// How many elements of a tensor of shape `dims` are reduced to one.
double reduced_count(const OpContext& ctx, const Dims& dims, const IntArray& axis);

}  // namespace shard::cpu
