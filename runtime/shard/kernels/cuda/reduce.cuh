// Reductions on CUDA over any axes. The order of combinations depends only on shape, dtype and device, so that every run computes equal
// bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cuda/std/limits>
#include <vector>

#include "shard/core/op_context.h"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda::reduction {

// How elements are reduced is a struct that is a kernel argument:
//   template <class T> using Acc = ...;                     what elements of T are combined in
//   A identity<A>() const;
//   A term<A>(T value) const;                               what an element contributes, or instead of it
//   A combine(A a, A b) const;                              commutes but for rounding
//   A add<A>(A a, const T (&values)[K]) const;              a combined with K elements

/// Integers and bools are summed modulo 2^64.
template <class T>
using SumOf = std::conditional_t<std::is_floating_point_v<math_t<T>>, math_t<T>, uint64_t>;

struct Sum {
  template <class T>
  using Acc = SumOf<T>;
  template <class A>
  __device__ A identity() const {
    return A(0);
  }
  template <class A, class T>
  __device__ A term(T value) const {
    return static_cast<A>(load(value));
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    return a + b;
  }
};
/// NaN wins over every number. A bool is a byte that is 0 or 1.
struct Max : Sum {
  template <class T>
  using Acc = std::conditional_t<std::is_same_v<T, bool>, uint8_t, math_t<T>>;
  template <class A>
  __device__ A identity() const {
    if constexpr (std::is_floating_point_v<A>) return -A(INFINITY);
    else return ::cuda::std::numeric_limits<A>::lowest();
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    return a > b || a != a ? a : b;
  }
};
struct Min : Max {
  template <class A>
  __device__ A identity() const {
    if constexpr (std::is_floating_point_v<A>) return A(INFINITY);
    else return ::cuda::std::numeric_limits<A>::max();
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    return a < b || a != a ? a : b;
  }
};

/// The second pass of a reduction in parts: what is reduced are contributions.
template <class Op>
struct OfParts {
  static constexpr bool kNoPacks = true;  // parts are few
  Op op;
  template <class A>
  __device__ A identity() const {
    return op.template identity<A>();
  }
  template <class A, class T>
  __device__ A term(T part) const {
    return part;
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    return op.combine(a, b);
  }
};

// What becomes of a reduced value is a struct with a function that returns the result. It is inlined for the model of CUDA, whose compiler
// does not see the store of a class that a function returns.
struct Keep {
  template <class Out, class A>
  __device__ __forceinline__ Out operator()(A value) const {
    if constexpr (std::is_same_v<Out, A>) return value;
    else return store<Out>(static_cast<math_t<Out>>(value));
  }
};

template <class Op>
struct Combine {
  Op op;
  template <class A>
  __device__ A operator()(A a, A b) const {
    return op.combine(a, b);
  }
};

template <class Op, class A, class T, int K>
__device__ A add(const Op& op, A to, const T (&values)[K]) {
  if constexpr (requires { op.template add<A>(to, values); }) {
    return op.template add<A>(to, values);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) to = op.combine(to, op.template term<A>(values[k]));
    return to;
  }
}

constexpr int kColumnThreads = 256;  // of a block of the column kernel

/// `outputs` results of `terms` elements each, each split into `splits` parts of `chunk` elements.
struct Shape {
  Strided<1> kept;
  Strided<1> reduced;
  int64_t outputs = 1;
  int64_t terms = 1;
  int64_t splits = 1;
  int64_t chunk = 1;
  /// Of columns: threads for neighbouring outputs, a power of 2, at most a warp.
  int columns = 1;
  bool packed = false;   // threads take packs of neighbouring elements, or of outputs
  bool aligned = false;  // each pack is one access

  /// Where neighbouring threads take neighbouring terms, not outputs.
  bool rows() const { return reduced.rank == 0 || reduced.strides[0][reduced.rank - 1] == 1; }
};

/// Elements of T in a pack: of a row as many as one access reads, of columns as many as fill 4 bytes.
template <class T>
inline constexpr int kRowPack = sizeof(T) <= 8 && 16 % sizeof(T) == 0 ? 16 / static_cast<int>(sizeof(T)) : 1;
template <class T>
inline constexpr int kColumnPack = sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1;

__device__ inline int64_t locate(const Strided<1>& shape, int64_t index) {
  int64_t at[1];
  if (index >> 31 == 0) shape.locate(static_cast<uint32_t>(index), at);
  else shape.locate(index, at);
  return at[0];
}

template <int K, class T>
__device__ void read(const T* from, bool aligned, T (&values)[K]) {
  if constexpr (K == 1) {
    values[0] = *from;
  } else if (aligned) {
    load_elements<K>(from, 0, values);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) values[k] = from[k];
  }
}

