// sum on CUDA over any axes. The order of additions depends only on shape and device, so that every
// run computes equal bits.
#include <algorithm>
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

template <class Acc>
struct ToAcc {
  template <class T>
  __host__ __device__ Acc operator()(T value) const {
    return static_cast<Acc>(load(value));
  }
};

struct Plus {
  template <class T>
  __host__ __device__ T operator()(T a, T b) const {
    return a + b;
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
template <class Acc, int Threads, class In, class Out>
__global__ void sum_rows(Out* out, const In* x, Shape shape) {
  for (int64_t part = blockIdx.x; part < shape.outputs * shape.splits; part += gridDim.x) {
    const int64_t first = part / shape.outputs * shape.chunk;
    const int64_t last = min(first + shape.chunk, shape.terms);
    const In* from = x + locate(shape.kept, part % shape.outputs);
    Acc mine{};
    for (int64_t i = first + threadIdx.x; i < last; i += Threads) mine += ToAcc<Acc>{}(from[locate(shape.reduced, i)]);
    const Acc all = block_reduce<Threads>(mine, Plus{});
    if (threadIdx.x == 0) out[part] = store<Out>(all);
  }
}

/// Neighbouring threads compute neighbouring outputs. For sums along outer dims.
template <class Acc, class In, class Out>
__global__ void sum_columns(Out* out, const In* x, Shape shape) {
  SHARD_SHARED(slices, Acc[kSlices][kColumns]);
  const int64_t groups = (shape.outputs + kColumns - 1) / kColumns;
  for (int64_t part = blockIdx.x; part < groups * shape.splits; part += gridDim.x) {
    const int64_t split = part / groups;
    const int64_t output = part % groups * kColumns + threadIdx.x;
    const int64_t last = min((split + 1) * shape.chunk, shape.terms);
    Acc mine{};
    if (output < shape.outputs) {
      const In* from = x + locate(shape.kept, output);
      for (int64_t i = split * shape.chunk + threadIdx.y; i < last; i += kSlices) {
        mine += ToAcc<Acc>{}(from[locate(shape.reduced, i)]);
      }
    }
    slices[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y == 0 && output < shape.outputs) {
      for (int s = 1; s < kSlices; ++s) mine += slices[s][threadIdx.x];
      out[split * shape.outputs + output] = store<Out>(mine);
    }
    __syncthreads();
  }
}

Shape shape_of(const OpContext& ctx, const DenseTensor& x, const IntArray& axes) {
  const Dims& dims = x.dims();
  std::vector<bool> is_reduced(kMaxRank, axes.empty());
  for (int64_t axis : axes) {
    if (dims.rank() > 0) is_reduced[static_cast<size_t>(normalize_axis(ctx.op, "axis", axis, dims.rank()))] = true;
  }
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

/// Splits long sums into parts when there are too few `blocks` to fill the device.
void split(Shape& shape, int64_t blocks, int64_t smallest_chunk) {
  const int64_t wanted = int64_t{multiprocessors()} * 8 / blocks;
  const int64_t most = (shape.terms + smallest_chunk - 1) / smallest_chunk;
  const int64_t splits = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
  shape.chunk = (shape.terms + splits - 1) / splits;
  shape.splits = (shape.terms + shape.chunk - 1) / shape.chunk;
}

template <class Acc, class In, class Out>
void launch_sums(const OpContext& ctx, const Shape& shape, bool rows, Out* out, const In* x) {
  const int64_t parts = shape.outputs * shape.splits;
  if (rows && shape.chunk <= 256) {
    launch(ctx, sum_rows<Acc, 32, In, Out>, grid_for(parts * 32, 32), 32, out, x, shape);
  } else if (rows) {
    launch(ctx, sum_rows<Acc, 256, In, Out>, grid_for(parts * 256, 256), 256, out, x, shape);
  } else {
    const int64_t groups = (shape.outputs + kColumns - 1) / kColumns * shape.splits;
    const dim3 block(kColumns, kSlices);
    launch(ctx, sum_columns<Acc, In, Out>, grid_for(groups * 256, 256), block, out, x, shape);
  }
}

/// A second pass adds up the parts of every sum.
template <class Acc, class In, class Out>
void sum_some(const OpContext& ctx, Shape shape, Out* out, const In* x) {
  const bool rows = shape.reduced.rank == 0 || shape.reduced.strides[0][shape.reduced.rank - 1] == 1;
  if (rows) split(shape, shape.outputs, 4096);
  else split(shape, (shape.outputs + kColumns - 1) / kColumns, 512);
  if (shape.splits == 1) return launch_sums<Acc>(ctx, shape, rows, out, x);
  const Scratch parts(static_cast<size_t>(shape.outputs * shape.splits) * sizeof(Acc));
  Acc* const partial = static_cast<Acc*>(parts.data());
  launch_sums<Acc>(ctx, shape, rows, partial, x);
  Shape second{};
  second.kept.append(shape.outputs, {1});
  second.reduced.append(shape.splits, {shape.outputs});
  second.outputs = shape.outputs;
  second.terms = shape.splits;
  second.splits = 1;
  second.chunk = shape.splits;
  launch_sums<Acc>(ctx, second, shape.outputs == 1, out, static_cast<const Acc*>(partial));
}

template <class In, class Out>
void sum(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, DenseTensor& out) {
  using D = device_t<In>;
  using R = device_t<Out>;
  using Acc = math_t<R>;
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  if (x.numel() == 0) { return check(cudaMemsetAsync(out.raw(), 0, out.meta().bytes(), stream()), "cudaMemsetAsync"); }
  const Shape shape = shape_of(ctx, x, axes);
  sum_some<Acc>(ctx, shape, elements<R>(out), elements<const D>(x));
}

}  // namespace

void register_sum(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("sum", backend, dtype_of<T>, sum<T, T>); });
  for_types(IntTypes{} + Types<bool>{},
            [&]<class T>(TypeTag<T>) { register_kernel("sum", backend, dtype_of<T>, sum<T, int64_t>); });
}

}  // namespace shard::cuda
