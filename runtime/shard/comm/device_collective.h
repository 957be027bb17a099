// Collectives of buffers on devices that exchange data by themselves.
#pragma once

#include "shard/comm/buffers.h"
#include "shard/comm/collective.h"
#include "shard/comm/rank_devices.h"
#include "shard/kernels/device_group.h"

namespace shard {

/// Issues what member `me` of `size` does in a collective, which all members have agreed on. It begins after `start`, the place in
/// the work of the device where the buffers were ready; what this thread issues to the device from here on begins after it. Where it
/// throws, the rank has given up its `devices`, of which `group` is one.
void run_between_devices(RankDevices& devices, DeviceGroup& group, const Collective& collective, int me, int size,
                         const DeviceMark& start, const DeviceGroup::Poll& poll);

}  // namespace shard
