// Kernels along one axis of a tensor. A warp or a block shares a line and keeps it in registers where it fits, so that memory is
// read once; lines whose elements are apart belong to one thread each, and neighbouring threads to neighbouring lines.
//
// An op on lines is a struct that is a kernel argument:
//   using Element = T;  static constexpr int kInputs = N;
//   const T* in[N];  T* out;  ...
//   template <class Line> __device__ void operator()(const Line& line) const;
// A Line has `size` elements and is number `index` of all lines. line.each(f) calls f(i, values) for elements of this thread,
// whose N values are in the type of arithmetic; line.write(out, f) stores f(i, values) there; line.reduce combines what all threads of the
// line have; line.leads() is true in one of them, and line.element(n, k) reads element k of input n again.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda {

struct Plus {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};

/// A tensor viewed as [outer, size, inner] around one axis.
struct LineShape {
  int64_t outer = 1, size = 1, inner = 1;

  int64_t lines() const { return outer * inner; }
};

inline LineShape line_shape(const OpContext& ctx, const Dims& dims, int axis_given) {
  const int axis = normalize_axis(ctx.op, "axis", axis_given, dims.rank());
  if (dims.rank() == 0) return {};
  return {dims.numel(0, axis), dims[axis], dims.numel(axis + 1, dims.rank())};
}

/// A line of consecutive elements, shared by `Threads` threads. Each has Chunks accesses of Width elements in registers; where
/// Chunks is 0 the line is read again by each pass.
template <class T, int N, int Threads, int Width, int Chunks>
class Row {
 public:
  using Math = math_t<T>;
  static constexpr bool kCached = Chunks != 0;
  int64_t index, size;

  __device__ Row(const T* const (&from)[N], int64_t row, int64_t elements) : index(row), size(elements) {
#pragma unroll
    for (int n = 0; n < N; ++n) from_[n] = from[n] + row * size;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int64_t at = (int64_t{c} * Threads + threadIdx.x) * Width;
      if (at >= size) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) read(from_[n] + at, kept_[c][n]);
    }
  }
  __device__ bool leads() const { return threadIdx.x == 0; }

  __device__ Math element(int n, int64_t k) const { return load(from_[n][k]); }

  template <class F>
  __device__ void each(F f) const {
    each_piece([&](int64_t at, int, const Math(&values)[N][Width]) {
#pragma unroll
      for (int w = 0; w < Width; ++w) call(f, at, values, w);
    });
  }
  template <class F>
  __device__ void write(T* out, F f) const {
    each_piece([&](int64_t at, int, const Math(&values)[N][Width]) {
      Math results[Width];
#pragma unroll
      for (int w = 0; w < Width; ++w) results[w] = call(f, at, values, w);
      write_piece(out, at, results);
    });
  }
  /// Calls f(at, chunk, values) for the pieces of this thread: Width neighbours of each input from element `at` on. The chunks of a
  /// cached line are numbered, so that arrays of the caller that have an element for each stay in registers.
  template <class F>
  __device__ void each_piece(F f) const {
    visit([&](int64_t at, int chunk, const T(&pieces)[N][Width]) {
      Math values[N][Width];
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int w = 0; w < Width; ++w) values[n][w] = load(pieces[n][w]);
      }
      f(at, chunk, values);
    });
  }
  __device__ void write_piece(T* out, int64_t at, const Math (&numbers)[Width]) const {
    T results[Width];
#pragma unroll
    for (int w = 0; w < Width; ++w) results[w] = store<T>(numbers[w]);
    store_elements(out + index * size, at / Width, results);
  }
  template <class A, class F>
  __device__ A reduce(A value, F combine) const {
    return block_reduce<Threads>(value, combine);
  }

 private:
  static __device__ void read(const T* from, T (&piece)[Width]) {
    if constexpr (Width == 1) {
      piece[0] = *from;
    } else {
      const Pack<T> pack = load_pack(from, 0);
#pragma unroll
      for (int w = 0; w < Width; ++w) piece[w] = pack.values[w];
    }
  }
  template <class F>
  static __device__ auto call(F& f, int64_t at, const Math (&pieces)[N][Width], int w) {
    Math values[N];
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] = pieces[n][w];
    return f(at + w, values);
  }
  template <class F>
  __device__ void visit(F f) const {
    if constexpr (kCached) {
#pragma unroll
      for (int c = 0; c < Chunks; ++c) {
        const int64_t at = (int64_t{c} * Threads + threadIdx.x) * Width;
        if (at < size) f(at, c, kept_[c]);
      }
    } else {
      for (int64_t at = int64_t{threadIdx.x} * Width; at < size; at += int64_t{Threads} * Width) {
        T pieces[N][Width];
#pragma unroll
        for (int n = 0; n < N; ++n) read(from_[n] + at, pieces[n]);
        f(at, 0, pieces);
      }
    }
  }

  const T* from_[N];
  T kept_[Chunks == 0 ? 1 : Chunks][N][Width];
};

