// The groups of devices of one rank, and the end of what they do when a rank fails.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shard/core/device.h"
#include "shard/core/waiting.h"
#include "shard/kernels/device_group.h"

namespace shard {

/// The text of an exception of any type.
std::string text_of(const std::exception_ptr& error);

/// The groups that a rank's devices form with those of other ranks. All members have issued a collective before the host goes on, but a
/// device may still wait forever for that of a rank which fails or hangs. So the rank's thread looks at the groups and at the other ranks
/// whenever it waits for a device. Used by that thread alone while the rank runs.
class RankDevices final : public DeviceWatch {
 public:
  /// The other ranks.
  struct Peers {
    std::function<void()> check;  // throws peer_failed when one has failed
    /// Makes the world fail. Returns when all others know, or have had a moment to.
    std::function<void(const std::string& reason)> fail;
    std::function<void()> poll = {};  // optional, as DeviceWatch::poll
  };

  /// A collective that a device runs for longer than `timeout` (0: never) is given up.
  RankDevices(int rank, std::chrono::milliseconds timeout, Peers peers)
      : rank_(rank), timeout_(timeout), peers_(std::move(peers)) {}
  ~RankDevices() override;
  RankDevices(const RankDevices&) = delete;
  RankDevices& operator=(const RankDevices&) = delete;

  /// Waits of this thread look at the groups and at the other ranks from here on.
  void watch();
  /// Member `member` of the `size` members of a group. The first call with this key makes the group, when all members call it with the
  /// same `id`.
  DeviceGroup& group(const std::vector<int>& key, Device device, const std::string& id, int size, int member,
                     const DeviceGroup::Poll& poll);
  /// Throws timeout, peer_failed or device, and peer_failed from then on.
  void check() override { look(); }
  void poll() override;
  /// Returns when the devices have ended what the groups were given. Throws as check() does.
  void finish();
  /// Makes the world fail because of this rank, unless it has failed, and ends what the groups are doing: in this order, because other
  /// ranks may then read what a device left unfinished.
  void give_up(const std::string& reason) noexcept;
  bool has_groups() const { return !groups_.empty(); }

 private:
  bool have_ended();
  bool look();

  const int rank_;
  const std::chrono::milliseconds timeout_;
  const Peers peers_;
  std::map<std::vector<int>, std::unique_ptr<DeviceGroup>> groups_;
  std::map<std::pair<int, int>, const DeviceGroup*> first_groups_;  // by backend and index of their devices
  bool is_watching_ = false;
  bool has_given_up_ = false;
};

}  // namespace shard
