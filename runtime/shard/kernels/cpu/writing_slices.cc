// CPU kernels that write values at places that attributes name, which are slices and diagonals. A
// rank writes what is in its shard.
#include <memory>

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_writing.h"
#include "shard/kernels/cpu/walk.h"
#include "shard/kernels/cpu/written_places.h"
#include "shard/meta/writing.h"

namespace shard::cpu {
namespace {

/// Copies the elements of pairs, as integers of their size.
void write_pairs(const DenseTensor& from, const PlacePairs& pairs, DenseTensor& to) {
  if (pairs.is_empty) return;
  PairWalk walk;
  for (int d = 0; d < pairs.rank; ++d) walk.add(pairs.sizes[d], pairs.to_steps[d], pairs.from_steps[d]);
  const auto copy = [&]<class T>(TypeTag<T>) {
    copy_pairs(from.data<T>() + pairs.from, walk, to.data<T>() + pairs.to);
  };
  switch (size_of(to.dtype())) {
    case 1: return copy(TypeTag<uint8_t>());
    case 2: return copy(TypeTag<uint16_t>());
    case 4: return copy(TypeTag<uint32_t>());
    default: return copy(TypeTag<uint64_t>());
  }
}

/// x with values written into the slice; `box` is that of values.
void write_slice(const OpContext& ctx, const DenseTensor& x, const DenseTensor& values, const Box& box,
                 const meta::WrittenSlice& slice, DenseTensor& out) {
  copy_all(x, out);
  const Box whole = ctx.input_box(0, x);
  write_pairs(values,
              slice_places(ctx, slice, {x.dims(), strides_of(x.dims()), whole},
                           {values.dims(), strides_of(values.dims()), box}),
              out);
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

void fill_diagonal_tensor(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, int64_t offset, int dim1,
                          int dim2, DenseTensor& out) {
  copy_all(x, out);
  const Box box = ctx.input_box(0, x);
  write_pairs(y, diagonal_places(ctx, offset, dim1, dim2, {x.dims(), strides_of(x.dims()), box}, strides_of(y.dims())),
              out);
}

}  // namespace

void register_slice_writes() {
  register_for_all("set_value", &set_value);
  register_for_all("set_value_with_tensor", &set_value_with_tensor);
  register_for_all("fill_diagonal_tensor", &fill_diagonal_tensor);
}

}  // namespace shard::cpu
