// NCCL of the host model. A call is issued to its stream when the host asks for the state of the communicator after it, and run
// when all members have come to it. What the library leaves undefined is an error: calls of members that differ, buffers outside
// of the communicator's device, and the stream of a thread, because NCCL may issue from another one.
#include "include/nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "access.h"
#include "memory.h"

namespace {

enum class Kind { all_gather, broadcast, all_reduce, reduce_scatter, send, receive };
constexpr const char* kNames[] = {"ncclAllGather",     "ncclBroadcast", "ncclAllReduce",
                                  "ncclReduceScatter", "ncclSend",      "ncclRecv"};

struct Call {
  Kind kind;
  const char* send;
  char* receive;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // or root
  int member = 0;
  cudaStream_t stream = nullptr;
  size_t number = 0;                         // among the calls that it may match
  bool has_arrived = false, is_run = false;  // used where the model runs work
};
using Calls = std::vector<std::shared_ptr<Call>>;

/// What the members of one communicator share.
struct Clique {
  std::mutex mutex;
  int size = 0, joined = 0;
  std::vector<int> devices;
  std::vector<Calls> collectives;                        // by member
  std::map<std::pair<int, int>, Calls> sends, receives;  // by sender and receiver
  std::vector<bool> is_aborted;
};

size_t size_of(ncclDataType_t type) { return type == ncclUint8 ? 1 : type == ncclInt32 || type == ncclFloat32 ? 4 : 8; }

thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, std::shared_ptr<Call>>> grouped;
thread_local uint64_t issued_calls = 0;
thread_local ncclResult_t next_error = ncclSuccess;
std::atomic<int> live{0};

std::mutex cliques_mutex;
std::map<uint64_t, std::shared_ptr<Clique>>& cliques() {
  static auto* all = new std::map<uint64_t, std::shared_ptr<Clique>>;
  return *all;
}

[[noreturn]] void finding(const Call& call, const std::string& what) {
  throw cuda_host::Finding(
      fmt::format("{} of member {}: {}", kNames[static_cast<size_t>(call.kind)], call.member, what));
}

void check_buffer(const Clique& clique, const Call& call, const void* data, size_t bytes) {
  if (bytes == 0) return;
  const cuda_host::Region* const region = cuda_host::find_region(data);
  if (region == nullptr || static_cast<const char*>(data) + bytes > region->data + region->bytes)
    finding(call, "a buffer is not within an allocation of a device");
  if (cuda_host::device_of(region->data) != clique.devices[static_cast<size_t>(call.member)])
    finding(call, "a buffer is on another device than the communicator");
}

void check_buffers(const Clique& clique, const Call& call) {
  const size_t bytes = call.count * size_of(call.type), all = bytes * static_cast<size_t>(clique.size);
  if (call.send != nullptr) check_buffer(clique, call, call.send, call.kind == Kind::reduce_scatter ? all : bytes);
  if (call.receive != nullptr) check_buffer(clique, call, call.receive, call.kind == Kind::all_gather ? all : bytes);
}

/// The calls that must have arrived before this one can run, by member; of a collective itself too.
Calls partners_of(Clique& clique, const Call& call) {
  const std::lock_guard lock(clique.mutex);
  const auto numbered = [&](const Calls& calls, int member) {
    if (clique.is_aborted[static_cast<size_t>(member)]) finding(call, fmt::format("member {} was aborted", member));
    if (calls.size() <= call.number)
      finding(call, fmt::format("member {} does not take part, so that a device would wait forever", member));
    return calls[call.number];
  };
  if (call.kind == Kind::send) return {numbered(clique.receives[{call.member, call.peer}], call.peer)};
  if (call.kind == Kind::receive) return {numbered(clique.sends[{call.peer, call.member}], call.peer)};
  Calls all;
  for (int i = 0; i < clique.size; ++i) all.push_back(numbered(clique.collectives[static_cast<size_t>(i)], i));
  return all;
}

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  if (op == ncclMax) return std::max(a, b);
  if (op == ncclMin) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {  // wraps around
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<T>(op == ncclProd ? x * y : x + y);
  } else {
    return op == ncclProd ? a * b : a + b;
  }
}

