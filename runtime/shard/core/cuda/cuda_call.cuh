// The interface of the CUDA backend to the CUDA runtime: checked calls, the current device, the
// stream and scratch memory. Headers that need the CUDA toolkit end in .cuh; kernels of an op are
// in the .cu file of that name.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "shard/core/own_streams.h"

namespace shard::cuda {

/// Throws Error(device) naming `call` unless `status` is success.
void check(cudaError_t status, const char* call);

/// Throws Error(device) if the preceding launch of a kernel of `op` failed.
void check_launch(const char* op);

/// Whether this thread issues work to its streams for communication.
inline thread_local bool communicates = false;

/// The stream for communication of this thread on the current device. It waits for no other stream by itself.
cudaStream_t communication_stream();

/// Called before this thread issues work to a stream, if not null: by a loop of kernels that are not issued yet (kernels/cuda/fused_loop.h).
inline thread_local void (*before_work)() = nullptr;

/// The device of the graph that this thread records, or -1.
inline thread_local int recorded_device = -1;

/// The stream of the current device that threads share which have none of their own (core/own_streams.h). A recording has its own: what other
/// threads issue meanwhile is not of it.
cudaStream_t shared_stream();

/// The stream of this thread on the current device, to issue work to.
inline cudaStream_t stream() {
  if (before_work != nullptr) before_work();
  if (communicates) return communication_stream();
  return has_own_streams ? cudaStreamPerThread : shared_stream();
}

/// Makes a device current for a scope, and then the previous one, if that has a context (has_context). Fails in a forked process.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// From now on DeviceScope fails in processes that this one forks: the driver, once it is initialised, does not work there.
void refuse_forks();

/// Whether the process has a context on a device. To make a device the current one gives it a context, which takes hundreds of megabytes.
bool has_context(int index);

/// For calls of destructors, which report nothing, even after the driver was shut down at exit. The next launch must not report it either.
inline void ignore(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
}

/// Waits for the work of this thread on the current device, in a destructor.
void wait_in_destructor();

/// The current device for a destructor, as DeviceScope.
class ReleaseScope {
 public:
  explicit ReleaseScope(int index);
  ~ReleaseScope();
  ReleaseScope(const ReleaseScope&) = delete;
  ReleaseScope& operator=(const ReleaseScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// A place in the work of a stream of this thread, on the device that is current when it is made.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }  // at the end of a thread the driver may have been shut down

  /// Behind what this thread has issued to the stream so far.
  void record() const { check(cudaEventRecord(event_, stream()), "cudaEventRecord"); }
  /// What this thread issues to its stream of the current device from here on begins after the event.
  void precede() const { check(cudaStreamWaitEvent(stream(), event_, 0), "cudaStreamWaitEvent"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Memory of the current device, in the order of the stream of this thread. Throws Error(device) with what was asked, held and free.
void* allocate(size_t bytes);

/// Memory of the current device that belongs to the work issued during a scope.
class Scratch {
 public:
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Held by the thread that records, and while a library is initialised or shut down. That may use
/// the legacy stream, which waits for the streams of all threads, and so is an error in both
/// threads during a recording.
std::recursive_mutex& recording_mutex();

/// Streaming multiprocessors of the current device.
int multiprocessors();

/// The number of blocks for `items` threads in a grid-stride loop: enough to fill the device, never
/// more than needed.
unsigned grid_for(int64_t items, int threads);

}  // namespace shard::cuda
