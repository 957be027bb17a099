// What collectives and reshards need of CUDA devices: copies of boxes, conversions, reductions and marks (kernels/device_work.h).
#include <limits>

#include "shard/core/error.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/device_work.h"

#define SHARD_FORMULA_INLINE __device__ inline

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/reduction.inc"

constexpr int kThreads = 256;
constexpr int kMaxInputs = 256;  // pointers that fit the arguments of a kernel

// What errors of launches call these kernels.
const OpContext kCopy{"copy_box"}, kConvert{"convert_floats"}, kReduce{"reduce_in_order"}, kFill{"fill_identity"};

/// The position of this thread in the grid, and the number of threads.
__device__ int64_t first_item() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }
__device__ int64_t item_step() { return gridDim.x * int64_t{blockDim.x}; }

/// Copies `count` units that lie at strides of units.
template <class Unit, class Index>
__global__ void copy_units(Index count, Strided<2> shape, Unit* to, const Unit* from) {
  const Index step = static_cast<Index>(item_step());
  for (Index i = static_cast<Index>(first_item()); i < count; i += step) {
    int64_t at[2];
    shape.locate(i, at);
    to[at[0]] = from[at[1]];
  }
}

/// The loops of a copy of a box, from the outermost inwards: turns, and strides in bytes. The last one is over single bytes.
struct Loops {
  int depth = 0;
  int64_t turns[kMaxRank + 1];
  int64_t strides[2][kMaxRank + 1];
};

Loops loops_of(const BoxView& to, const BoxView& from, const Dims& extent, size_t element) {
  Loops loops;
  int64_t to_step = static_cast<int64_t>(element), from_step = to_step;
  loops.turns[0] = to_step;
  loops.strides[0][0] = loops.strides[1][0] = 1;
  loops.depth = 1;
  for (int d = extent.rank() - 1; d >= 0; --d) {  // from the innermost outwards, and reversed below
    const int last = loops.depth - 1;
    if (extent[d] != 1) {
      const bool merges = to_step == loops.turns[last] * loops.strides[0][last] &&
                          from_step == loops.turns[last] * loops.strides[1][last];
      if (merges) {
        loops.turns[last] *= extent[d];
      } else {
        loops.turns[loops.depth] = extent[d];
        loops.strides[0][loops.depth] = to_step;
        loops.strides[1][loops.depth] = from_step;
        ++loops.depth;
      }
    }
    to_step *= to.dims[d];
    from_step *= from.dims[d];
  }
  for (int i = 0, j = loops.depth - 1; i < j; ++i, --j) {
    std::swap(loops.turns[i], loops.turns[j]);
    for (auto& strides : loops.strides) std::swap(strides[i], strides[j]);
  }
  return loops;
}

/// The largest unit, in bytes, that divides runs, strides and addresses.
int64_t unit_of(const Loops& loops, const char* to, const char* from) {
  uint64_t bits = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | 16u;
  bits |= static_cast<uint64_t>(loops.turns[loops.depth - 1]);
  for (int i = 0; i + 1 < loops.depth; ++i)
    bits |= static_cast<uint64_t>(loops.strides[0][i]) | static_cast<uint64_t>(loops.strides[1][i]);
  return static_cast<int64_t>(bits & (~bits + 1));
}

template <class Unit>
void copy_by(const Loops& loops, char* to, const char* from) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Unit));
  Strided<2> shape;
  int64_t count = 1;
  for (int i = 0; i < loops.depth; ++i) {
    const bool run = i + 1 == loops.depth;
    const int64_t turns = run ? loops.turns[i] / kBytes : loops.turns[i];
    const int64_t steps[2] = {run ? 1 : loops.strides[0][i] / kBytes, run ? 1 : loops.strides[1][i] / kBytes};
    shape.append(turns, steps);
    count *= turns;
  }
  auto* const units = reinterpret_cast<Unit*>(to);
  const auto* const source = reinterpret_cast<const Unit*>(from);
  const unsigned grid = grid_for(count, kThreads);
  if (count < (int64_t{1} << 31)) {  // 32-bit division is several times faster; the grid's step must fit too
    launch(kCopy, copy_units<Unit, uint32_t>, grid, kThreads, static_cast<uint32_t>(count), shape, units, source);
  } else {
    launch(kCopy, copy_units<Unit, int64_t>, grid, kThreads, count, shape, units, source);
  }
}

void copy_box_on_device(int index, const BoxView& to, const BoxView& from, const Dims& extent, size_t element) {
  if (extent.numel() == 0) return;
  const DeviceScope scope(index);
  const Loops loops = loops_of(to, from, extent, element);
  char* const to_at = to.data + offset_of(to.dims, to.begin) * static_cast<int64_t>(element);
  const char* const from_at = from.data + offset_of(from.dims, from.begin) * static_cast<int64_t>(element);
  if (loops.depth == 1) {
    return check(
        cudaMemcpyAsync(to_at, from_at, static_cast<size_t>(loops.turns[0]), cudaMemcpyDeviceToDevice, stream()),
        "cudaMemcpyAsync (device to device)");
  }
  switch (unit_of(loops, to_at, from_at)) {
    case 1: return copy_by<uint8_t>(loops, to_at, from_at);
    case 2: return copy_by<uint16_t>(loops, to_at, from_at);
    case 4: return copy_by<uint32_t>(loops, to_at, from_at);
    case 8: return copy_by<uint2>(loops, to_at, from_at);
    default: return copy_by<uint4>(loops, to_at, from_at);
  }
}

