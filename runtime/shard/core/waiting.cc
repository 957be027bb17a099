#include "shard/core/waiting.h"

namespace shard {
namespace {

WaitHooks hooks_of_process;

}  // namespace

void set_wait_hooks(const WaitHooks& hooks) { hooks_of_process = hooks; }
const WaitHooks& wait_hooks() { return hooks_of_process; }

}  // namespace shard
