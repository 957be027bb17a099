// Streams, memory, events and graphs of the host model. Work is run only when somebody waits for it, so that whoever forgets to
// wait sees memory as it was before.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "access.h"
#include "include/cuda_runtime_api.h"
#include "memory.h"
#include "shard/core/cuda/cuda_call.cuh"
#include "stream_clock.h"

namespace {

using Work = std::function<void()>;
constexpr int kDevices = 4;
// Of dynamic shared memory: for any launch, and for kernels that have asked for more.
constexpr int kShared = 48 << 10, kMostShared = 227 << 10;
constexpr size_t kMostPending =
    4096;  // then the oldest is run: memory that waits to be freed must not grow without end

/// One lock for all streams: the model runs one thing at a time.
std::recursive_mutex& mutex() {
  static auto* instance = new std::recursive_mutex;
  return *instance;
}

/// What the host has waited for, for any thread: what it issues afterwards is behind it.
std::shared_ptr<const cuda_host::StreamClock>& host_clock() {
  static auto* clock = new std::shared_ptr<const cuda_host::StreamClock>(new cuda_host::StreamClock);
  return *clock;
}
void host_waited(const cuda_host::StreamClock& clock) {
  auto joined = std::make_shared<cuda_host::StreamClock>(*host_clock());
  joined->join(clock);
  host_clock() = std::move(joined);
}

/// The numbers of streams. That of one which has ended is taken again when the host has waited for what it did.
class StreamNumbers {
 public:
  StreamNumbers() {
    for (int number = cuda_host::kMostStreams - 1; number > 0; --number) free_.push_back({number, 0});
  }
  int take() {
    const auto found = std::find_if(free_.rbegin(), free_.rend(),
                                    [](const Ended& each) { return each.last <= host_clock()->of(each.number); });
    if (found == free_.rend()) return 0;
    const int number = found->number;
    free_.erase(std::next(found).base());
    return number;
  }
  void give_back(int number, uint32_t last) {
    if (number != 0) free_.push_back({number, last});
  }

 private:
  struct Ended {
    int number;
    uint32_t last;  // moment of its work
  };
  std::vector<Ended> free_;
};
StreamNumbers& stream_numbers() {
  static auto* numbers = new StreamNumbers;
  return *numbers;
}

struct Recording {
  std::vector<Work> work;
  std::vector<void*> memory;  // allocated while it was recorded
  bool is_broken = false;
};

}  // namespace

struct CUstream_st {
  struct Pending {
    Work work;
    std::shared_ptr<const cuda_host::StreamClock> host;  // when it was issued
  };
  int device = 0;
  bool is_of_thread = false;  // cudaStreamPerThread
  std::deque<Pending> pending;
  int number = stream_numbers().take();
  cuda_host::StreamClock clock;  // what its next work is behind
  std::unique_ptr<Recording> recording;
  std::string failure;  // of work that was run; the next call that waits reports it

  CUstream_st() = default;
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;
  ~CUstream_st() { stream_numbers().give_back(number, clock.of(number)); }

  /// Throws Stuck where the work stays.
  void run_one() {
    Pending next = std::move(pending.front());
    pending.pop_front();
    if (!failure.empty()) return;  // as after a failed launch on a device
    clock.join(*next.host);
    try {
      const cuda_host::StreamScope scope(number, clock);
      next.work();
    } catch (const cuda_host::Stuck&) {
      pending.push_front(std::move(next));
      throw;
    } catch (const std::exception& error) { failure = error.what(); }
    clock.advance(number, cuda_host::StreamScope::now());
  }
  /// For whoever asks for the state of the stream, and so must see progress.
  void try_one() {
    try {
      run_one();
    } catch (const cuda_host::Stuck&) {}
  }
  void run_all() {
    while (!pending.empty()) {
      try {
        run_one();
      } catch (const cuda_host::Stuck& reason) { failure = std::string("the host waits forever: ") + reason.what(); }
    }
  }
};

