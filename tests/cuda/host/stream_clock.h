// Which work is ordered before which: for each stream, how far its work has certainly come. Events and waits of the host carry it from
// one stream to another.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace cuda_host {

/// Streams have numbers from 1, as many as an Access can name. 0 stands for the host.
constexpr int kMostStreams = 64;

/// Moments are those of Access::interval, which all work of the model shares.
class StreamClock {
 public:
  uint32_t of(int stream) const { return moments_[static_cast<size_t>(stream)]; }
  void advance(int stream, uint32_t moment) { moments_[static_cast<size_t>(stream)] = moment; }
  /// What `other` is behind, this is behind too.
  void join(const StreamClock& other) {
    for (size_t i = 0; i < moments_.size(); ++i) moments_[i] = std::max(moments_[i], other.moments_[i]);
  }

 private:
  std::array<uint32_t, kMostStreams> moments_ = {};
};

/// While one lives, accesses are those of a stream, which are behind `before`.
class StreamScope {
 public:
  StreamScope(int stream, const StreamClock& before);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  /// The last moment so far.
  static uint32_t now();

 private:
  int outer_stream_;
  const StreamClock* outer_before_;
};

/// Of a stream that was created.
int stream_number(CUstream_st* stream);
StreamClock& stream_clock(CUstream_st* stream);

}  // namespace cuda_host
