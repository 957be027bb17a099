// A call of NCCL in the model, and what it gives.
#pragma once

#include "include/nccl.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "stream_clock.h"

namespace cuda_host::nccl {

enum class Kind { all_gather, broadcast, all_reduce, reduce_scatter, send, receive };

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
  int stream_number = 0;                     // of its stream, and what that is behind, when it has arrived
  StreamClock arrival = {};
  const std::atomic<bool>* hangs = nullptr;  // while it is true, the device does not go on
};
/// Of the members of a communicator, in their order.
using Calls = std::vector<std::shared_ptr<Call>>;

const char* name_of(Kind kind);
size_t size_of(ncclDataType_t type);
inline bool is_transfer(const Call& call) { return call.kind == Kind::send || call.kind == Kind::receive; }
/// The bytes that a member of `size` sends and receives.
size_t send_bytes(const Call& call, int size);
size_t receive_bytes(const Call& call, int size);

[[noreturn]] void finding(const Call& call, const std::string& what);
/// Throws Stuck.
[[noreturn]] void stuck(const Call& call, const std::string& what);
/// Throws Stuck while the call hangs.
void check_runs(const Call& call);
/// Its stream has come to the call.
void arrive(Call& call);
/// The stream of the call, which has arrived, uses its buffers (use_range). Throws a finding, also where they are not in memory of `device`.
void use_buffers(const Call& call, int size, int device);
/// Throws a finding unless the call of another member fits.
void check_fits(const Call& call, const Call& partner);
/// What a collective gives member i.
std::vector<char> result_of(const Calls& members, size_t i);
/// Writes what a call gave to its buffer.
void give(const Call& call, const std::vector<char>& result);

/// How a member of a communicator reaches the others, for one thread.
class Link {
 public:
  virtual ~Link() = default;
  /// ncclInProgress until all members have joined, and what was issued is on its stream.
  virtual ncclResult_t state() = 0;
  /// Issues calls together.
  virtual ncclResult_t issue(const Calls& calls) = 0;
  /// Before the member is destroyed, in the place of its destruction in agreement with the others.
  virtual void abort() {}
};

/// Members are threads of this process.
void make_thread_id(ncclUniqueId& id);
/// Null where the arguments are wrong.
std::unique_ptr<Link> join_threads(const ncclUniqueId& id, int size, int member, int device);

/// Members are processes of an MPI job of one machine, which exchange files in a folder.
bool is_job();
void make_job_id(ncclUniqueId& id);
std::unique_ptr<Link> join_job(const ncclUniqueId& id, int size, int member, int device);

}  // namespace cuda_host::nccl
