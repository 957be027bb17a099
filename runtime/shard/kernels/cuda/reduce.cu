// Reductions on CUDA over any axes. The order of combinations depends only on shape and device, so that every run computes
// equal bits.
#include <algorithm>
#include <cuda/std/limits>
#include <vector>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kColumns = 32;  // a block of the column kernel: neighbouring outputs x slices of the reduced elements
constexpr int kSlices = 8;

/// The sums: `outputs` sums of `terms` elements each, each split into `splits` parts of `chunk`
/// elements.
struct Shape {
  Strided<1> kept;
  Strided<1> reduced;
  int64_t outputs;
  int64_t terms;
  int64_t splits = 1;
  int64_t chunk;
};

// How each op reduces: the type in which it accumulates elements of T, its identity, what an element contributes, and how two
// contributions are combined. Integers and bools are summed modulo 2^64.
template <class T>
using SumOf = std::conditional_t<std::is_floating_point_v<math_t<T>>, math_t<T>, uint64_t>;

struct Sum {
  template <class T>
  using Acc = SumOf<T>;
  template <class A>
  static __device__ A identity() {
    return A(0);
  }
  template <class A, class T>
  static __device__ A term(T value) {
    return static_cast<A>(load(value));
  }
  template <class A>
  static __device__ A combine(A a, A b) {
    return a + b;
  }
};
struct SumOfSquares : Sum {
  template <class A, class T>
  static __device__ A term(T value) {
    const A number = static_cast<A>(load(value));
    return number * number;
  }
};
struct Prod : Sum {
  template <class A>
  static __device__ A identity() {
    return A(1);
  }
  template <class A>
  static __device__ A combine(A a, A b) {
    return a * b;
  }
};
/// NaN wins over every number. A bool is a byte that is 0 or 1.
struct Max : Sum {
  template <class T>
  using Acc = std::conditional_t<std::is_same_v<T, bool>, uint8_t, math_t<T>>;
  template <class A>
  static __device__ A identity() {
    if constexpr (std::is_floating_point_v<A>) return -A(INFINITY);
    else return ::cuda::std::numeric_limits<A>::lowest();
  }
  template <class A>
  static __device__ A combine(A a, A b) {
    return a > b || a != a ? a : b;
  }
};
struct Min : Max {
  template <class A>
  static __device__ A identity() {
    if constexpr (std::is_floating_point_v<A>) return A(INFINITY);
    else return ::cuda::std::numeric_limits<A>::max();
  }
  template <class A>
  static __device__ A combine(A a, A b) {
    return a < b || a != a ? a : b;
  }
};
struct Any : Sum {
  template <class T>
  using Acc = uint8_t;
  template <class A, class T>
  static __device__ A term(T value) {
    return load(value) != math_t<T>(0) ? 1 : 0;
  }
  template <class A>
  static __device__ A combine(A a, A b) {
    return static_cast<A>(a | b);
  }
};
struct All : Any {
  template <class A>
  static __device__ A identity() {
    return A(1);
  }
  template <class A>
  static __device__ A combine(A a, A b) {
    return static_cast<A>(a & b);
  }
};

/// The second pass of a reduction in parts: what is reduced are contributions.
template <class Op>
struct OfParts : Op {
  template <class A, class T>
  static __device__ A term(T part) {
    return part;
  }
};

// What becomes of a reduced value.
struct Keep {
  template <class Out, class A>
  __device__ Out operator()(A value) const {
    if constexpr (std::is_same_v<Out, A>) return value;
    else return store<Out>(static_cast<math_t<Out>>(value));
  }
};
struct DivideBy {
  double count;
  template <class Out, class A>
  __device__ Out operator()(A value) const {
    return store<Out>(static_cast<math_t<Out>>(value / static_cast<A>(count)));
  }
};
struct SquareRoot {
  template <class Out, class A>
  __device__ Out operator()(A value) const {
    return store<Out>(static_cast<math_t<Out>>(::sqrt(value)));
  }
};

template <class Op>
struct Combine {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return Op::combine(a, b);
  }
};

__device__ inline int64_t locate(const Strided<1>& shape, int64_t index) {
  int64_t at[1];
  if (index >> 31 == 0) shape.locate(static_cast<uint32_t>(index), at);
  else shape.locate(index, at);
  return at[0];
}