/// A line whose elements are `inner` apart, of one thread.
template <class T, int N>
class Column {
 public:
  using Math = math_t<T>;
  static constexpr bool kCached = false;
  int64_t index, size;

  __device__ Column(const T* const (&from)[N], int64_t column, int64_t elements, int64_t inner)
      : index(column), size(elements), inner_(inner), base_(column / inner * inner * elements + column % inner) {
    for (int n = 0; n < N; ++n) from_[n] = from[n] + base_;
  }
  __device__ bool leads() const { return true; }
  __device__ Math element(int n, int64_t k) const { return load(from_[n][k * inner_]); }

  template <class F>
  __device__ void each(F f) const {
    for (int64_t i = 0; i < size; ++i) call(f, i);
  }
  template <class F>
  __device__ void write(T* out, F f) const {
    for (int64_t i = 0; i < size; ++i) out[base_ + i * inner_] = store<T>(call(f, i));
  }
  template <class A, class F>
  __device__ A reduce(A value, F) const {
    return value;
  }

 private:
  template <class F>
  __device__ auto call(F& f, int64_t i) const {
    Math values[N];
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] = load(from_[n][i * inner_]);
    return f(i, values);
  }

  int64_t inner_, base_;
  const T* from_[N];
};

template <class Op, int Threads, int Width, int Chunks>
__global__ void __launch_bounds__(Threads == kWarp ? 128 : Threads) along_rows(Op op, int64_t rows, int64_t size) {
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows; row += step)
    op(Row<typename Op::Element, Op::kInputs, Threads, Width, Chunks>(op.in, row, size));
}

template <class Op>
__global__ void along_columns(Op op, int64_t columns, int64_t size, int64_t inner) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; column < columns; column += step)
    op(Column<typename Op::Element, Op::kInputs>(op.in, column, size, inner));
}

template <int Threads, int Width, int Chunks, class Op>
void launch_rows(const OpContext& ctx, const Op& op, int64_t rows, int64_t size) {
  const dim3 block(Threads, Threads == kWarp ? 4 : 1);
  launch(ctx, along_rows<Op, Threads, Width, Chunks>, grid_for(rows * Threads, static_cast<int>(Threads * block.y)),
         block, op, rows, size);
}

template <int Width, class Op>
void launch_rows_of(const OpContext& ctx, const Op& op, int64_t rows, int64_t size) {
  constexpr int kElement = static_cast<int>(sizeof(typename Op::Element));
  constexpr int kAccess = Width * kElement < 4 ? 4 : Width * kElement;  // bytes of registers
  constexpr int kChunks = 128 / Op::kInputs / kAccess;
  constexpr int kEach = kChunks * Width;
  if (size <= kWarp * kEach) launch_rows<kWarp, Width, kChunks>(ctx, op, rows, size);
  else if (size <= 256 * kEach) launch_rows<256, Width, kChunks>(ctx, op, rows, size);
  else if (size <= 1024 * kEach) launch_rows<1024, Width, kChunks>(ctx, op, rows, size);
  else launch_rows<1024, Width, 0>(ctx, op, rows, size);
}

inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

/// Runs the op on all lines.
template <class Op>
void launch_lines(const OpContext& ctx, const Op& op, const LineShape& shape) {
  if (shape.lines() == 0) return;
  if (shape.inner > 1) {
    launch(ctx, along_columns<Op>, grid_for(shape.lines(), 128), 128, op, shape.lines(), shape.size, shape.inner);
    return;
  }
  constexpr int kWidth = Pack<typename Op::Element>::kSize;
  bool aligned = shape.size % kWidth == 0 && is_aligned(op.out);
  for (const auto* in : op.in) aligned = aligned && is_aligned(in);
  if (aligned) launch_rows_of<kWidth>(ctx, op, shape.outer, shape.size);
  else launch_rows_of<1>(ctx, op, shape.outer, shape.size);
}

/// `count` doubles for each line on the device of the op, to be added up over ranks. They are arbitrary at first.
inline DenseTensor numbers_of_lines(const DenseTensor& like, int64_t lines, int64_t count = 1) {
  return DenseTensor::allocate(like.device(), {Dims{lines, count}, DType::float64});
}

}  // namespace shard::cuda
