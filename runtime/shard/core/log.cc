#include "shard/core/log.h"

#include <mutex>

namespace shard {
namespace {

struct Sink {
  std::mutex mutex;
  std::function<void(std::string_view)> receive;
};
Sink& sink() {
  static Sink instance;
  return instance;
}

}  // namespace

void set_log_sink(std::function<void(std::string_view)> receive) {
  const std::lock_guard lock(sink().mutex);
  sink().receive = std::move(receive);
}

void log_message(std::string_view message) {
  const std::lock_guard lock(sink().mutex);
  if (sink().receive) sink().receive(message);
}

}  // namespace shard
