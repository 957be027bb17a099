// The local transport: ranks are threads of one process and read each other's buffers directly.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shard/comm/communicator.h"
#include "shard/comm/failed_calls.h"
#include "shard/comm/rank_devices.h"
#include "shard/core/partial_failures.h"

namespace shard {

/// The shared state of the threads of one local world. Thread safe.
class LocalHub {
 public:
  /// `failures` receives the first call that failed on only some of the `size` ranks.
  LocalHub(std::chrono::milliseconds timeout, int size, std::shared_ptr<PartialFailures> failures);
  ~LocalHub();

  /// The communicator of world rank members[rank] in the group `members`. Every member creates its
  /// own.
  std::unique_ptr<Communicator> communicator(const std::vector<int>& members, int rank, CommQueue& queue);
  /// Makes every waiting and every later collective throw peer_failed with this text. The first call counts.
  void fail(const std::string& reason);
  /// The same because `rank` failed for this reason; called by its thread. Also ends what the rank's devices do with those of others.
  void rank_failed(int rank, const std::string& reason) noexcept;
  /// Returns when the devices of `rank` have ended what they do with those of others. Throws timeout, peer_failed or device.
  void finish_devices(int rank) { devices_[static_cast<size_t>(rank)]->finish(); }
  /// `rank` failed in its distributed call number `call`. If another rank has completed that call
  /// the world fails: at once if that rank has reported it, else when it starts its next
  /// collective.
  void call_failed(int rank, uint64_t call, const std::string& text);
  /// Called by a rank that starts a collective, or ends its program, with the number of calls that
  /// it has made.
  void report_calls_done(int world_rank, uint64_t calls);
  /// Why the world has failed; empty unless it has. Must not be called while ranks run.
  const std::string& failure() const { return reason_; }

 private:
  friend class LocalCommunicator;
  friend class LocalOperation;
  struct Group;

  /// The collectives that a world rank has joined and that are not complete, as text.
  std::string rank_status(int world_rank);
  void fail_on_partial_failure();
  /// Throws peer_failed once the world has failed.
  void check_alive();

  std::chrono::milliseconds timeout_;
  std::shared_ptr<PartialFailures> partial_failures_;
  // A rank that fails sets the flag and then reads the counters; a rank that starts a collective
  // does it in the opposite order. So one of them sees both.
  std::vector<std::atomic<uint64_t>> calls_done_;
  std::atomic<bool> call_failed_{false};
  FailedCalls failed_calls_;
  std::mutex mutex_;  // locked before that of a group
  std::atomic<bool> failed_{false};
  std::atomic<bool> has_device_groups_{false};
  std::string reason_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
  std::vector<std::unique_ptr<RankDevices>> devices_;  // of each rank
};

}  // namespace shard
