// Whether a thread has streams of devices for itself.
#pragma once

namespace shard {

/// True in threads of ranks that share a process: each issues its work on a device to a stream of its own, so that ranks on one device
/// run at the same time. All other threads share one stream for each device, so that tensors may pass between them as they do on the host.
extern constinit thread_local bool has_own_streams;

}  // namespace shard