/// `Threads` threads per part of a reduction; neighbouring threads read neighbouring elements, or packs. For reductions along the inner dim.
template <int Threads, class Acc, class Op, class Finish, class In, class Out>
__global__ void reduce_rows(Out* out, const In* x, Shape shape, Op op, Finish finish) {
  constexpr int K = kRowPack<In>;
  [[maybe_unused]] constexpr int kAhead = K < 16 ? 16 / K : 1;  // packs that are read before any is added
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t part = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; part < shape.outputs * shape.splits;
       part += step) {
    int64_t first = part / shape.outputs * shape.chunk;
    const int64_t last = min(first + shape.chunk, shape.terms);
    const In* const from = x + locate(shape.kept, part % shape.outputs);
    Acc mine = op.template identity<Acc>();
    if constexpr (K > 1 && !requires { Op::kNoPacks; }) {
      if (shape.packed) {
        const int64_t packs = (last - first) / K;
#pragma unroll kAhead
        for (int64_t i = threadIdx.x; i < packs; i += Threads) {
          In values[K];
          read<K>(from + first + i * K, shape.aligned, values);
          mine = add(op, mine, values);
        }
        first += packs * K;
      }
    }
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < last; i += Threads) {
      const In value[1] = {from[locate(shape.reduced, i)]};
      mine = add(op, mine, value);
    }
    const Acc all = block_reduce<Threads>(mine, Combine<Op>{op});
    if (threadIdx.x == 0) out[part] = finish.template operator()<Out>(all);
  }
}

/// Neighbouring threads compute neighbouring outputs, K each: `shape.columns` of them, and then the same outputs of the next of
/// kColumnThreads / columns slices of the elements. For reductions along outer dims.
template <int K, class Acc, class Op, class Finish, class In, class Out>
__global__ void reduce_columns(Out* out, const In* x, Shape shape, Op op, Finish finish) {
  SHARD_SHARED(of_threads, Acc[kColumnThreads * K]);
  const int columns = shape.columns, width = columns * K, slices = kColumnThreads / columns;
  const int column = static_cast<int>(threadIdx.x) % columns, slice = static_cast<int>(threadIdx.x) / columns;
  const int64_t groups = (shape.outputs + width - 1) / width;
  for (int64_t part = blockIdx.x; part < groups * shape.splits; part += gridDim.x) {
    const int64_t split = part / groups, first = part % groups * width;
    const int64_t output = first + column * K, last = min((split + 1) * shape.chunk, shape.terms);
    Acc mine[K];
#pragma unroll
    for (int k = 0; k < K; ++k) mine[k] = op.template identity<Acc>();
    if (output < shape.outputs) {
      const In* const from = x + locate(shape.kept, output);
#pragma unroll 4
      for (int64_t i = split * shape.chunk + slice; i < last; i += slices) {
        In values[K];
        read<K>(from + locate(shape.reduced, i), shape.aligned, values);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const In value[1] = {values[k]};
          mine[k] = add(op, mine[k], value);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) of_threads[slice * width + column * K + k] = mine[k];
    __syncthreads();
    // Neighbouring threads write neighbouring outputs, of whatever K.
    for (int c = static_cast<int>(threadIdx.x); c < width && first + c < shape.outputs; c += kColumnThreads) {
      Acc all = of_threads[c];
      for (int s = 1; s < slices; ++s) all = op.combine(all, of_threads[s * width + c]);
      out[split * shape.outputs + first + c] = finish.template operator()<Out>(all);
    }
    __syncthreads();
  }
}

inline std::vector<bool> reduced_dims(const OpContext& ctx, const Dims& dims, const IntArray& axes) {
  std::vector<bool> is_reduced(kMaxRank, axes.empty());
  for (int64_t axis : axes) {
    if (dims.rank() > 0) is_reduced[static_cast<size_t>(normalize_axis(ctx.op, "axis", axis, dims.rank()))] = true;
  }
  return is_reduced;
}

inline Shape shape_of(const OpContext& ctx, const DenseTensor& x, const IntArray& axes) {
  const Dims& dims = x.dims();
  const std::vector<bool> is_reduced = reduced_dims(ctx, dims, axes);
  const Dims strides = broadcast_strides(dims);
  Shape shape;
  for (int i = 0; i < dims.rank(); ++i) {
    const bool reduced = is_reduced[static_cast<size_t>(i)];
    (reduced ? shape.reduced : shape.kept).append(dims[i], {strides[i]});
    (reduced ? shape.terms : shape.outputs) *= dims[i];
  }
  shape.chunk = shape.terms;
  return shape;
}

/// Splits long reductions into parts when there are too few `blocks` to fill the device. Parts begin at multiples of `unit` terms.
inline void split_terms(Shape& shape, int64_t blocks, int64_t smallest_chunk, int64_t unit) {
  if (shape.terms == 0) return;  // every output is the identity
  const int64_t wanted = int64_t{multiprocessors()} * 8 / blocks;
  const int64_t most = (shape.terms + smallest_chunk - 1) / smallest_chunk;
  const int64_t splits = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
  shape.chunk = std::min((shape.terms + splits * unit - 1) / (splits * unit) * unit, shape.terms);
  shape.splits = (shape.terms + shape.chunk - 1) / shape.chunk;
}

template <int K, class Acc, class Op, class Finish, class In, class Out>
void launch_columns(const OpContext& ctx, const Shape& shape, Out* out, const In* x, const Op& op,
                    const Finish& finish) {
  const int64_t width = shape.columns * K, blocks = (shape.outputs + width - 1) / width * shape.splits;
  launch(ctx, reduce_columns<K, Acc, Op, Finish, In, Out>, grid_for(blocks * kColumnThreads, kColumnThreads),
         kColumnThreads, out, x, shape, op, finish);
}

template <class Acc, class Op, class Finish, class In, class Out>
void launch_reduction(const OpContext& ctx, const Shape& shape, Out* out, const In* x, const Op& op,
                      const Finish& finish) {
  constexpr int kWarps = 4, kThreads = 256;
  const int64_t parts = shape.outputs * shape.splits;
  if (!shape.rows()) {
    constexpr int kPack = kColumnPack<In>;
    if (kPack > 1 && shape.packed) return launch_columns<kPack, Acc>(ctx, shape, out, x, op, finish);
    return launch_columns<1, Acc>(ctx, shape, out, x, op, finish);
  }
  if (shape.chunk <= kWarp * 4 * kRowPack<In>) {
    launch(ctx, reduce_rows<kWarp, Acc, Op, Finish, In, Out>, grid_for(parts * kWarp, kWarp * kWarps),
           dim3(kWarp, kWarps), out, x, shape, op, finish);
  } else {
    launch(ctx, reduce_rows<kThreads, Acc, Op, Finish, In, Out>, grid_for(parts * kThreads, kThreads),
           dim3(kThreads, 1), out, x, shape, op, finish);
  }
}

/// Threads for `count` neighbouring packs of outputs.
inline int column_threads(int64_t count) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(count, kWarp))));
}

