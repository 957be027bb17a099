#include "shard/core/waiting.h"

#include <chrono>
#include <thread>

namespace shard {
namespace {

WaitHooks hooks_of_process;

}  // namespace

void set_wait_hooks(const WaitHooks& hooks) { hooks_of_process = hooks; }
const WaitHooks& wait_hooks() { return hooks_of_process; }

DeviceWatch*& device_watch() {
  thread_local DeviceWatch* mine = nullptr;
  return mine;
}

void pause_wait(int turn) {
  constexpr int kYields = 1000;
  if (turn < kYields) std::this_thread::yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(100));
}

}  // namespace shard
