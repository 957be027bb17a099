// Values written at places that attributes name, on CUDA: set_value, set_value_with_tensor, fill_diagonal, fill_diagonal_tensor. A rank
// writes what is in its shard.
#include <algorithm>
#include <cstring>

#include "shard/core/convert.h"
#include "shard/kernels/cpu/written_places.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/strided_copy.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"
#include "shard/meta/writing.h"

namespace shard::cuda {
namespace {

/// Copies the elements of pairs. A dim that is written backwards is read backwards instead.
void write_pairs(const OpContext& ctx, const DenseTensor& from, cpu::PlacePairs pairs, const DenseTensor& to) {
  if (pairs.is_empty) return;
  StridedCopy copy(size_of(to.dtype()));
  for (int d = 0; d < pairs.rank; ++d) {
    const bool backwards = pairs.to_steps[d] < 0;
    const int64_t last = pairs.sizes[d] - 1, sign = backwards ? -1 : 1;
    if (backwards) {
      pairs.to += last * pairs.to_steps[d];
      pairs.from += last * pairs.from_steps[d];
    }
    copy.add(pairs.sizes[d], sign * pairs.to_steps[d], sign * pairs.from_steps[d]);
  }
  copy.run(ctx, address_of(to, pairs.to), address_of(from, pairs.from));
}

/// x with values written into the slice; `box` is that of values.
void write_slice(const OpContext& ctx, const DenseTensor& x, const DenseTensor& values, const Box& box,
                 const meta::WrittenSlice& slice, DenseTensor& out) {
  copy_all(x, out);
  const Box whole = ctx.input_box(0, x);
  write_pairs(ctx, values,
              cpu::slice_places(ctx, slice, {x.dims(), steps_of(x.dims()), whole},
                                {values.dims(), steps_of(values.dims()), box}),
              out);
}

/// Numbers are arguments of a kernel, so that nothing waits for a copy from the host.
struct Words {
  static constexpr int kMost = 256;
  uint64_t values[kMost];
};
template <class W>
__global__ void write_words(int count, Words words, W* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) out[i] = static_cast<W>(words.values[i]);
}

/// The numbers as a tensor on the device of `like`, of its dtype.
DenseTensor tensor_of(const OpContext& ctx, const IntArray& shape, const std::vector<Scalar>& numbers,
                      const DenseTensor& like) {
  const DenseTensor tensor = DenseTensor::allocate(like.device(), {Dims(shape), like.dtype()});
  const auto count = static_cast<int64_t>(numbers.size());
  for (int64_t first = 0; first < count; first += Words::kMost) {
    const int n = static_cast<int>(std::min<int64_t>(Words::kMost, count - first));
    Words words{};
    visit_dtype(like.dtype(), [&]<class T>(TypeTag<T>) {
      for (int i = 0; i < n; ++i) {
        const T number = numbers[static_cast<size_t>(first + i)].to<T>();
        std::memcpy(&words.values[i], &number, sizeof(T));
      }
    });
    visit_word(static_cast<int>(size_of(like.dtype())), [&]<class W>(TypeTag<W>) {
      if constexpr (std::is_integral_v<W>)
        launch(ctx, write_words<W>, 1, Words::kMost, n, words, static_cast<W*>(tensor.raw()) + first);
    });
  }
  return tensor;
}

void set_value(const OpContext& ctx, const DenseTensor& x, const IntArray& starts, const IntArray& ends,
               const IntArray& steps, const IntArray& axes, const IntArray& decrease_axes, const IntArray& none_axes,
               const IntArray& shape, const std::vector<Scalar>& values, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const DenseTensor numbers = tensor_of(ctx, shape, values, x);
  write_slice(
      ctx, x, numbers, {numbers.dims(), Dims::filled(numbers.dims().rank(), 0)},
      meta::written_slice(ctx.op, ctx.input_box(0, x).global, starts, ends, steps, axes, decrease_axes, none_axes),
      out);
}

void set_value_with_tensor(const OpContext& ctx, const DenseTensor& x, const DenseTensor& values,
                           const IntArray& starts, const IntArray& ends, const IntArray& steps, const IntArray& axes,
                           const IntArray& decrease_axes, const IntArray& none_axes, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  // Values that are the target itself would be written before they are read.
  const DenseTensor apart = values.raw() == out.raw() ? clone(values) : values;
  write_slice(
      ctx, x, apart, ctx.input_box(1, values),
      meta::written_slice(ctx.op, ctx.input_box(0, x).global, starts, ends, steps, axes, decrease_axes, none_axes),
      out);
}

/// Element i of the diagonal is at [i, .., i, i + offset] of the whole tensor; with `wrap` it is every (columns + 1)-th
/// element of a matrix, moved by `offset` within its row.
struct Diagonal {
  int rank;
  int64_t sizes[kMaxRank], begins[kMaxRank];  // of the local shard
  int64_t columns, offset;
  bool wrap;
};

template <class W>
__global__ void fill_diagonal_kernel(int64_t count, Diagonal diagonal, W value, W* out) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    int64_t row = i, column = i;
    if (diagonal.wrap) {
      row = i * (diagonal.columns + 1) / diagonal.columns;
      column = i * (diagonal.columns + 1) % diagonal.columns;
    }
    column += diagonal.offset;
    if (column < 0 || column >= diagonal.columns) continue;
    int64_t element = 0;
    bool is_here = true;
    for (int d = 0; d < diagonal.rank; ++d) {
      const int64_t at = (d == diagonal.rank - 1 ? column : row) - diagonal.begins[d];
      is_here = is_here && at >= 0 && at < diagonal.sizes[d];
      element = element * diagonal.sizes[d] + at;
    }
    if (is_here) out[element] = value;
  }
}

