// NCCL of the host model. What the library leaves undefined is an error: calls of members that differ, buffers outside of the
// communicator's device, and the stream of a thread, because NCCL may issue from another one.
#include "include/nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "access.h"
#include "nccl_call.h"

using namespace cuda_host::nccl;

namespace {

thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, std::shared_ptr<Call>>> grouped;
thread_local uint64_t issued_calls = 0;
thread_local ncclResult_t next_error = ncclSuccess;
thread_local std::optional<ncclResult_t> next_hang;  // with the error that is known later
std::atomic<int> live{0}, blocked_aborts{0};

/// A call that hangs while it is true. It is never freed: streams may hold calls of communicators that are no more.
struct Hang {
  int device;
  std::atomic<bool> lasts{true};
};
std::mutex hangs_mutex;
std::vector<Hang*>& hangs() {
  static auto* const all = new std::vector<Hang*>;
  return *all;
}
Hang* new_hang(int device) {
  const std::lock_guard lock(hangs_mutex);
  return hangs().emplace_back(new Hang{device});
}
bool device_hangs(int device) {
  const std::lock_guard lock(hangs_mutex);
  return std::any_of(hangs().begin(), hangs().end(),
                     [&](const Hang* hang) { return hang->device == device && hang->lasts; });
}

}  // namespace

struct ncclComm {
  std::unique_ptr<Link> link;
  int size, member, device;
  Calls to_issue = {};
  ncclResult_t error = ncclSuccess;
  ncclResult_t later_error = ncclSuccess;  // known after the state of a call that hangs was asked for
  std::vector<Hang*> hangs = {};

  /// As the library's own thread does, some time after a call.
  void issue() {
    if (to_issue.empty()) return;
    issued_calls += to_issue.size();
    error = link->issue(std::exchange(to_issue, {}));
  }
};

namespace {

ncclResult_t add(ncclComm_t communicator, cudaStream_t stream, Call call) {
  if (communicator == nullptr || call.peer < 0 || call.peer >= communicator->size) return ncclInvalidArgument;
  if (stream == cudaStreamPerThread || stream == nullptr) return ncclInvalidUsage;
  if (cuda_host::stream_device(stream) != communicator->device) return ncclInvalidUsage;
  if (next_error != ncclSuccess) {
    communicator->error = std::exchange(next_error, ncclSuccess);
    return ncclInProgress;
  }
  call.member = communicator->member;
  call.stream = stream;
  auto shared = std::make_shared<Call>(call);
  if (next_hang) {
    communicator->later_error = *std::exchange(next_hang, std::nullopt);
    communicator->hangs.push_back(new_hang(communicator->device));
    shared->hangs = &communicator->hangs.back()->lasts;
  }
  if (group_depth > 0) {
    grouped.emplace_back(communicator, std::move(shared));
    return ncclSuccess;
  }
  communicator->to_issue.push_back(std::move(shared));
  return ncclInProgress;
}

ncclResult_t release(ncclComm_t communicator) {
  if (communicator == nullptr) return ncclInvalidArgument;
  --live;
  delete communicator;
  return ncclSuccess;
}

const char* bytes_of(const void* data) { return static_cast<const char*>(data); }
char* bytes_of(void* data) { return static_cast<char*>(data); }

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return "of the model"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  if (is_job()) make_job_id(*id);
  else make_thread_id(*id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (rank < 0 || rank >= size || config->blocking != 0) return ncclInvalidArgument;
  int device = 0;
  cudaGetDevice(&device);
  std::unique_ptr<Link> link = (is_job() ? join_job : join_threads)(id, size, rank, device);
  if (link == nullptr) return ncclInvalidUsage;
  ++live;
  *made = new ncclComm{std::move(link), size, rank, device};
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) { return release(communicator); }

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (communicator != nullptr) {
    communicator->link->abort();
    for (Hang* const hang : communicator->hangs) hang->lasts = false;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (device_hangs(communicator->device) && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (device_hangs(communicator->device)) ++blocked_aborts;
  }
  return release(communicator);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  if (communicator == nullptr) return ncclInvalidArgument;
  *error = communicator->link->state();
  if (*error != ncclSuccess) return ncclSuccess;
  if (communicator->error == ncclSuccess) communicator->issue();
  *error = communicator->error == ncclSuccess ? communicator->link->state() : communicator->error;
  if (*error == ncclSuccess && !communicator->hangs.empty()) communicator->error = communicator->later_error;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  for (auto& [communicator, call] : std::exchange(grouped, {})) communicator->to_issue.push_back(std::move(call));
  return ncclInProgress;
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  return add(communicator, stream, {Kind::all_gather, bytes_of(send), bytes_of(receive), count, type, ncclSum, 0});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, stream, {Kind::broadcast, bytes_of(send), bytes_of(receive), count, type, ncclSum, root});
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, stream, {Kind::all_reduce, bytes_of(send), bytes_of(receive), count, type, op, 0});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t stream) {
  return add(communicator, stream, {Kind::reduce_scatter, bytes_of(send), bytes_of(receive), count, type, op, 0});
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return add(communicator, stream, {Kind::send, bytes_of(data), nullptr, count, type, ncclSum, peer});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return add(communicator, stream, {Kind::receive, nullptr, bytes_of(data), count, type, ncclSum, peer});
}

namespace cuda_host {

uint64_t nccl_calls() { return issued_calls; }
void stop_next_nccl_call() { next_error = ncclInProgress; }
void fail_next_nccl_call(ncclResult_t error) { next_error = error; }
void hang_next_nccl_call(ncclResult_t error) { next_hang = error; }
int nccl_blocked_aborts() { return blocked_aborts; }
int nccl_communicators() { return live; }

}  // namespace cuda_host
