// Overwrites one line of a terminal again and again.
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

namespace shardgen {

Progress::Progress(std::string what, FILE* stream, std::chrono::milliseconds delay)
    : what_(std::move(what)), stream_(stream), delay_(delay), terminal_(isatty(fileno(stream)) != 0) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stream_);
}

void Progress::show(size_t done, size_t total) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  if (std::chrono::steady_clock::now() - start_ < delay_) return;
  std::fputs(fmt::format("\r\x1b[Kshardgen: {} {} of {}", what_, done, total).c_str(), stream_);
  std::fflush(stream_);
  shown_ = true;
}

}  // namespace shardgen
