// Builds the plans of reduce_plan.h.
#include "shard/kernels/cpu/reduce_plan.h"

namespace shard::cpu {

unsigned axis_mask(const OpContext& ctx, int rank, const IntArray& axis) {
  unsigned mask = axis.empty() ? ~0u : 0u;
  for (int64_t a : axis) mask |= 1u << normalize_axis(ctx.op, "axis", a, rank);
  return mask;
}

double reduced_count(const OpContext& ctx, const Dims& dims, const IntArray& axis) {
  const unsigned mask = axis_mask(ctx, dims.rank(), axis);
  double count = 1;
  for (int i = 0; i < dims.rank(); ++i) count *= mask >> i & 1u ? static_cast<double>(dims[i]) : 1.0;
  return count;
}

ReducePlan make_reduce_plan(const OpContext& ctx, const Dims& dims, const IntArray& axis) {
  const unsigned mask = axis_mask(ctx, dims.rank(), axis);
  int64_t size[kMaxRank];
  bool reduced[kMaxRank];
  int groups = 0;
  for (int i = 0; i < dims.rank(); ++i) {
    if (dims[i] == 1) continue;
    const bool now = mask >> i & 1u;
    if (groups > 0 && reduced[groups - 1] == now) {
      size[groups - 1] *= dims[i];
      continue;
    }
    size[groups] = dims[i];
    reduced[groups++] = now;
  }
  ReducePlan plan;
  if (groups == 0) return plan;
  plan.inner = size[groups - 1];
  plan.inner_reduced = reduced[groups - 1];
  int64_t stride[kMaxRank];
  int64_t product = 1;
  for (int i = groups - 1; i >= 0; --i) {
    stride[i] = product;
    product *= size[i];
  }
  for (int i = 0; i + 1 < groups; ++i) (reduced[i] ? plan.reduced : plan.kept).add(size[i], stride[i]);
  return plan;
}

}  // namespace shard::cpu
