// The driver of elementwise kernels (see elementwise.h).
#include "shard/kernels/cpu/elementwise.h"

namespace shard::cpu {
namespace {

/// The dims of the result, with neighbours merged where every input traverses both uniformly.
struct Plan {
  int rank = 0;
  int64_t size[kMaxRank];
  int64_t stride[kMaxRank][kMaxInputs];  // in elements; 0 where the input is broadcast
};

Plan make_plan(std::span<const DenseTensor* const> inputs, const Dims& out) {
  Plan plan;  // innermost dim first
  int64_t product[kMaxInputs] = {1, 1, 1};
  for (int d = out.rank() - 1; d >= 0; --d) {
    if (out[d] == 1) continue;
    int64_t stride[kMaxInputs] = {};
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Dims& dims = inputs[i]->dims();
      const int at = d - (out.rank() - dims.rank());
      const int64_t size = at < 0 ? 1 : dims[at];
      stride[i] = size == 1 ? 0 : product[i];
      product[i] *= size;
    }
    bool merge = plan.rank > 0;
    for (size_t i = 0; merge && i < inputs.size(); ++i) {
      merge = stride[i] == plan.stride[plan.rank - 1][i] * plan.size[plan.rank - 1];
    }
    if (merge) {
      plan.size[plan.rank - 1] *= out[d];
      continue;
    }
    plan.size[plan.rank] = out[d];
    std::copy(stride, stride + kMaxInputs, plan.stride[plan.rank]);
    ++plan.rank;
  }
  if (plan.rank == 0) {
    plan.rank = 1;
    plan.size[0] = 1;
    std::fill(plan.stride[0], plan.stride[0] + kMaxInputs, 0);
  }
  return plan;
}

/// The elements [begin, end) of the result, row by row.
void run_range(RowLoop loop, const Plan& plan, const Row& whole, std::span<const size_t> in_sizes, size_t out_size,
               int64_t begin, int64_t end) {
  while (begin < end) {
    int64_t rest = begin / plan.size[0];
    const int64_t column = begin % plan.size[0];
    const int64_t n = std::min(plan.size[0] - column, end - begin);
    Row row = whole;
    for (size_t i = 0; i < in_sizes.size(); ++i) {
      int64_t index = column * plan.stride[0][i];
      for (int64_t d = 1, left = rest; d < plan.rank; left /= plan.size[d], ++d)
        index += left % plan.size[d] * plan.stride[d][i];
      row.in[i] = static_cast<const char*>(whole.in[i]) + static_cast<size_t>(index) * in_sizes[i];
      row.step[i] = plan.stride[0][i];
    }
    row.out = static_cast<char*>(whole.out) + static_cast<size_t>(begin) * out_size;
    row.n = n;
    loop(row);
    begin += n;
  }
}

}  // namespace

void run_broadcast(RowLoop loop, std::span<const DenseTensor* const> inputs, DenseTensor& out, const void* params) {
  const int64_t total = out.numel();
  if (total == 0) return;
  const Plan plan = make_plan(inputs, out.dims());
  Row whole{{}, {}, out.raw(), total, params};
  size_t sizes[kMaxInputs] = {};
  for (size_t i = 0; i < inputs.size(); ++i) {
    whole.in[i] = inputs[i]->raw();
    sizes[i] = size_of(inputs[i]->dtype());
  }
  const std::span<const size_t> in_sizes(sizes, inputs.size());
  const size_t out_size = size_of(out.dtype());
  parallel_for(total, 1,
               [&](int64_t begin, int64_t end) { run_range(loop, plan, whole, in_sizes, out_size, begin, end); });
}

void run_parallel(RowLoop loop, const Row& row, std::span<const size_t> in_sizes, size_t out_size) {
  parallel_for(row.n, 1, [&](int64_t begin, int64_t end) {
    Row part = row;
    for (size_t i = 0; i < in_sizes.size(); ++i) {
      part.in[i] = static_cast<const char*>(row.in[i]) + static_cast<size_t>(begin * row.step[i]) * in_sizes[i];
    }
    part.out = static_cast<char*>(row.out) + static_cast<size_t>(begin) * out_size;
    part.n = end - begin;
    loop(part);
  });
}

}  // namespace shard::cpu
