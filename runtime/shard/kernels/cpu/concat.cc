// CPU kernels that concatenate tensors or split one into several: concat, stack, split, unbind.
#include <cstring>
#include <vector>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"

namespace shard::cpu {
namespace {

/// The run of a part in each row: of row r it begins r * bytes behind `data`.
struct Part {
  char* data;
  size_t bytes;
};

/// Those of all parts that have elements, of `rows` rows.
std::vector<Part> parts_of(std::span<const DenseTensor> tensors, int64_t rows) {
  std::vector<Part> parts;
  for (const DenseTensor& tensor : tensors) {
    const size_t bytes = tensor.meta().bytes() / static_cast<size_t>(rows);
    if (bytes != 0) parts.push_back({tensor.data<char>(), bytes});
  }
  return parts;
}

/// memcpy, without a call where runs are as short as the features of a head.
void copy_run(char* to, const char* from, size_t bytes) {
  switch (bytes) {
    case 4: std::memcpy(to, from, 4); return;
    case 8: std::memcpy(to, from, 8); return;
    case 16: std::memcpy(to, from, 16); return;
    case 32: std::memcpy(to, from, 32); return;
    case 64: std::memcpy(to, from, 64); return;
    case 128: std::memcpy(to, from, 128); return;
    default: std::memcpy(to, from, bytes);
  }
}

/// Calls copy(part, in_row) for the run of each part in each row, row by row, so that the whole is read or written in order.
template <class Copy>
void each_run(const std::vector<Part>& parts, char* whole, int64_t rows, const Copy& copy) {
  size_t step = 0;
  for (const Part& part : parts) step += part.bytes;
  parallel_for(rows, static_cast<int64_t>(step) / 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      char* at = whole + static_cast<size_t>(r) * step;
      for (const Part& part : parts) {
        copy(part.data + static_cast<size_t>(r) * part.bytes, at, part.bytes);
        at += part.bytes;
      }
    }
  });
}

/// Concatenates tensors: each has `rows` runs, which together form the runs of the result.
void join(std::span<const DenseTensor> x, int64_t rows, DenseTensor& out) {
  if (rows == 0) return;
  each_run(parts_of(x, rows), out.data<char>(), rows,
           [](const char* part, char* whole, size_t bytes) { copy_run(whole, part, bytes); });
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
  each_run(parts_of(out, rows), x.data<char>(), rows,
           [](char* part, const char* whole, size_t bytes) { copy_run(part, whole, bytes); });
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
