#include "shard/comm/rank_devices.h"

#include <fmt/format.h>

#include <thread>

#include "shard/core/error.h"
#include "shard/kernels/device_work.h"

namespace shard {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) { return e.what(); } catch (...) {
    return "an exception that is not a std::exception";
  }
}

RankDevices::~RankDevices() {
  if (device_watch() == this) device_watch() = nullptr;
}

void RankDevices::watch() {
  is_watching_ = true;
  device_watch() = this;
}

DeviceGroup& RankDevices::group(const std::vector<int>& key, Device device, const std::string& id, int size, int member,
                                const DeviceGroup::Poll& poll) {
  watch();
  const auto found = groups_.find(key);
  if (found != groups_.end()) return *found->second;
  const auto [at, is_first] = first_groups_.try_emplace({device.backend, device.index}, nullptr);
  DeviceGroup& made =
      *groups_.emplace(key, device_work(device)->make_group(device.index, id, size, member, at->second)).first->second;
  if (is_first) at->second = &made;
  made.join(poll);
  return made;
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

/// As check(); returns whether the groups have ended what they were given.
bool RankDevices::look() {
  try {
    bool ended = false;
    std::exception_ptr error;
    try {
      ended = have_ended();
    } catch (...) { error = std::current_exception(); }
    // After the groups: what a failed rank left unfinished looks like work that has ended, or like a failure of the device.
    peers_.check();
    if (error) std::rethrow_exception(error);
    return ended;
  } catch (...) {
    give_up(text_of(std::current_exception()));
    throw;
  }
}

void RankDevices::poll() {
  if (!peers_.poll) return;
  try {
    peers_.poll();
  } catch (...) {
    give_up(text_of(std::current_exception()));
    throw;
  }
}

void RankDevices::finish() {
  if (!is_watching_) return;
  const WaitScope scope;
  for (int turn = 0; !look(); ++turn) {
    poll();
    pause_wait(turn);
  }
}

void RankDevices::give_up(const std::string& reason) noexcept {
  if (std::exchange(has_given_up_, true)) return;
  try {
    peers_.fail(fmt::format("rank {} failed: {}", rank_, reason));
  } catch (...) {  // out of memory: the others find out by their timeouts
  }
  // All at once: to abort a group is to wait for its device, which may be busy with a collective of another group.
  std::vector<std::thread> threads;
  for (const auto& entry : groups_) {
    DeviceGroup* const group = entry.second.get();
    try {
      threads.emplace_back([group] { group->abort(); });
    } catch (...) { group->abort(); }  // no thread can be made
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& entry : groups_) entry.second->wait_for_end();
}

}  // namespace shard