/// Added from the last member to the first, so that nobody relies on an order.
template <class T>
void reduce(const Calls& members, size_t begin, size_t count, ncclRedOp_t op, char* out) {
  std::vector<T> sum(count);
  for (size_t n = members.size(); n-- > 0;) {
    const T* const values = reinterpret_cast<const T*>(members[n]->send) + begin;
    for (size_t i = 0; i < count; ++i) {
      const T value = op == ncclAvg ? static_cast<T>(values[i] / static_cast<T>(members.size())) : values[i];
      sum[i] = n + 1 == members.size() ? value : combine(sum[i], value, op);
    }
  }
  if (count > 0) std::memcpy(out, sum.data(), count * sizeof(T));
}

void reduce(const Calls& members, size_t begin, size_t count, const Call& call, char* out) {
  switch (call.type) {
    case ncclUint8: return reduce<uint8_t>(members, begin, count, call.op, out);
    case ncclInt32: return reduce<int32_t>(members, begin, count, call.op, out);
    case ncclInt64: return reduce<int64_t>(members, begin, count, call.op, out);
    case ncclFloat32: return reduce<float>(members, begin, count, call.op, out);
    case ncclFloat64: return reduce<double>(members, begin, count, call.op, out);
  }
}

void move(char* to, const char* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

void run_collective(const Calls& members) {
  const Call& first = *members[0];
  const size_t bytes = first.count * size_of(first.type);
  std::vector<std::vector<char>> results;  // all are made before one is written, because buffers may be both
  for (size_t i = 0; i < members.size(); ++i) {
    std::vector<char>& result = results.emplace_back(first.kind == Kind::all_gather ? bytes * members.size() : bytes);
    switch (first.kind) {
      case Kind::all_gather:
        for (size_t k = 0; k < members.size(); ++k) move(result.data() + k * bytes, members[k]->send, bytes);
        break;
      case Kind::broadcast: move(result.data(), members[static_cast<size_t>(first.peer)]->send, bytes); break;
      case Kind::all_reduce: reduce(members, 0, first.count, first, result.data()); break;
      default: reduce(members, i * first.count, first.count, first, result.data());
    }
  }
  for (size_t i = 0; i < members.size(); ++i) {
    move(members[i]->receive, results[i].data(), results[i].size());
    cuda_host::mark_written(members[i]->receive, results[i].size());
    members[i]->is_run = true;
  }
}

void run_transfer(Call& a, Call& b) {
  Call& from = a.kind == Kind::send ? a : b;
  Call& to = a.kind == Kind::send ? b : a;
  const size_t bytes = from.count * size_of(from.type);
  move(to.receive, from.send, bytes);
  cuda_host::mark_written(to.receive, bytes);
  from.is_run = to.is_run = true;
}

/// The calls of a member that were issued together.
void run(Clique& clique, const Calls& calls) {
  for (const auto& call : calls) call->has_arrived = true;
  for (const auto& call : calls) {
    {
      const std::lock_guard lock(clique.mutex);
      if (clique.is_aborted[static_cast<size_t>(call->member)]) return;
    }
    const Calls partners = partners_of(clique, *call);
    for (const auto& partner : partners) {
      cuda_host::run_until(partner->stream, [&] { return partner->has_arrived; });
      if (!partner->has_arrived) finding(*call, fmt::format("the device of member {} has failed", partner->member));
    }
    if (call->is_run) continue;
    const cuda_host::DeviceAccess access;
    check_buffers(clique, *call);
    const bool is_transfer = call->kind == Kind::send || call->kind == Kind::receive;
    for (const auto& partner : partners) {
      check_buffers(clique, *partner);
      if (partner->count != call->count || partner->type != call->type ||
          (!is_transfer && (partner->kind != call->kind || partner->op != call->op || partner->peer != call->peer)))
        finding(*call, fmt::format("member {} calls {} with other arguments", partner->member,
                                   kNames[static_cast<size_t>(partner->kind)]));
    }
    if (is_transfer) run_transfer(*call, *partners[0]);
    else run_collective(partners);
  }
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int member;
  Calls to_issue;
  ncclResult_t error = ncclSuccess;

  /// As the library's own thread does, some time after a call.
  void issue() {
    const Calls calls = std::exchange(to_issue, {});
    if (calls.empty()) return;
    {
      const std::lock_guard lock(clique->mutex);
      for (const auto& call : calls) {
        Calls& to = call->kind == Kind::send      ? clique->sends[{member, call->peer}]
                    : call->kind == Kind::receive ? clique->receives[{call->peer, member}]
                                                  : clique->collectives[static_cast<size_t>(member)];
        call->number = to.size();
        to.push_back(call);
      }
    }
    issued_calls += calls.size();
    if (cuda_host::submit(calls[0]->stream, [shared = clique, calls] { run(*shared, calls); }) != cudaSuccess)
      error = ncclUnhandledCudaError;
  }
};

namespace {

ncclResult_t add(ncclComm_t communicator, cudaStream_t stream, Call call) {
  if (communicator == nullptr || call.peer < 0 || call.peer >= communicator->clique->size) return ncclInvalidArgument;
  if (stream == cudaStreamPerThread || stream == nullptr) return ncclInvalidUsage;
  const Clique& clique = *communicator->clique;
  if (cuda_host::stream_device(stream) != clique.devices[static_cast<size_t>(communicator->member)])
    return ncclInvalidUsage;
  if (next_error != ncclSuccess) {
    communicator->error = std::exchange(next_error, ncclSuccess);
    return ncclInProgress;
  }
  call.member = communicator->member;
  call.stream = stream;
  auto shared = std::make_shared<Call>(call);
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
  const std::lock_guard lock(cliques_mutex);
  static uint64_t next = 0;
  const uint64_t number = next++;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, &number, sizeof(number));
  cliques()[number] = std::make_shared<Clique>();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(cliques_mutex);
    const auto found = cliques().find(number);
    if (found == cliques().end() || rank < 0 || rank >= size || config->blocking != 0) return ncclInvalidArgument;
    clique = found->second;
  }
  const std::lock_guard lock(clique->mutex);
  if (clique->size == 0) {
    clique->size = size;
    clique->devices.assign(static_cast<size_t>(size), -1);
    clique->collectives.resize(static_cast<size_t>(size));
    clique->is_aborted.resize(static_cast<size_t>(size));
  }
  int device = 0;
  cudaGetDevice(&device);
  int& mine = clique->devices[static_cast<size_t>(rank)];
  if (clique->size != size || mine >= 0) return ncclInvalidArgument;
  if (std::find(clique->devices.begin(), clique->devices.end(), device) != clique->devices.end())
    return ncclInvalidUsage;  // two members on one device
  mine = device;
  ++clique->joined;
  ++live;
  *made = new ncclComm{clique, rank, {}};
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) { return release(communicator); }

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (communicator != nullptr) {
    const std::lock_guard lock(communicator->clique->mutex);
    communicator->clique->is_aborted[static_cast<size_t>(communicator->member)] = true;
  }
  return release(communicator);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  if (communicator == nullptr) return ncclInvalidArgument;
  {
    const std::lock_guard lock(communicator->clique->mutex);
    if (communicator->clique->joined < communicator->clique->size) {
      *error = ncclInProgress;
      return ncclSuccess;
    }
  }
  if (communicator->error == ncclSuccess) communicator->issue();
  *error = communicator->error;
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
void fail_next_nccl_call(ncclResult_t error) { next_error = error; }
int nccl_communicators() { return live; }

}  // namespace cuda_host
