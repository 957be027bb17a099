// What the parts of the model that run work know of streams, events and recordings.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "include/cuda_runtime_api.h"
#include "stream_clock.h"

namespace cuda_host {

using Work = std::function<void()>;

inline constexpr int kDevices = 4;
inline thread_local int current_device = 0;

/// How often this thread has waited. Waits are counted where a device may make the host wait, even if nothing is pending here.
inline thread_local uint64_t waits = 0;

/// One lock for all streams: the model runs one thing at a time.
std::recursive_mutex& mutex();
/// Keeps an error for cudaGetLastError, and returns it.
cudaError_t fail(cudaError_t error);

/// What the host has waited for, for any thread: what it issues afterwards is behind it.
std::shared_ptr<const StreamClock>& host_clock();
void host_waited(const StreamClock& clock);

/// An allocation, which may have been released, and its address taken again.
struct Allocated {
  void* data;
  uint64_t id;
};

struct Recording {
  std::vector<Work> work;
  std::vector<Allocated> memory;  // while it was recorded
  bool is_broken = false;
};

}  // namespace cuda_host

struct CUstream_st {
  struct Pending {
    cuda_host::Work work;
    std::shared_ptr<const cuda_host::StreamClock> host;  // when it was issued
  };
  int device = 0;
  bool is_blocking = true;  // the legacy stream waits for it
  std::deque<Pending> pending;
  int number;
  cuda_host::StreamClock clock;  // what its next work is behind
  std::unique_ptr<cuda_host::Recording> recording;
  std::string failure;  // of work that was run; the next call that waits reports it

  CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;
  ~CUstream_st();

  /// Throws Stuck where the work stays.
  void run_one();
  /// For whoever asks for the state of the stream, and so must see progress.
  void try_one();
  void run_all();
};

namespace cuda_host {

/// The streams that exist; that of a thread ends with it.
std::set<CUstream_st*>& streams();
/// That of the thread for cudaStreamPerThread. Null for the legacy stream, which waits for others: shard only frees memory in it.
CUstream_st* resolve(cudaStream_t stream);
/// The status for a host that has waited for the stream.
cudaError_t report(CUstream_st* stream);
/// The status of a failed launch, with a text.
cudaError_t fail_launch(std::string text);
/// A stream that is recorded was asked for its state.
cudaError_t break_recording(CUstream_st* stream);
/// Sets that a device has a context.
void make_context(int device);

}  // namespace cuda_host
