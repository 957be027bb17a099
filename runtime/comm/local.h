// The local transport: ranks are threads of one process and read each other's buffers directly.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shard {

/// The meeting places of the threads of one local world. Thread safe.
class LocalHub {
 public:
  explicit LocalHub(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  ~LocalHub();

  /// The communicator of world rank members[rank] in the group `members`. Every member asks for its own.
  std::unique_ptr<Communicator> communicator(const std::vector<int>& members, int rank, CommQueue& queue);
  /// Makes every waiting and every later collective throw peer_failed with this text. The first call counts.
  void fail(const std::string& reason);

 private:
  friend class LocalCommunicator;
  friend class LocalOperation;
  struct Group;

  /// Where a world rank is: the collectives that it has joined and that are not done.
  std::string whereabouts(int world_rank);

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // taken before that of a group
  bool failed_ = false;
  std::string reason_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
};

}  // namespace shard
