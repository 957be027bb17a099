// The local transport: ranks are threads of one process and read each other's buffers directly.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/failed_calls.h"
#include "core/torn_calls.h"

namespace shard {

/// The meeting places of the threads of one local world. Thread safe.
class LocalHub {
 public:
  /// `torn` learns of the first call that failed on some of the `size` ranks alone.
  LocalHub(std::chrono::milliseconds timeout, int size, std::shared_ptr<TornCalls> torn)
      : timeout_(timeout), torn_(std::move(torn)), calls_done_(static_cast<size_t>(size)) {}
  ~LocalHub();

  /// The communicator of world rank members[rank] in the group `members`. Every member asks for its own.
  std::unique_ptr<Communicator> communicator(const std::vector<int>& members, int rank, CommQueue& queue);
  /// Makes every waiting and every later collective throw peer_failed with this text. The first call counts.
  void fail(const std::string& reason);
  /// `rank` failed in its distributed call number `call`. Where another rank has done that call the world fails: at once if that rank has
  /// told so, else when it starts its next collective.
  void call_failed(int rank, uint64_t call, const std::string& text);
  /// A rank that starts a collective, or ends its program, tells how many calls it has done.
  void tell_done(int world_rank, uint64_t calls);
  /// Why the world has failed; empty unless it has. Not while ranks run.
  const std::string& failure() const { return reason_; }

 private:
  friend class LocalCommunicator;
  friend class LocalOperation;
  struct Group;

  /// Where a world rank is: the collectives that it has joined and that are not done.
  std::string whereabouts(int world_rank);
  void fail_if_torn();

  std::chrono::milliseconds timeout_;
  std::shared_ptr<TornCalls> torn_;
  // Who fails first sets the flag and then reads the counters, who starts a collective does it the other way round: one of them sees both.
  std::vector<std::atomic<uint64_t>> calls_done_;
  std::atomic<bool> call_failed_{false};
  FailedCalls failed_calls_;
  std::mutex mutex_;  // taken before that of a group
  bool failed_ = false;
  std::string reason_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
};

}  // namespace shard
