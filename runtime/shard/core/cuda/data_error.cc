// See data_error.cuh.
#include "shard/core/cuda/data_error.cuh"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "shard/core/error.h"
#include "shard/core/waiting.h"

namespace shard::cuda {
namespace {

/// Those of threads that have ended, by device. Graphs that such a thread recorded may still write to them, so that they are
/// never freed.
struct Unused {
  std::mutex mutex;
  std::map<int, std::vector<DataError*>> of;
};

Unused& unused() {
  static auto* instance = new Unused;
  return *instance;
}

/// Those of a thread, by device.
struct Mine {
  std::map<int, DataError*> of;
  ~Mine() {
    for (const auto& [device, error] : of) {  // kernels may still write
      if (cudaSetDevice(device) == cudaSuccess) wait_in_destructor();
    }
    const std::lock_guard lock(unused().mutex);
    for (const auto& [device, error] : of) unused().of[device].push_back(error);
  }
};
thread_local Mine mine;

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

DataError* make(int device) {
  {
    const std::lock_guard lock(unused().mutex);
    std::vector<DataError*>& known = unused().of[device];
    if (!known.empty()) {
      DataError* const error = known.back();
      known.pop_back();
      error->is_set = 0;  // of a thread that has ended without looking
      return error;
    }
  }
  void* data = nullptr;
  check(cudaMallocHost(&data, sizeof(DataError)), "cudaMallocHost");
  return new (data) DataError{};
}

/// Whether a wait was refused because its thread records.
bool is_of_recording(cudaError_t status) {
  return status == cudaErrorStreamCaptureUnsupported || status == cudaErrorStreamCaptureInvalidated;
}

/// Asks for the state of work until it has ended: a call that waits would not return where the work needs that of another rank which
/// never comes.
template <class Query>
cudaError_t wait_watching(Query query, bool polls) {
  DeviceWatch* const watch = device_watch();
  const WaitScope scope;
  cudaError_t status = query();
  for (int turn = 0; status == cudaErrorNotReady; status = query(), ++turn) {
    cudaGetLastError();  // otherwise the next launch would report it
    watch->check();
    if (polls) watch->poll();
    pause_wait(turn);
  }
  // First: what a failed rank left unfinished may look like an error in the data. In a recording nobody has waited, and nothing can be asked.
  if (!is_of_recording(status)) watch->check();
  return status;
}

bool waits_for_checks() {
  const char* const value = std::getenv("SHARD_CUDA_SYNC_CHECKS");
  return value != nullptr && std::string_view(value) != "0" && std::string_view(value) != "";
}

}  // namespace

DataError* data_error() {
  DataError*& error = mine.of[current_device()];
  if (error == nullptr) error = make(current_device());
  return error;
}

uint64_t next_check() {
  static std::atomic<uint64_t> number = 0;
  return ++number;
}

void throw_data_error() {
  if (communicates) return;  // kernels of the other stream may still be writing what they find
  const auto found = mine.of.find(current_device());
  if (found == mine.of.end() || found->second->is_set == 0) return;
  const DataError error = *found->second;
  found->second->is_set = 0;
  cudaGetLastError();  // work that failed because of the data
  try {
    error.report(error.description, error.position, error.value);
  } catch (const CheckError& refusal) { throw Error(refusal.code(), refusal.what()); }
}

void wait_for_stream() {
  const bool watches = device_watch() != nullptr;
  std::optional<Event> here;  // other threads may go on issuing work to the stream
  const auto query = [&] {
    if (here) return cudaEventQuery(here->get());
    const cudaError_t status = cudaStreamQuery(stream());
    if (status == cudaErrorNotReady) here.emplace().record();
    return status;
  };
  const cudaError_t status = watches ? wait_watching(query, true) : cudaStreamSynchronize(stream());
  // In a recording nobody has waited, and what throws here would be taken for what cannot be recorded.
  if (!is_of_recording(status)) throw_data_error();
  check(status, watches ? "cudaStreamQuery" : "cudaStreamSynchronize");
}

void wait_for_event(cudaEvent_t event) {
  const bool watches = device_watch() != nullptr;
  check(watches ? wait_watching([event] { return cudaEventQuery(event); }, false) : cudaEventSynchronize(event),
        watches ? "cudaEventQuery" : "cudaEventSynchronize");
}

void checked_launch() {
  if (!waits_for_checks()) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream(), &status), "cudaStreamIsCapturing");
  if (status == cudaStreamCaptureStatusNone) wait_for_stream();
}

}  // namespace shard::cuda
