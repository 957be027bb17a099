// Collectives of buffers on devices that exchange data by themselves.
#pragma once

#include "shard/comm/buffers.h"
#include "shard/comm/collective.h"
#include "shard/comm/rank_devices.h"
#include "shard/kernels/device_group.h"

namespace shard {

/// Whether the group alone carries out all of a collective: then other work of the device may run beside it.
bool is_done_by_group(const DeviceGroup& group, const Collective& collective);

/// Issues what member `me` of `size` does in a collective, which all members have agreed on. It begins after `start`, the place in
/// the work of the device where the buffers were ready. What this thread issues to the device after DeviceGroup::precede() of the number
/// that is returned begins after it, and, unless is_done_by_group(), what it issues from here on. Where it throws, the rank has given
/// up its `devices`, of which `group` is one.
uint64_t issue_between_devices(RankDevices& devices, DeviceGroup& group, const Collective& collective, int me, int size,
                               const DeviceMark& start, const DeviceGroup::Poll& poll);

}  // namespace shard
