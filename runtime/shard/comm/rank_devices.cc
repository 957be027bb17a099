#include "shard/comm/rank_devices.h"

#include <fmt/format.h>

#include <system_error>
#include <thread>

#include "shard/core/error.h"
#include "shard/kernels/device_work.h"

namespace shard {

RankDevices::~RankDevices() {
  if (device_watch() == this) device_watch() = nullptr;
}

DeviceGroup& RankDevices::group(const std::vector<int>& key, Device device, const std::string& id, int size, int member,
                                const DeviceGroup::Poll& poll) {
  auto found = groups_.find(key);
  if (found == groups_.end())
    found = groups_.emplace(key, device_work(device)->join_group(device.index, id, size, member, poll)).first;
  device_watch() = this;
  return *found->second;
}

/// Throws timeout when a device runs a collective for too long.
bool RankDevices::have_ended() {
  bool all = true;
  for (const auto& [key, group] : groups_) {
    const auto unfinished = group->unfinished();
    if (!unfinished) continue;
    all = false;
    if (timeout_.count() == 0 || unfinished->running < timeout_) continue;
    fail(ErrorCode::timeout,
         "the device of rank {} did not end {} within {} ms: that of another rank does not take part, or is slow",
         rank_, unfinished->what, timeout_.count());
  }
  return all;
}

void RankDevices::check() {
  if (is_checking_) return;  // what is called meanwhile, such as a hook of waits, waits itself
  if (!given_up_.empty()) fail(ErrorCode::peer_failed, "{}", given_up_);
  is_checking_ = true;
  try {
    have_ended();
    peers_.check();  // after it: what a failed rank left unfinished looks like work that has ended
  } catch (const std::exception& error) {
    is_checking_ = false;
    give_up(error.what());
    throw;
  }
  is_checking_ = false;
}

void RankDevices::finish() {
  if (groups_.empty()) return;
  const WaitScope scope;
  for (int turn = 0;; ++turn) {
    check();
    if (have_ended()) break;
    pause_wait(turn);
  }
  check();
}

void RankDevices::give_up(const std::string& reason) noexcept {
  if (!given_up_.empty()) return;
  given_up_ = fmt::format("rank {} failed: {}", rank_, reason);
  peers_.fail(given_up_);
  // All at once: to abort a group is to wait for its device, which may be busy with a collective of another group.
  std::vector<std::thread> threads;
  for (const auto& [key, group] : groups_) {
    try {
      threads.emplace_back([&group] { group->abort(); });
    } catch (const std::system_error&) { group->abort(); }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shard
