// Communicators of threads. A call is issued to its stream when the host asks for the state of the communicator after it, and run when
// all members have come to it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "access.h"
#include "memory.h"
#include "nccl_call.h"

namespace cuda_host::nccl {
namespace {

/// What the members of one communicator share.
struct Clique {
  std::mutex mutex;
  int size = 0, joined = 0;
  std::vector<int> devices;
  std::vector<Calls> collectives;                        // by member
  std::map<std::pair<int, int>, Calls> sends, receives;  // by sender and receiver
  std::vector<bool> is_aborted;

  int device(int member) const { return devices[static_cast<size_t>(member)]; }
};

/// What was issued to a device and has not run, of all communicators, in this order.
struct Issued {
  std::shared_ptr<Clique> clique;
  std::shared_ptr<Call> call;
};
std::mutex issued_mutex;
std::map<int, std::vector<Issued>>& issued_to_devices() {
  static auto* all = new std::map<int, std::vector<Issued>>;
  return *all;
}

/// Whether a call of another communicator, issued to the device of `call` before it, may run there at the same time. On another device
/// the two may run in another order, and then both wait forever. Events between streams are not considered.
bool is_unordered(const Clique& clique, const Call& call) {
  bool found = false;
  run_until(call.stream, [&] {  // while nothing else runs
    const std::lock_guard lock(issued_mutex);
    std::vector<Issued>& issued = issued_to_devices()[clique.device(call.member)];
    std::erase_if(issued, [](const Issued& each) { return each.call->is_run; });
    for (const Issued& each : issued) found |= each.clique.get() != &clique && each.call->stream != call.stream;
    return true;
  });
  return found;
}

std::mutex cliques_mutex;
std::map<uint64_t, std::shared_ptr<Clique>>& cliques() {
  static auto* all = new std::map<uint64_t, std::shared_ptr<Clique>>;
  return *all;
}

/// The calls that must have arrived before this one can run, by member; of a collective itself too.
Calls partners_of(Clique& clique, const Call& call) {
  const std::lock_guard lock(clique.mutex);
  const auto numbered = [&](const Calls& calls, int member) {
    if (clique.is_aborted[static_cast<size_t>(member)]) stuck(call, fmt::format("member {} was aborted", member));
    if (calls.size() <= call.number) stuck(call, fmt::format("member {} does not take part", member));
    return calls[call.number];
  };
  if (call.kind == Kind::send) return {numbered(clique.receives[{call.member, call.peer}], call.peer)};
  if (call.kind == Kind::receive) return {numbered(clique.sends[{call.peer, call.member}], call.peer)};
  Calls all;
  for (int i = 0; i < clique.size; ++i) all.push_back(numbered(clique.collectives[static_cast<size_t>(i)], i));
  return all;
}

void run_collective(const Calls& members) {
  std::vector<std::vector<char>> results;  // all are made before one is written, because buffers may be both
  for (size_t i = 0; i < members.size(); ++i) results.push_back(result_of(members, i));
  for (size_t i = 0; i < members.size(); ++i) {
    give(*members[i], results[i]);
    members[i]->is_run = true;
  }
}

void run_transfer(Call& a, Call& b) {
  Call& from = a.kind == Kind::send ? a : b;
  Call& to = a.kind == Kind::send ? b : a;
  give(to, {from.send, from.send + from.count * size_of(from.type)});
  from.is_run = to.is_run = true;
}

/// Whether the end of a call means that the partner has come to its own: NCCL may end others before.
bool hears(const Call& call, const Call& partner) {
  return call.kind == Kind::broadcast ? partner.member == call.peer : call.kind != Kind::send;
}

/// The calls of a member that were issued together.
void run(Clique& clique, const Calls& calls) {
  for (const auto& call : calls) check_runs(*call);
  for (const auto& call : calls) arrive(*call);
  for (const auto& call : calls) {
    {
      const std::lock_guard lock(clique.mutex);
      if (clique.is_aborted[static_cast<size_t>(call->member)]) return;
    }
    const Calls partners = partners_of(clique, *call);
    for (const auto& partner : partners) {
      run_until(partner->stream, [&] { return partner->has_arrived; });
      if (!partner->has_arrived) finding(*call, fmt::format("the device of member {} has failed", partner->member));
      if (hears(*call, *partner)) stream_clock(call->stream).join(partner->arrival);
    }
    if (call->is_run) continue;
    const DeviceAccess access;
    const auto use = [&](const Call& of) { use_buffers(of, clique.size, clique.device(of.member)); };
    if (is_transfer(*call)) use(*call);  // which is not among its partners
    for (const auto& partner : partners) {
      use(*partner);
      check_fits(*call, *partner);
      if (!is_accessible(clique.device(partner->member), clique.device(call->member)))
        finding(*call, fmt::format("the device of member {} may not access the memory of that of member {}",
                                   call->member, partner->member));
    }
    if (is_transfer(*call)) run_transfer(*call, *partners[0]);
    else run_collective(partners);
  }
}

class ThreadLink final : public Link {
 public:
  ThreadLink(std::shared_ptr<Clique> clique, int member) : clique_(std::move(clique)), member_(member) {}
  ~ThreadLink() override { forget(); }