template <class To, class From>
__global__ void convert_elements(int64_t count, To* to, const From* from) {
  for (int64_t i = first_item(); i < count; i += item_step()) to[i] = round_to<To>(load(from[i]));
}

void convert_floats_on_device(int index, void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  if (to == nullptr || from == nullptr || count == 0) return;
  const DeviceScope scope(index);
  for_types(FloatTypes{}, [&]<class From>(TypeTag<From>) {
    if (from_dtype != dtype_of<From>) return;
    for_types(FloatTypes{}, [&]<class To>(TypeTag<To>) {
      if (to_dtype != dtype_of<To>) return;
      using D = device_t<To>;
      using S = device_t<From>;
      launch(kConvert, convert_elements<D, S>, grid_for(count, kThreads), kThreads, count, static_cast<D*>(to),
             static_cast<const S*>(from));
    });
  });
}

template <class T>
struct Contributions {
  const T* of[kMaxInputs];
  int count;
};

template <ReduceType kType, class T>
__global__ void reduce_elements(int64_t count, T* out, Contributions<T> inputs) {
  using A = math_t<T>;
  for (int64_t i = first_item(); i < count; i += item_step()) {
    A value = load(inputs.of[0][i]);
    for (int k = 1; k < inputs.count; ++k) value = combine<kType, A>(value, load(inputs.of[k][i]));
    if constexpr (kType == ReduceType::avg && !std::is_same_v<A, bool>)
      value = static_cast<A>(value / static_cast<A>(inputs.count));
    out[i] = store<T>(value);
  }
}

template <class T>
void reduce_by_type(T* out, const Contributions<T>& inputs, int64_t count, ReduceType type) {
  switch (type) {
#define SHARD_ROW(name, ...)                                                                                      \
  case ReduceType::name:                                                                                          \
    return launch(kReduce, reduce_elements<ReduceType::name, T>, grid_for(count, kThreads), kThreads, count, out, \
                  inputs);
    SHARD_REDUCE_TYPES(SHARD_ROW)
#undef SHARD_ROW
  }
}

void reduce_on_device(int index, void* out, std::span<const void* const> inputs, int64_t count, DType dtype,
                      ReduceType type) {
  if (count == 0) return;
  if (inputs.size() > kMaxInputs) {
    fail(ErrorCode::invalid_argument, "a reduction of {} ranks on one device; at most {} are supported", inputs.size(),
         kMaxInputs);
  }
  const DeviceScope scope(index);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    Contributions<device_t<T>> all;
    all.count = static_cast<int>(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) all.of[i] = static_cast<const device_t<T>*>(inputs[i]);
    reduce_by_type(static_cast<device_t<T>*>(out), all, count, type);
  });
}

template <class T>
__global__ void fill_elements(int64_t count, T* data, T value) {
  for (int64_t i = first_item(); i < count; i += item_step()) data[i] = value;
}

void fill_identity_on_device(int index, void* data, int64_t count, DType dtype, ReduceType type) {
  if (count == 0) return;
  const DeviceScope scope(index);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    using D = device_t<T>;
    const T value = identity<T>(type);
    D bits;
    memcpy(static_cast<void*>(&bits), &value, sizeof(T));
    launch(kFill, fill_elements<D>, grid_for(count, kThreads), kThreads, count, static_cast<D*>(data), bits);
  });
}

void* make_mark(int index) {
  const DeviceScope scope(index);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  const cudaError_t status = cudaEventRecord(event, stream());
  if (status != cudaSuccess) cudaEventDestroy(event);
  check(status, "cudaEventRecord");
  return event;
}

void wait_for_mark(int index, void* mark) {
  const DeviceScope scope(index);
  check(cudaStreamWaitEvent(stream(), static_cast<cudaEvent_t>(mark), 0), "cudaStreamWaitEvent");
}

/// Called from destructors, even after the driver was shut down at exit.
void free_mark(void* mark) { cudaEventDestroy(static_cast<cudaEvent_t>(mark)); }

}  // namespace

void register_communication(int backend) {
  register_device_work(backend, {.copy_box = copy_box_on_device,
                                 .convert_floats = convert_floats_on_device,
                                 .reduce_in_order = reduce_on_device,
                                 .fill_identity = fill_identity_on_device,
                                 .make_mark = make_mark,
                                 .wait_for_mark = wait_for_mark,
                                 .free_mark = free_mark});
}

}  // namespace shard::cuda
