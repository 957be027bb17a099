// The local transport: ranks are threads of one process and read each other's buffers directly.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"

namespace shard {

/// The meeting places of the threads of one local world. Thread safe.
class LocalHub {
 public:
  explicit LocalHub(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  ~LocalHub();

  /// The communicator of world rank members[rank] in the group `members`. Every member asks for its own.
  std::unique_ptr<Communicator> communicator(const std::vector<int>& members, int rank, TraceRing* trace);
  /// Makes every waiting and every later collective throw peer_failed with this text. The first call counts.
  void fail(const std::string& reason);

 private:
  friend class LocalCommunicator;
  struct Group;

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  bool failed_ = false;
  std::string reason_;
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;
};

}  // namespace shard
