// The interface between the library and its transports: collectives of one group of ranks. A
// transport derives from Communicator.
#pragma once

#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shard/comm/collective.h"
#include "shard/core/export.h"
#include "shard/core/trace.h"
#include "shard/core/work.h"

namespace shard {

struct CommCount {
  uint64_t calls = 0;
  int64_t bytes_sent = 0;  // by this rank to other ranks
};

/// What a communicator has sent, counted where it is sent, for comparison with the predictions of
/// plans.
struct SHARD_API CommStats {
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;
  std::array<CommCount, kNumCommKinds> kinds = {};

  const CommCount& operator[](CommKind kind) const { return kinds[static_cast<size_t>(kind)]; }
  void count(CommKind kind, int64_t bytes);
  CommStats& operator+=(const CommStats& other);
};

class CommQueue;

/// A collective that this rank has started. A transport derives from it.
class SHARD_API Operation : public Work::State {
 public:
  ~Operation() override;
  void wait() final;

 protected:
  /// Returns when the result is available and no peer needs this rank's buffers any more. Throws
  /// communication, timeout or peer_failed.
  virtual void complete() = 0;

 private:
  friend class CommQueue;
  friend class Communicator;
  enum class Status : uint8_t { pending, done, failed };

  CommQueue* queue_ = nullptr;
  uint64_t ticket_ = 0;
  Status status_ = Status::pending;
  std::exception_ptr error_;
};

/// State that the communicators of one rank share: its trace, and its collectives in flight. They
/// are completed in the order in which they were started, so that ranks that start them in the same
/// order never deadlock.
class SHARD_API CommQueue {
 public:
  explicit CommQueue(TraceRing& trace) : trace_(trace) {}
  /// Completes all collectives in flight. Throws the first failure.
  void finish();

  /// The number of distributed calls of this rank, including failed ones. Transports report
  /// failures to other ranks by these numbers.
  uint64_t calls_done() const { return calls_done_; }
  /// Sets that number, at the end of a call. Calls within the function of another call are part of
  /// that call, and are not counted.
  void set_calls_done(uint64_t calls) {
    if (!inside_call_) calls_done_ = calls;
  }
  bool inside_call() const { return inside_call_; }
  /// While an object exists, the function of a call is running.
  class InsideCall {
   public:
    explicit InsideCall(CommQueue& queue) : queue_(queue), before_(std::exchange(queue.inside_call_, true)) {}
    InsideCall(const InsideCall&) = delete;
    InsideCall& operator=(const InsideCall&) = delete;
    ~InsideCall() { queue_.inside_call_ = before_; }

   private:
    CommQueue& queue_;
    const bool before_;
  };

 private:
  friend class Communicator;
  friend class Operation;
  void finish_until(const Operation* last);

  TraceRing& trace_;
  uint64_t calls_done_ = 0;
  bool inside_call_ = false;
  std::deque<Operation*> under_way_;
  // of the next collective of each group, whichever communicator starts it
  std::map<std::vector<int>, uint64_t> sequences_;
};

/// Collectives of a group of ranks. Every member calls the same functions in the same order, from
/// one thread each. All of them start the work and return a handle; calling `.wait()` on it at once
/// makes the call blocking. Lists of sizes and boxes are copied, buffers are not. Communicators of
/// a rank with the same members (a mesh and its only axis, for example) number their collectives
/// together.
/// Buffers are on the host, or all of a member's on one device, whose work before the call is waited for by the work of the
/// collective, not by the host. Results on a device are there for work that is issued to it after `.wait()`.
/// Errors, at the start or when waiting: communication (the ranks do not agree), timeout (a member
/// did not join), peer_failed.
class SHARD_API Communicator {
 public:
  Communicator(std::vector<int> members, int rank, CommQueue& queue)
      : members_(std::move(members)), rank_(rank), queue_(queue), sequence_(queue.sequences_[members_]) {}
  virtual ~Communicator() = default;

  /// This rank's position in the group, the group's size, and the world ranks of its members.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }
  const CommStats& stats() const { return stats_; }

  /// Member i sends bytes[i]; every member receives the parts of all members in their order.
  Work all_gather(CommCause cause, const void* send, void* receive, std::span<const int64_t> bytes,
                  Device device = kCpu);
  /// Sends send_bytes[i] to member i and receives receive_bytes[i] from it; the parts are
  /// consecutive in both buffers.
  Work all_to_all(CommCause cause, const void* send, std::span<const int64_t> send_bytes, void* receive,
                  std::span<const int64_t> receive_bytes, Device device = kCpu);
  /// Reduces `count` elements in place. The result has the same bits on every member.
  Work all_reduce(CommCause cause, void* data, int64_t count, DType dtype, ReduceType type, Device device = kCpu);
  /// `send` holds counts[0] elements for member 0, then counts[1] for member 1, ...; member i
  /// receives the reduction of its part.
  Work reduce_scatter(CommCause cause, const void* send, void* receive, std::span<const int64_t> counts, DType dtype,
                      ReduceType type, Device device = kCpu);
  Work broadcast(CommCause cause, void* data, int64_t bytes, int root, Device device = kCpu);
  /// Copies boxes of elements of `element_bytes` between buffers of the members; it can express
  /// every transfer without a reduction. The k-th receive from a member is the k-th send of that
  /// member to this one. Every member calls it, even with no boxes; only pairs with boxes exchange
  /// messages. Boxes from this member to itself are copied and count no bytes. The boxes that a
  /// member receives must not overlap, nor must its two buffers.
  Work exchange(CommCause cause, const void* send, std::span<const BoxTransfer> sends, void* receive,
                std::span<const BoxTransfer> receives, size_t element_bytes, Device device = kCpu);

 protected:
  /// Starts a collective. Returns null when nothing is left to do, as in a transport that transfers
  /// nothing. The lists of sizes have one entry per member, and peers and roots are members.
  virtual std::unique_ptr<Operation> do_start(Collective collective) = 0;
  /// True where do_start() takes buffers of this device, which is not the host. Otherwise it gets copies of them on the host.
  virtual bool takes(Device device) const = 0;

 private:
  class Staged;
  Work start(Collective collective, int64_t bytes_sent);
  void check_member(const Collective& collective, int member) const;

  std::vector<int> members_;
  int rank_;
  CommQueue& queue_;
  CommStats stats_;
  uint64_t& sequence_;
};

}  // namespace shard