struct CUevent_st {
  struct Mark {
    bool is_reached = false;
    cuda_host::StreamClock clock;  // of the stream, there
  };
  std::shared_ptr<Mark> mark;
  CUstream_st* stream = nullptr;  // null before it is recorded
};

struct CUgraph_st {
  std::shared_ptr<Recording> recording;
};
struct CUgraphExec_st {
  std::shared_ptr<Recording> recording;
};

namespace {

thread_local int current_device = 0;
std::atomic<bool> contexts[kDevices];
thread_local cudaError_t last_error = cudaSuccess;
/// One of the texts of failures, which stay. It is no string of the thread: streams report when that ends, after its destructors.
thread_local const std::string* last_failure = nullptr;
/// Waits are counted where a device may make the host wait, even if nothing is pending here.
thread_local uint64_t waits = 0, allocated = 0, host_copies = 0, updates = 0, instantiations = 0;

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

std::set<CUstream_st*>& streams() {
  static auto* all = new std::set<CUstream_st*>;
  return *all;
}

/// Whether the stream exists; that of a thread ends with it.
bool is_alive(CUstream_st* stream) { return streams().count(stream) != 0; }

thread_local bool has_ended = false;  // this thread, of which other destructors may still follow

/// The streams of a thread, one for each device; what they still hold is run when the thread ends.
struct ThreadStreams {
  std::unique_ptr<CUstream_st> of[kDevices];
  ~ThreadStreams() {
    const std::lock_guard lock(mutex());
    has_ended = true;
    for (auto& stream : of) {
      if (stream == nullptr) continue;
      stream->run_all();
      streams().erase(stream.get());
      stream.reset();
    }
  }
};

CUstream_st* resolve(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy)
    return nullptr;  // which waits for others: shard only frees memory in it
  if (stream != cudaStreamPerThread) return stream;
  if (has_ended) return nullptr;
  thread_local ThreadStreams mine;
  auto& own = mine.of[current_device];
  contexts[current_device] = true;
  if (own == nullptr) {
    own = std::make_unique<CUstream_st>();
    own->device = current_device;
    own->is_of_thread = true;
    streams().insert(own.get());
  }
  return own.get();
}

cudaError_t failure_of(CUstream_st* stream) {
  if (stream->failure.empty()) return cudaSuccess;
  const std::lock_guard lock(mutex());
  static auto* texts = new std::set<std::string>;
  last_failure = &*texts->insert(std::exchange(stream->failure, {})).first;
  return fail(cudaErrorLaunchFailure);
}

/// For a host that has waited for the stream.
cudaError_t report(CUstream_st* stream) {
  host_waited(stream->clock);
  return failure_of(stream);
}

/// Runs what `stream` was given before the event.
void reach(CUstream_st* stream, const CUevent_st::Mark& mark) {
  while (!mark.is_reached && is_alive(stream) && !stream->pending.empty()) stream->run_one();
}

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

cudaError_t submit(cudaStream_t handle, Work work) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  if (stream->recording != nullptr) {
    stream->recording->work.push_back(std::move(work));
    return cudaSuccess;
  }
  if (stream->pending.size() >= kMostPending) stream->try_one();
  stream->pending.push_back({std::move(work), host_clock()});
  return cudaSuccess;
}

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

void run_until(cudaStream_t handle, const std::function<bool()>& done) {
  const std::lock_guard lock(mutex());
  while (!done() && !handle->pending.empty()) handle->run_one();
}

int stream_device(cudaStream_t handle) { return handle->device; }
int stream_number(cudaStream_t handle) { return handle->number; }
StreamClock& stream_clock(cudaStream_t handle) { return handle->clock; }

