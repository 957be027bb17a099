#include "shard/core/thread_state.h"

namespace shard {

constinit thread_local ThreadState this_thread;

}  // namespace shard
