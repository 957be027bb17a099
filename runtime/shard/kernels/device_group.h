// Devices that exchange data by themselves, without the host, as those of NCCL do.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "shard/core/dtype.h"
#include "shard/core/reduce_type.h"

namespace shard {

/// One member of a group of devices, each with one member. Members call the same functions in the same order, from one thread
/// each. The functions issue work and return before it is done. They throw Error(device) or, for a failure of another member,
/// Error(peer_failed).
class DeviceGroup {
 public:
  /// Called again and again while the host waits for the other members; throws to give up.
  using Poll = std::function<void()>;
  /// Bytes that go to, or come from, member `peer`.
  struct Part {
    int peer;
    void* data;
    size_t bytes;
  };

  virtual ~DeviceGroup() = default;

  /// Makes the group when all members have called it; before anything else, once. Where it throws, the group can only be aborted.
  virtual void join(const Poll& poll) = 0;

  /// Begins a collective, which is described by `what`. The group's work begins after `mark` (DeviceWork::make_mark), and not after
  /// other work of the device.
  virtual void begin(std::string what, void* mark) = 0;
  /// What the group is given from here on begins after `mark` as well.
  virtual void continue_after(void* mark) = 0;
  /// Work that this thread issues to the device from here on begins after what the group was given.
  virtual void precede() = 0;
  /// Ends the collective, and precedes what follows.
  virtual void end() = 0;

  /// Member i sends `bytes` to the i-th part of all members' `receive`, in which `send` may be.
  virtual void all_gather(const void* send, void* receive, size_t bytes, const Poll& poll) = 0;
  virtual void broadcast(void* data, size_t bytes, int root, const Poll& poll) = 0;
  /// All parts at once. Of each pair of members, the k-th part that one sends is the k-th that the other receives, and has as many
  /// bytes. No part is empty, or of this member itself. Members without parts need not call it.
  virtual void transfer(std::span<const Part> sends, std::span<const Part> receives, const Poll& poll) = 0;
  /// Whether the two functions below take such elements. Their sums of floats have the same bits on all members, but may be added
  /// in any order.
  virtual bool reduces(DType dtype, ReduceType type) const = 0;
  virtual void all_reduce(void* data, int64_t count, DType dtype, ReduceType type, const Poll& poll) = 0;
  /// `send` holds `count` elements for each member.
  virtual void reduce_scatter(const void* send, void* receive, int64_t count, DType dtype, ReduceType type,
                              const Poll& poll) = 0;

  /// A collective that the device has not ended.
  struct Unfinished {
    std::string what;
    std::chrono::nanoseconds running;  // since a call of unfinished() saw that the device had begun it
  };
  /// The oldest such collective, or nothing. Throws where the devices can no longer exchange data, in the same ways as the functions above.
  virtual std::optional<Unfinished> unfinished() = 0;

  /// Ends what the group is doing, whatever the other members do; afterwards the group can only be destroyed. Does not throw.
  virtual void abort() = 0;
  /// Waits until the device works for the group no more. All groups that share the device have been aborted. Does not throw.
  virtual void wait_for_end() = 0;
};

}  // namespace shard
