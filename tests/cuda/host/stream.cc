// Streams and events of the host model. Work is run only when somebody waits for it, so that whoever forgets to wait sees memory as it
// was before.
#include "stream.h"

#include <pthread.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "access.h"

namespace {

using cuda_host::current_device;
using cuda_host::fail;
using cuda_host::host_clock;
using cuda_host::host_waited;
using cuda_host::kDevices;
using cuda_host::make_context;
using cuda_host::mutex;
using cuda_host::report;
using cuda_host::resolve;
using cuda_host::streams;
using cuda_host::waits;

constexpr size_t kMostPending =
    4096;  // then the oldest is run: memory that waits to be freed must not grow without end

/// The numbers of streams. That of one which has ended is taken again when the host has waited for what it did.
class StreamNumbers {
 public:
  StreamNumbers() {
    for (int number = cuda_host::kMostStreams - 1; number > 0; --number) free_.push_back({number, 0});
  }
  int take() {
    const auto found = std::find_if(free_.rbegin(), free_.rend(),
                                    [](const Ended& each) { return each.last <= host_clock()->of(each.number); });
    if (found == free_.rend()) throw std::length_error("the model of CUDA has no number for one more stream");
    const int number = found->number;
    free_.erase(std::next(found).base());
    return number;
  }
  void give_back(int number, uint32_t last) { free_.push_back({number, last}); }

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

/// Whether the stream exists.
bool is_alive(CUstream_st* stream) { return streams().count(stream) != 0; }

/// The streams of a thread, one for each device. They are there until all destructors of its variables have run: what such still wait for.
struct ThreadStreams {
  std::unique_ptr<CUstream_st> of[kDevices];

