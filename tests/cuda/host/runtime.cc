// Devices, errors, memory and launches of the host model.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "access.h"
#include "memory.h"
#include "shard/core/cuda/cuda_call.cuh"
#include "stream.h"

namespace {

using cuda_host::current_device;
using cuda_host::fail;
using cuda_host::kDevices;
using cuda_host::mutex;
using cuda_host::report;
using cuda_host::resolve;
using cuda_host::streams;
using cuda_host::waits;

// Of dynamic shared memory: for any launch, and for kernels that have asked for more.
constexpr int kShared = 48 << 10, kMostShared = 227 << 10;
std::atomic<bool> contexts[kDevices];
thread_local cudaError_t last_error = cudaSuccess;
/// One of the texts of failures, which stay. It is no string of the thread: streams report when that ends, after its destructors.
thread_local const std::string* last_failure = nullptr;
thread_local uint64_t allocated = 0, host_copies = 0;

std::map<char*, size_t>& pinned() {
  static auto* all = new std::map<char*, size_t>;
  return *all;
}

bool is_pinned(const void* data) {
  const auto above = pinned().upper_bound(static_cast<char*>(const_cast<void*>(data)));
  if (above == pinned().begin()) return false;
  const auto& [first, bytes] = *std::prev(above);
  return static_cast<const char*>(data) < first + bytes;
}

/// The most dynamic shared memory that kernels have asked for, by device.
std::map<std::pair<int, const void*>, int>& allowed_shared() {
  static auto* all = new std::map<std::pair<int, const void*>, int>;
  return *all;
}

void copy(void* to, const void* from, size_t bytes) {
  const cuda_host::DeviceAccess access;
  const auto use = [&](const void* end, const char* what, cuda_host::Kind kind) {
    if (cuda_host::is_device_memory(end))
      cuda_host::use_range(fmt::format("{} a copy of {} bytes", what, bytes), end, bytes, kind);
  };
  use(from, "the source of", cuda_host::Kind::read);
  use(to, "the target of", cuda_host::Kind::write);
  std::memcpy(to, from, bytes);
}

}  // namespace

namespace cuda_host {

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

cudaError_t fail_launch(std::string text) {
  const std::lock_guard lock(mutex());
  static auto* texts = new std::set<std::string>;
  last_failure = &*texts->insert(std::move(text)).first;
  return fail(cudaErrorLaunchFailure);
}

void make_context(int device) { contexts[device] = true; }

cudaError_t allow_shared(const void* kernel, int bytes) {
  if (bytes < 0 || bytes > kMostShared) return fail(cudaErrorInvalidValue);
  const std::lock_guard lock(mutex());
  allowed_shared()[{current_device, kernel}] = bytes;
  return cudaSuccess;
}

cudaError_t launch(const char* name, const void* kernel, void (*thread)(const void* arguments), const void* arguments,
                   size_t bytes, dim3 blocks, dim3 threads, size_t shared, cudaStream_t stream) {
  const uint64_t in_block = uint64_t{threads.x} * threads.y * threads.z;
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.x > 0x7fffffffu || blocks.y > 65535 ||
      blocks.z > 65535 || in_block == 0 || in_block > 1024 || threads.z > 64)
    return fail(cudaErrorInvalidConfiguration);
  {
    const std::lock_guard lock(mutex());
    const auto allowed = allowed_shared().find({current_device, kernel});
    if (shared > static_cast<size_t>(allowed == allowed_shared().end() ? kShared : allowed->second))
      return fail(cudaErrorInvalidValue);
  }
  const std::shared_ptr<std::max_align_t[]> copy(new std::max_align_t[(bytes - 1) / sizeof(std::max_align_t) + 1]);
  memcpy(copy.get(), arguments, bytes);
  return submit(stream, [grid = Grid{name, blocks, threads, shared, thread, copy, bytes}] {
    const DeviceAccess access;
    run(grid);
  });
}

uint64_t synchronisations() { return waits; }
uint64_t allocations() { return allocated; }
uint64_t copies_to_host() { return host_copies; }

bool is_pinned_memory(const void* at, size_t bytes) {
  return is_pinned(at) && is_pinned(static_cast<const char*>(at) + bytes - 1);
}

}  // namespace cuda_host

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    case cudaErrorGraphExecUpdateFailure: return "cudaErrorGraphExecUpdateFailure";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  }
  return "unknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure && last_failure != nullptr) return last_failure->c_str();
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  if (error == cudaErrorInvalidConfiguration) return "invalid configuration argument";
  if (error == cudaErrorInvalidValue) return "invalid argument";
  return cudaGetErrorName(error);
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