/// Long reductions are split into parts, which a second pass combines.
template <class Acc, class Op, class In, class Out, class Finish>
void run(const OpContext& ctx, Shape shape, Out* out, const In* x, const Op& op, const Finish& finish) {
  constexpr int64_t kLine = 128;  // elements of any size that fill lines of memory, so that a warp reads whole ones
  const Strided<1>& kept = shape.kept;
  int pack = kRowPack<In>;
  if (shape.rows()) {
    split_terms(shape, shape.outputs, 4096, kLine);
    shape.packed = shape.reduced.rank == 1 && (shape.outputs == 1 || shape.terms % pack == 0);
  } else {
    pack = kColumnPack<In>;
    shape.packed = kept.rank > 0 && kept.strides[0][kept.rank - 1] == 1 && kept.sizes[kept.rank - 1] % pack == 0;
    if (!shape.packed) pack = 1;
    const int64_t columns = (shape.outputs + pack - 1) / pack;
    shape.columns = column_threads(columns);
    constexpr int64_t kTermsOfThread = 64;
    split_terms(shape, (columns + kWarp - 1) / kWarp, kTermsOfThread * kColumnThreads / shape.columns, 1);
  }
  shape.aligned = reinterpret_cast<uintptr_t>(x) % (static_cast<size_t>(pack) * sizeof(In)) == 0;
  if (shape.splits <= 1) return launch_reduction<Acc>(ctx, shape, out, x, op, finish);
  const Scratch parts(static_cast<size_t>(shape.outputs * shape.splits) * sizeof(Acc));
  Acc* const partial = static_cast<Acc*>(parts.data());
  launch_reduction<Acc>(ctx, shape, partial, x, op, Keep{});
  Shape second;
  second.kept.append(shape.outputs, {1});
  second.reduced.append(shape.splits, {shape.outputs});
  second.outputs = shape.outputs;
  second.terms = second.chunk = shape.splits;
  second.columns = column_threads(shape.outputs);
  launch_reduction<Acc>(ctx, second, out, static_cast<const Acc*>(partial), OfParts<Op>{op}, finish);
}

/// Reduces x over the axes to `out`, one result of `finish` after the other.
template <class T, class Op, class Out, class Finish>
void reduce(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, int64_t outputs, Out* out, const Op& op,
            const Finish& finish) {
  if (outputs == 0) return;
  run<typename Op::template Acc<T>>(ctx, shape_of(ctx, x, axes), out, elements<const T>(x), op, finish);
}

}  // namespace shard::cuda::reduction
