#include "shard/core/thread_state.h"

#include "shard/core/own_streams.h"

namespace shard {

constinit thread_local ThreadState this_thread;
constinit thread_local bool has_own_streams = false;

}  // namespace shard