template <class T>
void fill_diagonal(const OpContext& ctx, const DenseTensor& x, float value, int offset, bool wrap, DenseTensor& out) {
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  copy_all(x, out);
  const Box box = ctx.input_box(0, x);
  const int rank = x.dims().rank();
  const int64_t columns = box.global[rank - 1];
  Diagonal diagonal{rank, {}, {}, columns, offset, wrap && rank == 2};
  for (int d = 0; d < rank; ++d) {
    diagonal.sizes[d] = x.dims()[d];
    diagonal.begins[d] = box.begin[d];
  }
  const int64_t count =
      diagonal.wrap ? (box.global[0] * columns + columns) / (columns + 1) : std::min(box.global[0], columns);
  const T number = convert<T>(static_cast<double>(value));
  visit_word(static_cast<int>(sizeof(T)), [&]<class W>(TypeTag<W>) {
    if constexpr (sizeof(W) == sizeof(T)) {
      W word;
      std::memcpy(&word, &number, sizeof(T));
      launch(ctx, fill_diagonal_kernel<W>, grid_for(count, kThreads), kThreads, count, diagonal, word,
             static_cast<W*>(out.raw()));
    }
  });
}

void fill_diagonal_tensor(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, int64_t offset, int dim1,
                          int dim2, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  copy_all(x, out);
  const Box box = ctx.input_box(0, x);
  write_pairs(ctx, y,
              cpu::diagonal_places(ctx, offset, dim1, dim2, {x.dims(), steps_of(x.dims()), box}, steps_of(y.dims())),
              out);
}

}  // namespace

void register_writing(int backend) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("set_value", backend, dtype_of<T>, &set_value);
    register_kernel("set_value_with_tensor", backend, dtype_of<T>, &set_value_with_tensor);
    register_kernel("fill_diagonal_tensor", backend, dtype_of<T>, &fill_diagonal_tensor);
    register_kernel("fill_diagonal", backend, dtype_of<T>, &fill_diagonal<T>);
  });
}

}  // namespace shard::cuda
