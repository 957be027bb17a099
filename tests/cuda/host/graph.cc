// Recordings and graphs of the host model.
#include <algorithm>
#include <deque>
#include <utility>

#include "access.h"
#include "memory.h"
#include "stream.h"

struct CUgraph_st {
  std::shared_ptr<cuda_host::Recording> recording;
};
struct CUgraphExec_st {
  std::shared_ptr<cuda_host::Recording> recording;
};

namespace {

using cuda_host::fail;
using cuda_host::mutex;
using cuda_host::Recording;
using cuda_host::resolve;

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local uint64_t updates = 0, instantiations = 0;

}  // namespace

namespace cuda_host {

uint64_t graph_updates() { return updates; }
uint64_t graph_instantiations() { return instantiations; }

cudaError_t unsafe_call() {
  const std::lock_guard lock(mutex());
  CUstream_st* const mine = resolve(cudaStreamPerThread);
  if (mine->recording == nullptr || capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  return break_recording(mine);
}

}  // namespace cuda_host

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr || stream->recording != nullptr) return fail(cudaErrorInvalidValue);
  stream->recording = std::make_unique<Recording>();
  return cudaSuccess;
}

namespace {

/// What graphs have allocated and is of none any more, the oldest first. A device would use it for other graphs: here some of it is kept.
constexpr size_t kLeftByGraphs = 64;
std::deque<cuda_host::Allocated>& left_by_graphs() {
  static auto* all = new std::deque<cuda_host::Allocated>;
  return *all;
}

/// Releases an allocation of a graph, unless it was released and its address may be another's.
void release(const cuda_host::Allocated& allocated) {
  const cuda_host::Region* const region = cuda_host::find_region(allocated.data);
  if (region != nullptr && region->id == allocated.id) cuda_host::release_device(allocated.data);
}

std::shared_ptr<Recording> owned(std::unique_ptr<Recording> recording) {
  return {recording.release(), [](Recording* r) {
            const std::lock_guard lock(mutex());
            auto& left = left_by_graphs();
            left.insert(left.end(), r->memory.begin(), r->memory.end());
            for (; left.size() > kLeftByGraphs; left.pop_front()) release(left.front());
            delete r;
          }};
}

}  // namespace

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr || stream->recording == nullptr) return fail(cudaErrorInvalidValue);
  const std::shared_ptr<Recording> recording = owned(std::move(stream->recording));
  *graph = nullptr;
  if (recording->is_broken) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{recording};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  *status = stream->recording == nullptr   ? cudaStreamCaptureStatusNone
            : stream->recording->is_broken ? cudaStreamCaptureStatusInvalidated
                                           : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  const std::lock_guard lock(mutex());
  if (const cudaError_t refused = cuda_host::unsafe_call(); refused != cudaSuccess) return refused;
  std::erase_if(left_by_graphs(), [&](const cuda_host::Allocated& each) {
    const bool is_there = cuda_host::device_of(each.data) == device;
    if (is_there) release(each);
    return is_there;
  });
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->recording};
  ++instantiations;
  return cudaSuccess;
}

/// What was launched goes on with the recording of before.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo*) {
  const Recording &before = *executable->recording, &after = *graph->recording;
  if (before.work.size() != after.work.size() || !before.memory.empty() || !after.memory.empty())
    return fail(cudaErrorGraphExecUpdateFailure);
  executable->recording = graph->recording;
  ++updates;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return cuda_host::submit(handle, [recording = executable->recording] {
    for (const cuda_host::Work& work : recording->work) work();
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
