// What collectives and reshards need of CUDA devices: copies of boxes, conversions, reductions and marks (kernels/device_work.h).
#include <limits>
#include <memory>

#include "shard/core/box_copy.h"
#include "shard/core/error.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/nccl_groups.h"
#include "shard/kernels/cuda/strided_copy.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/device_work.h"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/reduction.inc"

constexpr int kMaxInputs = 256;  // pointers that fit the arguments of a kernel

// What errors of launches call these kernels.
const OpContext kCopy{"copy_box"}, kConvert{"convert_floats"}, kReduce{"reduce_in_order"}, kFill{"fill_identity"};

void copy_box_on_device(int index, const BoxView& to, const BoxView& from, const Dims& extent, size_t element) {
  if (extent.numel() == 0) return;
  const DeviceScope scope(index);
  const Dims to_steps = steps_of(to.dims), from_steps = steps_of(from.dims);
  StridedCopy copy(element);
  for (int d = 0; d < extent.rank(); ++d) copy.add(extent[d], to_steps[d], from_steps[d]);
  const auto bytes = static_cast<int64_t>(element);
  copy.run(kCopy, to.data + offset_of(to.dims, to.begin) * bytes, from.data + offset_of(from.dims, from.begin) * bytes);
}

template <class To, class From>
__global__ void convert_elements(int64_t count, To* to, const From* from) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) to[i] = round_to<To>(load(from[i]));
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
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
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
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) data[i] = value;
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
  auto event = std::make_unique<Event>();
  event->record();
  return event.release();
}

void wait_for_mark(int index, void* mark) {
  const DeviceScope scope(index);
  static_cast<const Event*>(mark)->precede();
}

/// Called from destructors, even after the driver was shut down at exit.
void free_mark(void* mark) { delete static_cast<Event*>(mark); }

/// A recording has one stream, whose order is that of its work.
bool begin_communication(int index) {
  const DeviceScope scope(index);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream(), &status), "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone) return false;
  communication_stream();  // where it cannot be made, nothing has begun
  return communicates = true;
}

void end_communication(int index) {
  try {
    const DeviceScope scope(index);
    const Event done;
    done.record();
    communicates = false;
    done.precede();
  } catch (const Error&) {  // of a device that has failed, which the next call reports
    communicates = false;
  }
}

}  // namespace

void register_communication(int backend) {
  DeviceWork work{.copy_box = copy_box_on_device,
                  .convert_floats = convert_floats_on_device,
                  .reduce_in_order = reduce_on_device,
                  .fill_identity = fill_identity_on_device,
                  .make_mark = make_mark,
                  .wait_for_mark = wait_for_mark,
                  .free_mark = free_mark,
                  .begin_communication = begin_communication,
                  .end_communication = end_communication,
                  .is_cuda_memory = true};
  add_nccl_groups(work);
  register_device_work(backend, work);
}

}  // namespace shard::cuda
