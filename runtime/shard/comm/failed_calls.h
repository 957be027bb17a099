// Records which distributed calls failed on which ranks of a world, and so whether the ranks still
// agree about their tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace shard {

/// A call that throws on every rank alike, as for a bad index that all of them have, is an error of
/// the program, which may catch it. A call that one rank has completed and another has not makes
/// tensors inconsistent: the world has failed.
class FailedCalls {
 public:
  struct PartialFailure {
    uint64_t call;
    std::string text;
  };

  bool empty() const { return calls_.empty(); }
  /// `rank` of `world_size` failed in its call number `call`, with this text. A call that has
  /// failed on all ranks is forgotten.
  void add(uint64_t call, int rank, int world_size, std::string text);
  /// Whether `rank`, which has made `done` calls, has completed one of them that failed on another
  /// rank. The text of the result is empty if not.
  PartialFailure find_partial_failure(int rank, uint64_t done) const;

 private:
  std::map<uint64_t, std::map<int, std::string>> calls_;  // for each call the ranks on which it failed
};

}  // namespace shard
