#include "shard/core/log.h"

#include <memory>
#include <mutex>
#include <utility>

namespace shard {
namespace {

using Receive = std::function<void(std::string_view)>;

struct Sink {
  std::mutex mutex;
  std::shared_ptr<const Receive> receive;
};
Sink& sink() {
  static Sink instance;
  return instance;
}

}  // namespace

void set_log_sink(std::function<void(std::string_view)> receive) {
  std::shared_ptr<const Receive> made = receive ? std::make_shared<const Receive>(std::move(receive)) : nullptr;
  const std::lock_guard lock(sink().mutex);
  sink().receive.swap(made);
}

void log_message(std::string_view message) {
  std::shared_ptr<const Receive> receive;
  {
    const std::lock_guard lock(sink().mutex);
    receive = sink().receive;
  }
  // Without the mutex: the function may make calls that log messages, or wait for threads that do.
  if (receive) (*receive)(message);
}

}  // namespace shard