  static ThreadStreams& mine() {
    static const pthread_key_t key = [] {
      pthread_key_t made = 0;
      pthread_key_create(&made, [](void* self) { delete static_cast<ThreadStreams*>(self); });
      return made;
    }();
    auto* self = static_cast<ThreadStreams*>(pthread_getspecific(key));
    if (self == nullptr) pthread_setspecific(key, self = new ThreadStreams);
    return *self;
  }
  ThreadStreams() = default;
  ThreadStreams(const ThreadStreams&) = delete;
  ThreadStreams& operator=(const ThreadStreams&) = delete;
  ~ThreadStreams() {
    const std::lock_guard lock(mutex());
    for (auto& stream : of) {
      if (stream == nullptr) continue;
      stream->run_all();  // a device goes on with what nobody waits for
      streams().erase(stream.get());
      stream.reset();
    }
  }
};

}  // namespace

namespace {

/// The stream whose work runs.
CUstream_st* running = nullptr;
struct Running {
  explicit Running(CUstream_st* stream) : outer(std::exchange(running, stream)) {}
  ~Running() { running = outer; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  CUstream_st* outer;
};

}  // namespace

CUstream_st::CUstream_st() : number(stream_numbers().take()) {}
CUstream_st::~CUstream_st() { stream_numbers().give_back(number, clock.of(number)); }

void CUstream_st::run_one() {
  Pending next = std::move(pending.front());
  pending.pop_front();
  if (!failure.empty()) return;  // as after a failed launch on a device
  clock.join(*next.host);
  try {
    const cuda_host::StreamScope scope(number, clock);
    const Running now(this);
    next.work();
  } catch (const cuda_host::Stuck&) {
    pending.push_front(std::move(next));
    throw;
  } catch (const std::exception& error) { failure = error.what(); }
  clock.advance(number, cuda_host::StreamScope::now());
}

void CUstream_st::try_one() {
  try {
    run_one();
  } catch (const cuda_host::Stuck&) {}
}

void CUstream_st::run_all() {
  while (!pending.empty()) {
    try {
      run_one();
    } catch (const cuda_host::Stuck& reason) { failure = std::string("the host waits forever: ") + reason.what(); }
  }
}

struct CUevent_st {
  struct Mark {
    bool is_reached = false;
    cuda_host::StreamClock clock;  // of the stream, there
  };
  std::shared_ptr<Mark> mark;
  CUstream_st* stream = nullptr;  // null before it is recorded
};

namespace {

/// Runs what `stream` was given before the event.
void reach(CUstream_st* stream, const CUevent_st::Mark& mark) {
  while (!mark.is_reached && is_alive(stream) && !stream->pending.empty()) stream->run_one();
}

cudaError_t failure_of(CUstream_st* stream) {
  return stream->failure.empty() ? cudaSuccess : cuda_host::fail_launch(std::exchange(stream->failure, {}));
}

}  // namespace

namespace cuda_host {

std::recursive_mutex& mutex() {
  static auto* instance = new std::recursive_mutex;
  return *instance;
}

std::shared_ptr<const StreamClock>& host_clock() {
  static auto* clock = new std::shared_ptr<const StreamClock>(new StreamClock);
  return *clock;
}
void host_waited(const StreamClock& clock) {
  auto joined = std::make_shared<StreamClock>(*host_clock());
  joined->join(clock);
  host_clock() = std::move(joined);
}

std::set<CUstream_st*>& streams() {
  static auto* all = new std::set<CUstream_st*>;
  return *all;
}

CUstream_st* resolve(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return nullptr;
  if (stream != cudaStreamPerThread) return stream;
  auto& own = ThreadStreams::mine().of[current_device];
  make_context(current_device);
  if (own == nullptr) {
    own = std::make_unique<CUstream_st>();
    own->device = current_device;
    streams().insert(own.get());
  }
  return own.get();
}

cudaError_t report(CUstream_st* stream) {
  host_waited(stream->clock);
  return failure_of(stream);
}

cudaError_t break_recording(CUstream_st* stream) {
  stream->recording->is_broken = true;
  return fail(cudaErrorStreamCaptureUnsupported);
}

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

void run_until(cudaStream_t handle, const std::function<bool()>& done) {
  const std::lock_guard lock(mutex());
  while (!done() && !handle->pending.empty()) handle->run_one();
}

int stream_device(cudaStream_t handle) { return handle->device; }
int stream_number(cudaStream_t handle) { return handle->number; }
StreamClock& stream_clock(cudaStream_t handle) { return handle->clock; }

}  // namespace cuda_host

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  const std::lock_guard lock(mutex());
  *handle = new CUstream_st;
  (*handle)->is_blocking = flags == cudaStreamDefault;
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
  if (stream->recording != nullptr) return cuda_host::break_recording(stream);
  stream->run_all();
  return report(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::lock_guard lock(mutex());
  CUstream_st* const stream = resolve(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidValue);
  if (stream->recording != nullptr) return cuda_host::break_recording(stream);
  if (!stream->failure.empty()) stream->run_all();  // of which nothing runs any more
  if (stream->pending.empty()) return report(stream);
  stream->try_one();
  return fail(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex());
  if (event->stream == nullptr) return cudaSuccess;
  return cuda_host::submit(handle, [from = event->stream, mark = event->mark] {
    reach(from, *mark);
    running->clock.join(mark->clock);
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
  return cuda_host::submit(handle, [mark = event->mark] {
    mark->is_reached = true;
    mark->clock = running->clock;
    mark->clock.advance(running->number, cuda_host::StreamScope::now());
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
  if (const cudaError_t refused = cuda_host::unsafe_call(); refused != cudaSuccess) return refused;
  if (event->stream == nullptr) return cudaSuccess;
  if (!event->mark->is_reached && is_alive(event->stream)) {
    if (event->stream->pending.empty()) return report(event->stream);  // work before the event has failed
    event->stream->try_one();
    if (!event->mark->is_reached) return fail(cudaErrorNotReady);
  }
  host_waited(event->mark->clock);
  return cudaSuccess;
}