/// One block per part of a sum; neighbouring threads read neighbouring elements. For sums along the
/// inner dim.
template <class Op, class Acc, class Finish, int Threads, class In, class Out>
__global__ void reduce_rows(Out* out, const In* x, Shape shape, Finish finish) {
  for (int64_t part = blockIdx.x; part < shape.outputs * shape.splits; part += gridDim.x) {
    const int64_t first = part / shape.outputs * shape.chunk;
    const int64_t last = min(first + shape.chunk, shape.terms);
    const int64_t from = locate(shape.kept, part % shape.outputs);
    Acc mine = Op::template identity<Acc>();
    for (int64_t i = first + threadIdx.x; i < last; i += Threads) {
      mine = Op::combine(mine, Op::template term<Acc>(x[from + locate(shape.reduced, i)]));
    }
    const Acc all = block_reduce<Threads>(mine, Combine<Op>{});
    if (threadIdx.x == 0) out[part] = finish.template operator()<Out>(all);
  }
}

/// Neighbouring threads compute neighbouring outputs. For sums along outer dims.
template <class Op, class Acc, class Finish, class In, class Out>
__global__ void reduce_columns(Out* out, const In* x, Shape shape, Finish finish) {
  SHARD_SHARED(slices, Acc[kSlices][kColumns]);
  const int64_t groups = (shape.outputs + kColumns - 1) / kColumns;
  for (int64_t part = blockIdx.x; part < groups * shape.splits; part += gridDim.x) {
    const int64_t split = part / groups;
    const int64_t output = part % groups * kColumns + threadIdx.x;
    const int64_t last = min((split + 1) * shape.chunk, shape.terms);
    Acc mine = Op::template identity<Acc>();
    if (output < shape.outputs) {
      const int64_t from = locate(shape.kept, output);
      for (int64_t i = split * shape.chunk + threadIdx.y; i < last; i += kSlices) {
        mine = Op::combine(mine, Op::template term<Acc>(x[from + locate(shape.reduced, i)]));
      }
    }
    slices[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y == 0 && output < shape.outputs) {
      for (int s = 1; s < kSlices; ++s) mine = Op::combine(mine, slices[s][threadIdx.x]);
      out[split * shape.outputs + output] = finish.template operator()<Out>(mine);
    }
    __syncthreads();
  }
}

std::vector<bool> reduced_dims(const OpContext& ctx, const Dims& dims, const IntArray& axes) {
  std::vector<bool> is_reduced(kMaxRank, axes.empty());
  for (int64_t axis : axes) {
    if (dims.rank() > 0) is_reduced[static_cast<size_t>(normalize_axis(ctx.op, "axis", axis, dims.rank()))] = true;
  }
  return is_reduced;
}

Shape shape_of(const OpContext& ctx, const DenseTensor& x, const IntArray& axes) {
  const Dims& dims = x.dims();
  const std::vector<bool> is_reduced = reduced_dims(ctx, dims, axes);
  const Dims strides = broadcast_strides(dims);
  Shape shape{};
  shape.outputs = 1;
  shape.terms = 1;
  for (int i = 0; i < dims.rank(); ++i) {
    const bool reduced = is_reduced[static_cast<size_t>(i)];
    (reduced ? shape.reduced : shape.kept).append(dims[i], {strides[i]});
    (reduced ? shape.terms : shape.outputs) *= dims[i];
  }
  shape.splits = 1;
  shape.chunk = shape.terms;
  return shape;
}

/// Splits long sums into parts when there are too few `blocks` to fill the device. Parts begin at multiples of `unit` terms.
void split_terms(Shape& shape, int64_t blocks, int64_t smallest_chunk, int64_t unit) {
  if (shape.terms == 0) return;  // every output is the identity
  const int64_t wanted = int64_t{multiprocessors()} * 8 / blocks;
  const int64_t most = (shape.terms + smallest_chunk - 1) / smallest_chunk;
  const int64_t splits = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
  shape.chunk = std::min((shape.terms + splits * unit - 1) / (splits * unit) * unit, shape.terms);
  shape.splits = (shape.terms + shape.chunk - 1) / shape.chunk;
}

template <class Op, class Acc, class Finish, class In, class Out>
void launch_reduction(const OpContext& ctx, const Shape& shape, bool rows, Out* out, const In* x, Finish finish) {
  const int64_t parts = shape.outputs * shape.splits;
  if (rows && shape.chunk <= 256) {
    launch(ctx, reduce_rows<Op, Acc, Finish, 32, In, Out>, grid_for(parts * 32, 32), 32, out, x, shape, finish);
  } else if (rows) {
    launch(ctx, reduce_rows<Op, Acc, Finish, 256, In, Out>, grid_for(parts * 256, 256), 256, out, x, shape, finish);
  } else {
    const int64_t groups = (shape.outputs + kColumns - 1) / kColumns * shape.splits;
    const dim3 block(kColumns, kSlices);
    launch(ctx, reduce_columns<Op, Acc, Finish, In, Out>, grid_for(groups * 256, 256), block, out, x, shape, finish);
  }
}

