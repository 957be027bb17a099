// Checked calls of the CUDA runtime; see cuda_call.cuh.
#include "shard/core/cuda/cuda_call.cuh"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <map>

#include "shard/core/cuda/data_error.cuh"
#include "shard/core/error.h"

namespace shard::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // otherwise the next launch would report this error again
  fail(ErrorCode::device, "{} failed: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

void check_launch(const char* op) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  fail(ErrorCode::device, "[{}] cudaLaunchKernel failed: {} ({})", op, cudaGetErrorString(status),
       cudaGetErrorName(status));
}

void wait_in_destructor() {
  try {
    ignore(cudaStreamSynchronize(stream()));
  } catch (...) {  // the device has failed, and has no stream yet
  }
}

namespace {

/// Why there is no memory: what the process holds of the device, what of it is unused, and what is free.
[[noreturn]] void fail_allocation(cudaError_t status, size_t bytes) {
  cudaGetLastError();  // otherwise the next launch would report this error again
  int index = 0;
  size_t free = 0, total = 0;
  uint64_t used = 0, reserved = 0;
  cudaMemPool_t pool = nullptr;
  cudaGetDevice(&index);
  cudaMemGetInfo(&free, &total);
  if (cudaDeviceGetDefaultMemPool(&pool, index) == cudaSuccess) {
    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved);
  }
  fail(ErrorCode::device,
       "cudaMallocAsync of {} bytes on cuda:{} failed: {} ({}). Tensors of this process hold {} bytes there, its "
       "pool {} more, and {} of {} are free",
       bytes, index, cudaGetErrorString(status), cudaGetErrorName(status), used, reserved - std::min(used, reserved),
       free, total);
}

/// Graphs that were freed and have run leave their memory with the device, where only other graphs find it. Whether there may be more now.
bool give_back_memory_of_graphs() {
  cudaGetLastError();  // of the allocation
  int index = 0;
  if (recorded_device >= 0 || cudaGetDevice(&index) != cudaSuccess) return false;
  wait_for_stream();
  return cudaDeviceGraphMemTrim(index) == cudaSuccess;
}

/// The devices to which a thread has issued work. When it ends, its streams end with it, if it has its own, and nobody could wait for them any
/// more. A shared stream goes on, and may wait for a rank that never comes: only a rank looks at that.
struct UsedDevices {
  std::bitset<256> used;
  ~UsedDevices() {
    for (size_t index = 0; index < used.size(); ++index) {
      if (used[index] && has_own_streams && cudaSetDevice(static_cast<int>(index)) == cudaSuccess) wait_in_destructor();
    }
  }
};
thread_local UsedDevices used_devices;

/// The streams for communication of a thread, by device. Not an array: Python loads the library late, when there are some hundred bytes
/// left for variables of threads.
struct CommunicationStreams {
  std::map<int, cudaStream_t> of;
  ~CommunicationStreams() {
    for (const auto& [index, stream] : of) {
      if (stream == nullptr || cudaSetDevice(index) != cudaSuccess) continue;
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
  }
};

bool is_forked = false;

/// A device without a context was not in use: to return to it would make one, on device 0 for each process of a job.
void make_current_again(int index) {
  if (has_context(index)) ignore(cudaSetDevice(index));
}

}  // namespace

cudaStream_t shared_stream() {
  static std::array<std::atomic<cudaStream_t>, 256> streams;
  int index = 0;
  // Destructors come here too, even after the driver was shut down at exit, when any stream is as good.
  if (cudaGetDevice(&index) != cudaSuccess || index == recorded_device) return cudaStreamPerThread;
  std::atomic<cudaStream_t>& own = streams[static_cast<size_t>(index)];
  if (cudaStream_t known = own.load(std::memory_order_acquire); known != nullptr) return known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (own.load(std::memory_order_relaxed) == nullptr) {
    cudaStream_t made = nullptr;
    // Work of the legacy stream waits for it, as for streams of threads.
    check(cudaStreamCreateWithFlags(&made, cudaStreamDefault), "cudaStreamCreateWithFlags");
    own.store(made, std::memory_order_release);
  }
  return own.load(std::memory_order_relaxed);
}

cudaStream_t communication_stream() {
  thread_local CommunicationStreams streams;
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  cudaStream_t& own = streams.of[index];
  if (own == nullptr) check(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return own;
}

void refuse_forks() {
  pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
}

DeviceScope::DeviceScope(int index) {
  if (is_forked) {
    fail(ErrorCode::device,
         "this process was forked by one that has used CUDA, and cannot use cuda:{}; start processes that use devices "
         "anew, such as by the method \"spawn\" of Python's multiprocessing",
         index);
  }
  used_devices.used.set(static_cast<size_t>(index));
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ == index) return;
  check(cudaSetDevice(index), "cudaSetDevice");
  changed_ = true;
}

DeviceScope::~DeviceScope() {
  if (changed_) make_current_again(before_);
}

ReleaseScope::ReleaseScope(int index) {
  ignore(cudaGetDevice(&before_));
  changed_ = before_ != index;
  if (changed_) ignore(cudaSetDevice(index));
}

ReleaseScope::~ReleaseScope() {
  if (changed_) make_current_again(before_);
}

void* allocate(size_t bytes) {
  void* data = nullptr;
  cudaError_t status = cudaMallocAsync(&data, bytes, stream());
  if (status == cudaErrorMemoryAllocation && give_back_memory_of_graphs())
    status = cudaMallocAsync(&data, bytes, stream());
  if (status != cudaSuccess) fail_allocation(status, bytes);
  return data;
}

Scratch::Scratch(size_t bytes) {
  if (bytes != 0) data_ = allocate(bytes);
}

Scratch::~Scratch() {
  // A failure is not that of the next launch.
  if (data_ != nullptr && cudaFreeAsync(data_, stream()) != cudaSuccess) cudaGetLastError();
}

std::recursive_mutex& recording_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

unsigned grid_for(int64_t items, int threads) {
  const int64_t needed = (items + threads - 1) / threads;
  const int64_t full = int64_t{multiprocessors()} * (2048 / threads) * 2;
  return static_cast<unsigned>(std::clamp<int64_t>(needed, 1, full));
}

}  // namespace shard::cuda