  ncclResult_t state() override {
    const std::lock_guard lock(clique_->mutex);
    return clique_->joined < clique_->size ? ncclInProgress : ncclSuccess;
  }

  ncclResult_t issue(const Calls& calls) override {
    {
      const std::lock_guard lock(clique_->mutex);
      for (const auto& call : calls) {
        Calls& to = call->kind == Kind::send      ? clique_->sends[{member_, call->peer}]
                    : call->kind == Kind::receive ? clique_->receives[{call->peer, member_}]
                                                  : clique_->collectives[static_cast<size_t>(member_)];
        call->number = to.size();
        to.push_back(call);
      }
    }
    {
      const std::lock_guard lock(issued_mutex);
      for (const auto& call : calls) issued_to_devices()[device()].push_back({clique_, call});
    }
    const bool unordered = is_unordered(*clique_, *calls[0]);
    const cudaError_t status = submit(calls[0]->stream, [shared = clique_, calls, unordered] {
      if (unordered) finding(*calls[0], "is not ordered with a call of another communicator on its device");
      run(*shared, calls);
    });
    return status == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
  }

  void abort() override {
    forget();
    const std::lock_guard lock(clique_->mutex);
    clique_->is_aborted[static_cast<size_t>(member_)] = true;
  }

 private:
  int device() const { return clique_->device(member_); }
  /// What has not run will not.
  void forget() {
    const std::lock_guard lock(issued_mutex);
    std::erase_if(issued_to_devices()[device()], [&](const Issued& each) { return each.clique == clique_; });
  }

  std::shared_ptr<Clique> clique_;
  int member_;
};

}  // namespace

void make_thread_id(ncclUniqueId& id) {
  const std::lock_guard lock(cliques_mutex);
  static uint64_t next = 0;
  const uint64_t number = next++;
  std::memcpy(id.internal, &number, sizeof(number));
  cliques()[number] = std::make_shared<Clique>();
}

std::unique_ptr<Link> join_threads(const ncclUniqueId& id, int size, int member, int device) {
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  std::shared_ptr<Clique> clique;
  {
    const std::lock_guard lock(cliques_mutex);
    const auto found = cliques().find(number);
    if (found == cliques().end()) return nullptr;
    clique = found->second;
  }
  const std::lock_guard lock(clique->mutex);
  if (clique->size == 0) {
    clique->size = size;
    clique->devices.assign(static_cast<size_t>(size), -1);
    clique->collectives.resize(static_cast<size_t>(size));
    clique->is_aborted.resize(static_cast<size_t>(size));
  }
  int& mine = clique->devices[static_cast<size_t>(member)];
  const bool is_taken = std::find(clique->devices.begin(), clique->devices.end(), device) != clique->devices.end();
  if (clique->size != size || mine >= 0 || is_taken) return nullptr;
  mine = device;
  ++clique->joined;
  return std::make_unique<ThreadLink>(clique, member);
}

}  // namespace cuda_host::nccl
