// The seam between the library and its transports: collectives of one group of ranks. A transport derives from Communicator.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/reduce_type.h"
#include "core/trace.h"

namespace shard {

/// The op call and argument on whose behalf a collective runs. The strings live as long as the library.
struct CommCause {
  std::string_view op = "user";
  std::string_view argument = "";
};

/// What a communicator has sent, counted where it is sent. For comparison with what plans predict.
struct CommStats {
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;  // by this rank to other ranks
};

/// Collectives of a group of ranks. Every member calls the same functions in the same order, from one thread each.
/// Failures: communication (the ranks do not agree), timeout (a member did not come), peer_failed.
class Communicator {
 public:
  Communicator(std::vector<int> members, int rank, TraceRing* trace)
      : members_(std::move(members)), rank_(rank), trace_(trace) {}
  virtual ~Communicator() = default;

  /// This rank's position in the group, the group's size, and the world ranks of its members.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }
  const CommStats& stats() const { return stats_; }

  /// Member i sends bytes[i]; all receive the pieces one after the other.
  void all_gather(CommCause cause, const void* send, void* receive, std::span<const int64_t> bytes);
  /// Sends send_bytes[i] to member i and receives receive_bytes[i] from it; pieces lie one after the other.
  void all_to_all(CommCause cause, const void* send, std::span<const int64_t> send_bytes, void* receive,
                  std::span<const int64_t> receive_bytes);
  /// Reduces `count` elements in place. The result has the same bits on every member.
  void all_reduce(CommCause cause, void* data, int64_t count, DType dtype, ReduceType type);
  /// `send` holds counts[0] elements for member 0, then counts[1] for member 1, ...; member i receives the reduction of
  /// its part.
  void reduce_scatter(CommCause cause, const void* send, void* receive, std::span<const int64_t> counts, DType dtype,
                      ReduceType type);
  void broadcast(CommCause cause, void* data, int64_t bytes, int root);

 protected:
  /// What the members compare before they exchange anything.
  struct Signature {
    std::string_view name;
    CommCause cause;
    uint64_t sequence = 0;
    int64_t count = 0;  // what must agree on all members: total bytes or elements
    int detail = 0;     // dtype and reduce type, or root
  };

  virtual void do_all_gather(const Signature& s, const void* send, void* receive, std::span<const int64_t> bytes) = 0;
  virtual void do_all_to_all(const Signature& s, const void* send, std::span<const int64_t> send_bytes, void* receive,
                             std::span<const int64_t> receive_bytes) = 0;
  virtual void do_all_reduce(const Signature& s, void* data, int64_t count, DType dtype, ReduceType type) = 0;
  virtual void do_reduce_scatter(const Signature& s, const void* send, void* receive, std::span<const int64_t> counts,
                                 DType dtype, ReduceType type) = 0;
  virtual void do_broadcast(const Signature& s, void* data, int64_t bytes, int root) = 0;

 private:
  template <class F>
  void traced(Signature signature, int64_t bytes_sent, F&& run);

  std::vector<int> members_;
  int rank_;
  TraceRing* trace_;
  CommStats stats_;
  uint64_t sequence_ = 0;
};

}  // namespace shard
