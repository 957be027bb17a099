// What a program does on one rank of a dry world: its calls, what it sends, and the memory that its tensors would take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dist/world.h"

namespace shard {

/// Equal calls of an op: those with the same pieces of outputs.
struct DryCall {
  std::string op;
  std::string outputs;  // "out f32[2, 8] of f32[4, 8] [dp, -]"
  uint64_t calls = 0;
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;  // by this rank
};

/// The collectives of one kind in the groups of one mesh axis, or of whole meshes.
struct DryTraffic {
  std::string mesh;
  std::string axis;  // empty: the whole mesh
  std::string_view kind;
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;   // by this rank
  double predicted_ns = 0;  // by the planner's model, one collective after the other
};

struct DryReport {
  int rank = 0;
  int world_size = 0;
  std::vector<DryCall> calls;       // in the order of first calls
  std::vector<DryTraffic> traffic;  // by mesh, axis and kind
  uint64_t collectives = 0;
  int64_t bytes_sent = 0;
  double predicted_ns = 0;
  int64_t live_bytes = 0;  // of tensors that are alive now
  int64_t peak_bytes = 0;  // the most at any time, temporaries of layout changes included

  /// Tables for people.
  std::string text() const;
  /// One object with the members of this struct, by their names.
  std::string json() const;
};

/// What `rank` of a dry world has done so far. Throws invalid_argument for a rank of any other world.
DryReport dry_report(Rank& rank);

namespace call {

/// The calls of a rank of a dry world, equal ones counted together.
class DryCalls {
 public:
  void add(std::string_view op, const std::string& outputs, const CommStats& now, const CommStats& before);
  const std::vector<DryCall>& all() const { return calls_; }

 private:
  std::vector<DryCall> calls_;
  std::unordered_map<std::string, size_t> by_text_;
};

}  // namespace call
}  // namespace shard
