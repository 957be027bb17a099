// CPU kernels that concatenate tensors or split one into several: concat, stack, split, unbind.
#include <cstring>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"

namespace shard::cpu {
namespace {

/// Copies `rows` runs of `bytes`; the runs are `from_step` and `to_step` bytes apart in the
/// buffers.
void copy_runs(const char* from, size_t from_step, char* to, size_t to_step, size_t bytes, int64_t rows) {
  if (bytes == 0) return;
  parallel_for(rows, static_cast<int64_t>(bytes) / 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      std::memcpy(to + static_cast<size_t>(r) * to_step, from + static_cast<size_t>(r) * from_step, bytes);
    }
  });
}

/// Concatenates tensors: each has `rows` runs, which together form the runs of the result.
void join(std::span<const DenseTensor> x, int64_t rows, DenseTensor& out) {
  if (rows == 0) return;
  const size_t step = out.meta().bytes() / static_cast<size_t>(rows);
  char* to = out.data<char>();
  for (const DenseTensor& part : x) {
    const size_t bytes = part.meta().bytes() / static_cast<size_t>(rows);
    copy_runs(part.data<char>(), bytes, to, step, bytes, rows);
    to += bytes;
  }
}

void concat(const OpContext& ctx, std::span<const DenseTensor> x, const Scalar& axis, DenseTensor& out) {
  join(x, out.dims().numel(0, normalize_axis(ctx.op, "axis", axis.to<int64_t>(), out.dims().rank())), out);
}

void stack(const OpContext& ctx, std::span<const DenseTensor> x, int axis, DenseTensor& out) {
  join(x, out.dims().numel(0, normalize_axis(ctx.op, "axis", axis, out.dims().rank())), out);
}

/// Splits x along a dim into consecutive parts, whose sizes determine their share of each row.
void cut(const DenseTensor& x, int along, std::span<DenseTensor> out) {
  const int64_t rows = x.dims().numel(0, along);
  if (rows == 0) return;
  const size_t step = x.meta().bytes() / static_cast<size_t>(rows);
  const char* from = x.data<char>();
  for (DenseTensor& part : out) {
    const size_t bytes = part.meta().bytes() / static_cast<size_t>(rows);
    copy_runs(from, step, part.data<char>(), bytes, bytes, rows);
    from += bytes;
  }
}

void split(const OpContext& ctx, const DenseTensor& x, const IntArray&, const Scalar& axis,
           std::span<DenseTensor> out) {
  cut(x, normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()), out);
}

void split_with_num(const OpContext& ctx, const DenseTensor& x, int, const Scalar& axis, std::span<DenseTensor> out) {
  cut(x, normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()), out);
}

void unbind(const OpContext& ctx, const DenseTensor& input, int axis, std::span<DenseTensor> out) {
  cut(input, normalize_axis(ctx.op, "axis", axis, input.dims().rank()), out);
}

}  // namespace

void register_concat() {
  register_for_all("concat", &concat);
  register_for_all("stack", &stack);
  register_for_all("split", &split);
  register_for_all("split_with_num", &split_with_num);
  register_for_all("unbind", &unbind);
}

}  // namespace shard::cpu
