// The report of a dry run for one rank: its calls, what it sends, and the memory that its tensors
// would take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shard/core/export.h"
#include "shard/dist/world.h"

namespace shard {

/// Equal calls of an op, counted together. Calls are equal if this rank's local shards of the
/// outputs are.
struct DryCall {
  std::string op;
  std::string outputs;  // "out f32[2, 8] of f32[4, 8] [dp, -]"
  uint64_t calls = 0;
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;  // sent by this rank
};

/// The collectives of one kind in the groups of one mesh axis, or over whole meshes.
struct DryTraffic {
  std::string mesh;
  std::string axis;  // empty for collectives over the whole mesh
  std::string_view kind;
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;   // sent by this rank
  double predicted_ns = 0;  // as the planner's cost model predicts if the collectives run one after the other
};

struct SHARD_API DryReport {
  int rank = 0;
  int world_size = 0;
  std::vector<DryCall> calls;       // in the order of first calls
  std::vector<DryTraffic> traffic;  // by mesh, axis and kind
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;
  double predicted_ns = 0;
  int64_t live_bytes = 0;  // of tensors that are alive now
  int64_t peak_bytes = 0;  // the highest value so far, including temporaries of reshards

  /// The report as tables for people.
  std::string text() const;
  /// The report as one JSON object whose keys are the members of this struct.
  std::string json() const;
};

/// The report of everything that `rank` of a dry world has done so far. Throws invalid_argument for
/// a rank of any other world.
SHARD_API DryReport dry_report(Rank& rank);

namespace call {

/// The calls of one rank of a dry world. Equal calls are counted together.
class SHARD_API DryCalls {
 public:
  void add(std::string_view op, const std::string& outputs, const CommStats& now, const CommStats& before);
  const std::vector<DryCall>& all() const { return calls_; }

 private:
  std::vector<DryCall> calls_;
  std::unordered_map<std::string, size_t> by_text_;
};

}  // namespace call
}  // namespace shard