bool shard::cuda::has_context(int index) { return contexts[index]; }
void cuda_host::forget_contexts() { std::fill(std::begin(contexts), std::end(contexts), false); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (device < 0 || device >= kDevices) return fail(cudaErrorInvalidValue);
  *fmt::format_to_n(text, bytes - 1, "0000:0{}:00.0", device).out = '\0';
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return fail(cudaErrorInvalidDevice);
  current_device = device;
  contexts[device] = true;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  // Few processors, so that grids are small enough to be run here, and loops over the grid take several steps.
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 2; break;
    case cudaDevAttrL2CacheSize: *value = 1 << 20; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kMostShared; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(mutex());
  ++waits;
  cudaError_t status = cudaSuccess;
  for (CUstream_st* stream : streams()) {
    if (stream->recording != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
    stream->run_all();
    if (const cudaError_t found = report(stream); found != cudaSuccess) status = found;
  }
  return status;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  cuda_host::device_memory(current_device, *free, *total);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  *data = cuda_host::allocate_device(current_device, bytes);
  if (*data == nullptr) {  // what waits to be freed may be enough
    ++waits;
    if (stream->recording == nullptr) stream->run_all();
    *data = cuda_host::allocate_device(current_device, bytes);
  }
  if (*data == nullptr) return fail(cudaErrorMemoryAllocation);
  ++allocated;
  cuda_host::Region& region = *cuda_host::find_region(*data);
  region.made_by = stream->number;
  if (stream->recording != nullptr) stream->recording->memory.push_back({*data, region.id});
  return cuda_host::submit(handle, [made = *data] { cuda_host::made(made); });
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  if (handle == cudaStreamLegacy) {
    cuda_host::StreamClock before = *cuda_host::host_clock();
    for (CUstream_st* stream : streams()) {
      if (stream->device != current_device || !stream->is_blocking) continue;
      if (stream->recording != nullptr) return fail(cudaErrorStreamCaptureImplicit);
      try {
        while (!stream->pending.empty()) stream->run_one();
      } catch (const cuda_host::Stuck&) { return cudaSuccess; }  // the memory stays, as the work does
      before.join(stream->clock);
    }
    for (CUstream_st* stream : streams()) {
      if (stream->device == current_device && stream->is_blocking) stream->clock.join(before);
    }
    try {
      cuda_host::check_unused(data, 0, before);
    } catch (const cuda_host::Finding& finding) {  // is that of whoever waits
      for (CUstream_st* stream : streams()) {
        if (stream->device == current_device && stream->is_blocking) stream->failure = finding.what();
      }
    }
    return cuda_host::release_device(data) ? cudaSuccess : fail(cudaErrorInvalidValue);
  }
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  if (data == nullptr) return cudaSuccess;
  if (stream->recording != nullptr) {
    const auto& own = stream->recording->memory;
    const bool is_own = std::any_of(own.begin(), own.end(), [&](const auto& each) { return each.data == data; });
    return is_own ? cudaSuccess : fail(cudaErrorInvalidValue);  // its own lives as long as the graph
  }
  return cuda_host::submit(handle, [data, stream] {
    cuda_host::check_unused(data, stream->number, stream->clock);
    if (!cuda_host::release_device(data)) throw cuda_host::Finding("cudaFreeAsync of memory that is not allocated");
  });
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  const std::lock_guard lock(mutex());
  if (const cudaError_t refused = cuda_host::unsafe_call(); refused != cudaSuccess) return refused;
  ++waits;  // pages are pinned, and unpinned, when the device is idle
  *data = malloc(bytes);
  if (*data == nullptr) return fail(cudaErrorMemoryAllocation);
  pinned()[static_cast<char*>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(mutex());
  ++waits;
  if (pinned().erase(static_cast<char*>(data)) == 0) return fail(cudaErrorInvalidValue);
  free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  if (kind == cudaMemcpyDeviceToHost) ++host_copies;
  if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) {  // pageable memory is staged before the call returns
    ++waits;                                                 // for memory of the driver to be free
    auto staged =
        std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    return cuda_host::submit(handle, [=] { copy(to, staged->data(), bytes); });
  }
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to)) {  // such a copy waits
    if (stream->recording != nullptr) { return cuda_host::break_recording(stream); }
    cuda_host::submit(handle, [=] { copy(to, from, bytes); });
    ++waits;
    stream->run_all();
    return report(stream);
  }
  return cuda_host::submit(handle, [=] { copy(to, from, bytes); });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  return cuda_host::submit(handle, [=] { copy(to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t handle) {
  return cuda_host::submit(handle, [=] {
    const std::vector<char> filled(bytes, static_cast<char>(value));
    copy(data, filled.data(), bytes);
  });
}
