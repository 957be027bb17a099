// The CUDA backend: device memory, copies and graphs for core/device.h. Its kernels are in kernels/cuda.
#include "shard/core/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/cuda/data_error.cuh"
#include "shard/core/cuda/staging.h"
#include "shard/core/device.h"
#include "shard/core/error.h"
#include "shard/core/thread_state.h"
#include "shard/core/waiting.h"

namespace shard {
namespace {

using cuda::check;
using cuda::DeviceScope;
using cuda::recording_mutex;
using cuda::stream;

struct Devices {
  int count = 0;
  std::string status;

  Devices() {
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaSuccess && count > 0) {
      status = fmt::format("ready: {} device{}", count, count == 1 ? "" : "s");
      return;
    }
    count = 0;
    status = fmt::format("no CUDA device: {}", cudaGetErrorString(found == cudaSuccess ? cudaErrorNoDevice : found));
    cudaGetLastError();
  }
};

const Devices& devices() {
  static const Devices instance;
  return instance;
}

int device_count() { return devices().count; }

/// Makes the memory pool of a device keep freed memory, so that a step of a training loop requests
/// none from the driver.
void keep_pool(int index) {
  static std::array<std::once_flag, 256> once;
  std::call_once(once[static_cast<size_t>(index)], [index] {
    cudaMemPool_t pool = nullptr;
    uint64_t threshold = UINT64_MAX;
    check(cudaDeviceGetDefaultMemPool(&pool, index), "cudaDeviceGetDefaultMemPool");
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
  });
}

/// The threads that allocated memory. A garbage collector may free it in another one, whose stream does not wait for the work that
/// its own thread has issued.
class Owners {
 public:
  void add(void* data) {
    Part& part = part_of(data);
    const std::lock_guard lock(part.mutex);
    part.threads[data] = &this_thread;  // whose address is the thread's own
  }
  /// Returns whether it was this thread.
  bool remove(void* data) {
    Part& part = part_of(data);
    const std::lock_guard lock(part.mutex);
    const auto found = part.threads.extract(data);
    return found && found.mapped() == &this_thread;
  }

 private:
  struct Part {  // several, so that ranks need not wait for each other
    std::mutex mutex;
    std::unordered_map<void*, const void*> threads;
  };
  Part& part_of(void* data) { return parts_[(reinterpret_cast<uintptr_t>(data) >> 9) % parts_.size()]; }

  std::array<Part, 16> parts_;
};

Owners& owners() {
  static auto* const all = new Owners();  // tensors may be freed when the program exits
  return *all;
}

void* allocate(int index, size_t bytes) {
  if (bytes == 0) return nullptr;
  const DeviceScope scope(index);
  keep_pool(index);
  void* const data = cuda::allocate(bytes);
  owners().add(data);
  return data;
}

/// Called from destructors, even after the driver was shut down at exit, so it reports nothing.
void release(int index, void* data) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess) return;
  if (before != index) cudaSetDevice(index);
  if (!owners().remove(data)) {
    const WaitScope scope;
    cudaDeviceSynchronize();
  }
  cudaFreeAsync(data, stream());
  if (before != index) cudaSetDevice(before);
}

void copy(int index, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(index);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()), "cudaMemcpyAsync (device to device)");
}

/// In a recording a copy from the host would be repeated with what the memory holds then, and one to the host or from a stream that
/// is not recorded cannot be: the wait is an error there.
bool is_recording() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream(), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void copy_from_host(int index, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(index);
  if (is_recording()) return cuda::wait_for_stream();
  cuda::copy_from_host_staged(to, from, bytes);
}

void copy_to_host(int index, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(index);
  if (is_recording()) return cuda::wait_for_stream();
  cuda::copy_to_host_staged(to, from, bytes);
}

/// Work that this thread issues to the current device later begins after what it has issued to device `other`.
void follow(int other) {
  std::optional<cuda::Event> done;
  {
    const DeviceScope scope(other);
    done.emplace();
    done->record();
  }
  done->precede();
}

void copy_between(int to_index, void* to, int from_index, const void* from, size_t bytes) {
  const DeviceScope from_scope(from_index);
  if (is_recording()) return cuda::wait_for_stream();
  {
    const DeviceScope to_scope(to_index);
    if (is_recording()) return cuda::wait_for_stream();
    follow(from_index);
    check(cudaMemcpyPeerAsync(to, to_index, from, from_index, bytes, stream()), "cudaMemcpyPeerAsync");
  }
  follow(to_index);  // `from` may be freed now
}

void synchronize(int index) {
  const DeviceScope scope(index);
  cuda::wait_for_stream();
}

/// Meanwhile only calls of this thread that would wait for the device are errors; other threads are
/// not affected.
void graph_begin(int index) {
  const DeviceScope scope(index);
  cuda::data_error();
  std::unique_lock lock(recording_mutex());
  check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  lock.release();  // until the recording ends
}

/// Gives the nodes of an executable the parameters of those of `graph`; false where the two have other nodes.
bool update(cudaGraphExec_t executable, cudaGraph_t graph) {
#if CUDART_VERSION >= 12000
  cudaGraphExecUpdateResultInfo result;
#else
  cudaGraphNode_t node = nullptr;
  cudaGraphExecUpdateResult result;
#endif
  const cudaError_t status = cudaGraphExecUpdate(executable, graph,
#if CUDART_VERSION < 12000
                                                 &node,
#endif
                                                 &result);
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess;
}

void* graph_end(int index, void* old) {
  const std::unique_lock lock(recording_mutex(), std::adopt_lock);
  struct Executable {
    ~Executable() {
      if (handle != nullptr) cudaGraphExecDestroy(handle);
    }
    cudaGraphExec_t handle;
  } executable{static_cast<cudaGraphExec_t>(old)};
  const DeviceScope scope(index);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
  cudaError_t status = cudaSuccess;
  if (executable.handle == nullptr || !update(executable.handle, graph)) {
    if (executable.handle != nullptr) cudaGraphExecDestroy(std::exchange(executable.handle, nullptr));
    status = cudaGraphInstantiate(&executable.handle, graph, 0);
  }
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return std::exchange(executable.handle, nullptr);
}

void graph_abandon(int index) {
  const std::unique_lock lock(recording_mutex(), std::adopt_lock);
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess) return;
  if (before != index) cudaSetDevice(index);
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream(), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  if (before != index) cudaSetDevice(before);
  // of this call and of those made while the recording was broken; otherwise the next launch would
  // report it
  cudaGetLastError();
}

void graph_launch(int index, void* graph) {
  const DeviceScope scope(index);
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream()), "cudaGraphLaunch");
}

/// Called from destructors, like `release`.
void graph_free(int, void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

}  // namespace

std::optional<Backend> cuda_backend() {
  if (device_count() == 0) return std::nullopt;
  return Backend{.name = "cuda",
                 .device_count = device_count,
                 .allocate = allocate,
                 .free = release,
                 .copy = copy,
                 .copy_from_host = copy_from_host,
                 .copy_to_host = copy_to_host,
                 .synchronize = synchronize,
                 .copy_between = copy_between,
                 .graph_begin = graph_begin,
                 .graph_end = graph_end,
                 .graph_abandon = graph_abandon,
                 .graph_launch = graph_launch,
                 .graph_free = graph_free};
}

const char* cuda_status() { return devices().status.c_str(); }

}  // namespace shard
