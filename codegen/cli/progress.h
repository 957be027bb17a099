// A line on a terminal that shows the progress of a run.
#pragma once

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>

namespace shardgen {

/// Shows nothing during the first 0.3 s, and never when the stream is not a terminal. Removes its
/// line at the end.
class Progress {
 public:
  explicit Progress(std::string what, FILE* stream = stderr,
                    std::chrono::milliseconds delay = std::chrono::milliseconds(300));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// May be called from any thread.
  void show(size_t done, size_t total);

 private:
  std::string what_;
  FILE* stream_;
  std::chrono::milliseconds delay_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
};

}  // namespace shardgen
