// The CUDA backend: device memory, copies and graphs for core/device.h. Its kernels are in kernels/cuda.
#include "shard/core/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/cuda/data_error.cuh"
#include "shard/core/cuda/staging.h"
#include "shard/core/cuda_stream.h"
#include "shard/core/device.h"
#include "shard/core/error.h"

namespace shard {
namespace {

using cuda::check;
using cuda::DeviceScope;
using cuda::ignore;
using cuda::recorded_device;
using cuda::recording_mutex;
using cuda::ReleaseScope;
using cuda::stream;

struct Devices {
  int count = 0;
  std::string status;

  Devices() {
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaSuccess && count > 0) {
      status = fmt::format("ready: {} device{}", count, count == 1 ? "" : "s");
      cuda::refuse_forks();
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

cudaMemPool_t pool_of(int index) {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, index), "cudaDeviceGetDefaultMemPool");
  return pool;
}

/// Lets device `peer` access the memory of device `index`, if their machine can do so.
void share_pool(int index, int peer) {
  int can_access = 0;
  check(cudaDeviceCanAccessPeer(&can_access, peer, index), "cudaDeviceCanAccessPeer");
  if (can_access == 0) return;
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = peer;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  check(cudaMemPoolSetAccess(pool_of(index), &access, 1), "cudaMemPoolSetAccess");
}

/// Makes the memory pool of a device keep freed memory, so that a step of a training loop requests none from the driver; and shares it
/// with the other devices that this process uses: between those, NCCL reads and writes tensors directly, which memory of a pool does
/// not allow by itself.
void keep_pool(int index) {
  static std::array<std::atomic<bool>, 256> is_kept;
  std::atomic<bool>& mine = is_kept[static_cast<size_t>(index)];
  if (mine.load(std::memory_order_acquire)) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (mine.load(std::memory_order_relaxed)) return;
  uint64_t threshold = UINT64_MAX;
  check(cudaMemPoolSetAttribute(pool_of(index), cudaMemPoolAttrReleaseThreshold, &threshold),
        "cudaMemPoolSetAttribute");
  for (size_t other = 0; other < is_kept.size(); ++other) {
    if (!is_kept[other].load(std::memory_order_relaxed)) continue;
    share_pool(index, static_cast<int>(other));
    share_pool(static_cast<int>(other), index);
  }
  mine.store(true, std::memory_order_release);
}

/// Whether this thread records a graph.
bool records() { return recorded_device >= 0; }

/// The threads that allocated memory. A garbage collector may free it in another one, whose stream may not wait for the work that
/// its own thread has issued.
class Owners {
 public:
  void add(void* data) {
    Part& part = part_of(data);
    const std::lock_guard lock(part.mutex);
    part.owners[data] = {this_owner(), records()};
  }
  /// Whether this thread may free the memory in the order of its stream: if it is its own, or of threads with the same stream, and in a
  /// recording if it was made there.
  bool remove(void* data) {
    Part& part = part_of(data);
    const std::lock_guard lock(part.mutex);
    const auto found = part.owners.extract(data);
    return found && found.mapped().thread == this_owner() && (found.mapped().is_of_recording || !records());
  }

 private:
  struct Owner {
    const void* thread;
    bool is_of_recording;
  };
  struct Part {  // several, so that ranks need not wait for each other
    std::mutex mutex;
    std::unordered_map<void*, Owner> owners;
  };
  /// The address of a variable of the thread; null for all threads that share the stream of the process.
  static const void* this_owner() { return has_own_streams ? &has_own_streams : nullptr; }
  Part& part_of(void* data) { return parts_[(reinterpret_cast<uintptr_t>(data) >> 9) % parts_.size()]; }

  std::array<Part, 16> parts_;
};

Owners& owners() {
  static auto* const all = new Owners();  // tensors may be freed when the program exits
  return *all;
}

/// In a recording a copy from the host would be repeated with what the memory holds then, and one to the host or from a stream that
/// is not recorded cannot be: the wait is an error there.
bool is_recording() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream(), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

/// Memory that threads freed which had not allocated it, and that work of its owner may still use; or that the work of a graph cannot free.
class Abandoned {
 public:
  /// Frees it, or keeps it while a thread records: what other work waits for would be part of the recording.
  void add(int index, void* data) {
    {
      const std::lock_guard lock(mutex_);
      all_.emplace_back(index, data);
      any_.store(true, std::memory_order_relaxed);
    }
    free();
  }
  /// Frees what add() kept, if it can now.
  void free() {
    if (!any_.load(std::memory_order_relaxed)) return;
    const std::unique_lock recording(recording_mutex(), std::try_to_lock);
    if (!recording.owns_lock() || records()) return;
    std::vector<std::pair<int, void*>> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(all_);
      any_.store(false, std::memory_order_relaxed);
    }
    for (const auto& [index, data] : all) {
      const ReleaseScope device(index);
      // Behind the work of all threads; the host does not wait.
      ignore(cudaFreeAsync(data, cudaStreamLegacy));
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, void*>> all_;
  std::atomic<bool> any_ = false;
};

Abandoned& abandoned() {
  static auto* const all = new Abandoned();
  return *all;
}

void* allocate(int index, size_t bytes) {
  if (bytes == 0) return nullptr;
  const DeviceScope scope(index);
  keep_pool(index);
  abandoned().free();
  void* const data = cuda::allocate(bytes);
  owners().add(data);
  return data;
}

void release(int index, void* data) {
  if (!owners().remove(data)) return abandoned().add(index, data);
  const ReleaseScope device(index);
  ignore(cudaFreeAsync(data, stream()));
}

void copy(int index, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const DeviceScope scope(index);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()), "cudaMemcpyAsync (device to device)");
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
  check(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  recorded_device = index;
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
  recorded_device = -1;
  const DeviceScope scope(index);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(cudaStreamPerThread, &graph), "cudaStreamEndCapture");
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
  recorded_device = -1;
  const std::unique_lock lock(recording_mutex(), std::adopt_lock);
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess) return;
  if (before != index) cudaSetDevice(index);
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(cudaStreamPerThread, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  if (before != index) cudaSetDevice(before);
  // of this call and of those made while the recording was broken; otherwise the next launch would
  // report it
  cudaGetLastError();
}

void graph_launch(int index, void* graph) {
  const DeviceScope scope(index);
  const auto launch = [&] { return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream()); };
  cudaError_t status = launch();
  if (status ==
      cudaErrorMemoryAllocation) {  // the memory of graphs is not the pool's, which may keep some that it does not need
    cudaGetLastError();
    cuda::wait_for_stream();  // what it has freed counts as used until then
    check(cudaMemPoolTrimTo(pool_of(index), 0), "cudaMemPoolTrimTo");
    status = launch();
  }
  check(status, "cudaGraphLaunch");
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

uintptr_t cuda_stream(int index) {
  if (index < 0 || index >= device_count())
    fail(ErrorCode::device, "there is no device cuda:{}; {}", index, cuda_status());
  const DeviceScope scope(index);
  return reinterpret_cast<uintptr_t>(stream());
}

const char* cuda_status() { return devices().status.c_str(); }

}  // namespace shard
