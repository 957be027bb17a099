// Distributed calls that failed on ranks of a world, and on which: whether the ranks still agree on what they hold.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace shard {

/// A call that throws on every rank alike, as for a bad index that all of them have, is an error of the program, which may catch it. One that
/// a rank has done and another has not leaves tensors torn: the world has failed.
class FailedCalls {
 public:
  struct Torn {
    uint64_t call;
    std::string text;
  };

  bool empty() const { return calls_.empty(); }
  /// `rank` of `world_size` failed in its call number `call`, with this text. A call that has failed on all of them is forgotten.
  void add(uint64_t call, int rank, int world_size, std::string text);
  /// Whether `rank`, which has made `done` calls, has done one of them that failed on another rank. The text of the result is empty if not.
  Torn torn_for(int rank, uint64_t done) const;

 private:
  std::map<uint64_t, std::map<int, std::string>> calls_;  // per call the ranks
};

}  // namespace shard
