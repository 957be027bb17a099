// CPU kernels that write values at places that attributes name, which are slices and diagonals. A
// rank writes what is in its shard.
#include <memory>

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_writing.h"
#include "shard/kernels/cpu/walk.h"
#include "shard/meta/writing.h"

namespace shard::cpu {
namespace {

/// Copies elements as integers of their size, from the offset `base` in `from` on.
void write_pairs(const DenseTensor& from, int64_t from_base, const PairWalk& pair, int64_t to_base, DenseTensor& to) {
  const auto copy = [&]<class T>(TypeTag<T>) { copy_pairs(from.data<T>() + from_base, pair, to.data<T>() + to_base); };
  switch (size_of(to.dtype())) {
    case 1: return copy(TypeTag<uint8_t>());
    case 2: return copy(TypeTag<uint16_t>());
    case 4: return copy(TypeTag<uint32_t>());
    default: return copy(TypeTag<uint64_t>());
  }
}

/// The elements of a range within [begin, begin + size): from `first` of them to before `end`.
struct Within {
  int64_t first, end;

  Within(const SliceRange& range, int64_t begin, int64_t size) : first(0), end(0) {
    if (range.count == 0 || size == 0) return;
    const auto up = [](int64_t a, int64_t b) { return a <= 0 ? 0 : (a - 1) / b + 1; };
    if (range.step > 0) {
      first = up(begin - range.first, range.step);
      end = std::min(range.count, up(begin + size - range.first, range.step));
    } else {
      first = up(range.first - (begin + size - 1), -range.step);
      end = std::min(range.count, range.first < begin ? 0 : (range.first - begin) / -range.step + 1);
    }
    end = std::max(first, end);
  }
};

/// x with values written into the slice; `box` is that of values.
void write_slice(const OpContext& ctx, const DenseTensor& x, const DenseTensor& values, const Box& box,
                 const meta::WrittenSlice& slice, DenseTensor& out) {
  copy_all(x, out);
  const Box whole = ctx.input_box(0, x);
  const Dims strides = strides_of(x.dims()), value_strides = strides_of(values.dims());
  const std::vector<int> along = meta::dims_of_values(ctx.op, slice, box.global);
  int64_t base = 0, value_base = 0;
  PairWalk pair;
  for (int d = 0; d < x.dims().rank(); ++d) {
    const SliceRange& range = slice.ranges[static_cast<size_t>(d)];
    const Within here(range, whole.begin[d], x.dims()[d]);
    if (here.first == here.end) return;
    const auto v = std::find(along.begin(), along.end(), d);
    int64_t value_step = 0;
    if (v != along.end()) {
      const auto dim = static_cast<int>(v - along.begin());
      value_step = value_strides[dim];
      value_base += (here.first - box.begin[dim]) * value_step;
    }
    base += (range.first + here.first * range.step - whole.begin[d]) * strides[d];
    pair.add(here.end - here.first, range.step * strides[d], value_step);
  }
  write_pairs(values, value_base, pair, base, out);
}

void set_value(const OpContext& ctx, const DenseTensor& x, const IntArray& starts, const IntArray& ends,
               const IntArray& steps, const IntArray& axes, const IntArray& decrease_axes, const IntArray& none_axes,
               const IntArray& shape, const std::vector<Scalar>& values, DenseTensor& out) {
  const DenseTensor numbers = DenseTensor::allocate(kCpu, {Dims(shape), x.dtype()});
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) {
    for (size_t i = 0; i < values.size(); ++i) numbers.data<T>()[i] = values[i].to<T>();
  });
  write_slice(
      ctx, x, numbers, {numbers.dims(), Dims::filled(numbers.dims().rank(), 0)},
      meta::written_slice(ctx.op, ctx.input_box(0, x).global, starts, ends, steps, axes, decrease_axes, none_axes),
      out);
}

void set_value_with_tensor(const OpContext& ctx, const DenseTensor& x, const DenseTensor& values,
                           const IntArray& starts, const IntArray& ends, const IntArray& steps, const IntArray& axes,
                           const IntArray& decrease_axes, const IntArray& none_axes, DenseTensor& out) {
  // Values that are the target itself would be written before they are read.
  const DenseTensor apart = values.raw() == out.raw() ? clone(values) : values;
  write_slice(
      ctx, x, apart, ctx.input_box(1, values),
      meta::written_slice(ctx.op, ctx.input_box(0, x).global, starts, ends, steps, axes, decrease_axes, none_axes),
      out);
}

/// y has the dims of x but for the two, sharded alike, and then the diagonal, which is whole.
void fill_diagonal_tensor(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, int64_t offset, int dim1,
                          int dim2, DenseTensor& out) {
  copy_all(x, out);
  const Box box = ctx.input_box(0, x);
  const int rank = x.dims().rank(), rows = normalize_axis(ctx.op, "dim1", dim1, rank),
            columns = normalize_axis(ctx.op, "dim2", dim2, rank);
  const meta::DiagonalRange diagonal = meta::diagonal_range(box.global[rows], box.global[columns], offset);
  const int64_t row = box.begin[rows] - diagonal.row, column = box.begin[columns] - diagonal.column;
  const int64_t first = std::max<int64_t>({row, column, 0});
  const int64_t end = std::min({row + x.dims()[rows], column + x.dims()[columns], diagonal.length});
  if (first >= end) return;
  const Dims strides = strides_of(x.dims()), y_strides = strides_of(y.dims());
  PairWalk pair;
  for (int d = 0, v = 0; d < rank; ++d) {
    if (d != rows && d != columns) pair.add(x.dims()[d], strides[d], y_strides[v++]);
  }
  pair.add(end - first, strides[rows] + strides[columns], 1);
  write_pairs(y, first, pair, (first - row) * strides[rows] + (first - column) * strides[columns], out);
}

}  // namespace

void register_slice_writes() {
  register_for_all("set_value", &set_value);
  register_for_all("set_value_with_tensor", &set_value_with_tensor);
  register_for_all("fill_diagonal_tensor", &fill_diagonal_tensor);
}

}  // namespace shard::cpu