/// Long reductions are split into parts, which a second pass combines.
template <class Op, class Acc, class Finish, class In, class Out>
void run(const OpContext& ctx, Shape shape, Out* out, const In* x, Finish finish) {
  const bool rows = shape.reduced.rank == 0 || shape.reduced.strides[0][shape.reduced.rank - 1] == 1;
  constexpr int64_t kLine = 128;  // elements of any size that fill lines of memory, so that a warp reads whole ones
  if (rows) split_terms(shape, shape.outputs, 4096, kLine);
  else split_terms(shape, (shape.outputs + kColumns - 1) / kColumns, 512, 1);
  if (shape.splits <= 1) return launch_reduction<Op, Acc>(ctx, shape, rows, out, x, finish);
  const Scratch parts(static_cast<size_t>(shape.outputs * shape.splits) * sizeof(Acc));
  Acc* const partial = static_cast<Acc*>(parts.data());
  launch_reduction<Op, Acc>(ctx, shape, rows, partial, x, Keep{});
  Shape second{};
  second.kept.append(shape.outputs, {1});
  second.reduced.append(shape.splits, {shape.outputs});
  second.outputs = shape.outputs;
  second.terms = shape.splits;
  second.splits = 1;
  second.chunk = shape.splits;
  launch_reduction<OfParts<Op>, Acc>(ctx, second, shape.outputs == 1, out, static_cast<const Acc*>(partial), finish);
}

template <class Op, class In, class Out, class Finish>
void reduce_as(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, DenseTensor& out, Finish finish) {
  using D = device_t<In>;
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  run<Op, typename Op::template Acc<D>>(ctx, shape_of(ctx, x, axes), elements<device_t<Out>>(out), elements<const D>(x),
                                        finish);
}

template <class Op, class In, class Out>
void reduce(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, DenseTensor& out) {
  reduce_as<Op, In, Out>(ctx, x, axes, out, Keep{});
}

/// Divides by the number of elements of the whole tensor, of which `x` may be a shard.
template <class T>
void mean(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, DenseTensor& out) {
  const Dims global = ctx.input_box(0, x).global;
  const std::vector<bool> is_reduced = reduced_dims(ctx, global, axes);
  double count = 1;
  for (int i = 0; i < global.rank(); ++i)
    count *= is_reduced[static_cast<size_t>(i)] ? static_cast<double>(global[i]) : 1.0;
  reduce_as<Sum, T, T>(ctx, x, axes, out, DivideBy{count});
}

template <class T>
void squared_l2_norm(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  reduce_as<SumOfSquares, T, T>(ctx, x, {}, out, Keep{});
}

template <class T>
__global__ void square_roots(int64_t count, const double* squares, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = store<T>(static_cast<math_t<T>>(::sqrt(squares[i])));
}

/// Where other ranks hold parts of what is reduced, their squares are added up before the root is taken.
template <class T>
void frobenius_norm(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, bool all,
                    DenseTensor& out) {
  const IntArray along = all ? IntArray() : axes;
  if (ctx.reducer() == nullptr) return reduce_as<SumOfSquares, T, T>(ctx, x, along, out, SquareRoot{});
  const DeviceScope scope(out.device().index);
  DenseTensor squares = DenseTensor::allocate(out.device(), {out.dims(), DType::float64});
  reduce_as<SumOfSquares, T, double>(ctx, x, along, squares, Keep{});
  ctx.all_reduce(squares, ReduceType::sum);
  if (out.numel() == 0) return;
  launch(ctx, square_roots<device_t<T>>, grid_for(out.numel(), 256), 256, out.numel(), squares.data<double>(),
         elements<device_t<T>>(out));
}

}  // namespace

void register_reduce(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sum", backend, dtype_of<T>, reduce<Sum, T, T>);
    register_kernel("prod", backend, dtype_of<T>, reduce<Prod, T, T>);
    register_kernel("mean", backend, dtype_of<T>, mean<T>);
    register_kernel("squared_l2_norm", backend, dtype_of<T>, squared_l2_norm<T>);
    register_kernel("frobenius_norm", backend, dtype_of<T>, frobenius_norm<T>);
  });
  for_types(IntTypes{} + Types<bool>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sum", backend, dtype_of<T>, reduce<Sum, T, int64_t>);
    register_kernel("prod", backend, dtype_of<T>, reduce<Prod, T, int64_t>);
  });
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("max", backend, dtype_of<T>, reduce<Max, T, T>);
    register_kernel("min", backend, dtype_of<T>, reduce<Min, T, T>);
    register_kernel("amax", backend, dtype_of<T>, reduce<Max, T, T>);
    register_kernel("amin", backend, dtype_of<T>, reduce<Min, T, T>);
    register_kernel("all", backend, dtype_of<T>, reduce<All, T, bool>);
    register_kernel("any", backend, dtype_of<T>, reduce<Any, T, bool>);
  });
}

}  // namespace shard::cuda