uint64_t synchronisations() { return waits; }
uint64_t allocations() { return allocated; }
uint64_t copies_to_host() { return host_copies; }
uint64_t graph_updates() { return updates; }
uint64_t graph_instantiations() { return instantiations; }

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
  if (stream->recording != nullptr) stream->recording->memory.push_back(*data);
  cuda_host::find_region(*data)->made_by = stream->number;
  return cuda_host::submit(handle, [made = *data] { cuda_host::made(made); });
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  if (handle == cudaStreamLegacy) {
    cuda_host::StreamClock before = *host_clock();
    for (CUstream_st* stream : streams()) {
      if (stream->device != current_device || !stream->is_of_thread) continue;
      if (stream->recording != nullptr) return fail(cudaErrorStreamCaptureImplicit);
      try {
        while (!stream->pending.empty()) stream->run_one();
      } catch (const cuda_host::Stuck&) { return cudaSuccess; }  // the memory stays, as the work does
      before.join(stream->clock);
    }
    for (CUstream_st* stream : streams()) {
      if (stream->device == current_device && stream->is_of_thread) stream->clock.join(before);
    }
    cuda_host::check_unused(data, 0, before);
    return cuda_host::release_device(data) ? cudaSuccess : fail(cudaErrorInvalidValue);
  }
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  if (data == nullptr) return cudaSuccess;
  if (stream->recording != nullptr) {
    const auto& own = stream->recording->memory;
    if (std::find(own.begin(), own.end(), data) != own.end()) return cudaSuccess;  // it lives as long as the graph
    return fail(cudaErrorInvalidValue);
  }
  return cuda_host::submit(handle, [data, stream] {
    cuda_host::check_unused(data, stream->number, stream->clock);
    if (!cuda_host::release_device(data)) throw cuda_host::Finding("cudaFreeAsync of memory that is not allocated");
  });
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  const std::lock_guard lock(mutex());
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
    if (stream->recording != nullptr) {
      stream->recording->is_broken = true;
      return fail(cudaErrorStreamCaptureUnsupported);
    }
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned) {
  const std::lock_guard lock(mutex());
  *handle = new CUstream_st;
  (*handle)->device = current_device;
  streams().insert(*handle);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  handle->run_all();
  streams().erase(handle);
  delete handle;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  ++waits;
  if (stream->recording != nullptr) {
    stream->recording->is_broken = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  stream->run_all();
  return report(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  if (stream->recording != nullptr) {
    stream->recording->is_broken = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (!stream->failure.empty()) stream->run_all();  // of which nothing runs any more
  if (stream->pending.empty()) return report(stream);
  stream->try_one();
  return fail(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex());
  if (event->stream == nullptr) return cudaSuccess;
  return cuda_host::submit(handle, [stream = resolve(handle), from = event->stream, mark = event->mark] {
    reach(from, *mark);
    stream->clock.join(mark->clock);
    if (!mark->is_reached)
      throw cuda_host::Finding(is_alive(from) && !from->failure.empty()
                                   ? from->failure
                                   : "a stream waits for an event that nothing will reach");
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  event->stream = resolve(handle);
  if (event->stream == nullptr) return fail(cudaErrorInvalidValue);
  event->mark = std::make_shared<CUevent_st::Mark>();
  return cuda_host::submit(handle, [stream = event->stream, mark = event->mark] {
    mark->is_reached = true;
    mark->clock = stream->clock;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(mutex());
  ++waits;
  if (event->stream == nullptr) return cudaSuccess;
  if (is_alive(event->stream)) {
    try {
      reach(event->stream, *event->mark);
    } catch (const cuda_host::Stuck&) { event->stream->run_all(); }
  }
  host_waited(event->mark->clock);
  return is_alive(event->stream) ? failure_of(event->stream) : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(mutex());
  if (CUstream_st* const mine = resolve(cudaStreamPerThread); mine != nullptr && mine->recording != nullptr) {
    mine->recording->is_broken = true;  // unsafe in a recording of this thread
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (event->stream == nullptr) return cudaSuccess;
  if (!event->mark->is_reached && is_alive(event->stream)) {
    if (event->stream->pending.empty()) return report(event->stream);  // work before the event has failed
    event->stream->try_one();
    if (!event->mark->is_reached) return fail(cudaErrorNotReady);
  }
  host_waited(event->mark->clock);
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

std::shared_ptr<Recording> owned(std::unique_ptr<Recording> recording) {
  return {recording.release(), [](Recording* r) {
            for (void* data : r->memory) cuda_host::release_device(data);
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
    for (const Work& work : recording->work) work();
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
