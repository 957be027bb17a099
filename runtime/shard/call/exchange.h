// Data that the ranks of a world exchange so that all of them know what only some can see: row
// counts, hashes, values of scalars.
#pragma once

#include <span>
#include <vector>

#include "shard/comm/communicator.h"
#include "shard/core/dense_tensor.h"
#include "shard/dist/spec.h"
#include "shard/dist/world.h"

namespace shard::call {

/// Gathers each rank's `words`, ordered by rank of the world. Collective over the world: ranks
/// outside a mesh take part, so that they know the result too.
std::vector<uint64_t> gather_words(Rank& rank, std::span<const uint64_t> words, CommCause cause);
/// The bytes that all ranks together send when each rank of the world sends `bytes` bytes to all
/// others.
int64_t gather_bytes(int world_size, size_t bytes);

/// The row counts that the processes of a mesh have computed of a tensor whose dim 0 is sharded by
/// `spec`. The local shards follow each other in the order of the layout and are equal on all
/// replicas.
class RowShards {
 public:
  /// `rows` is indexed by rank of the world. Throws internal if replicas differ.
  RowShards(const DistSpec* spec, std::vector<int64_t> rows, CommCause cause);
  /// The number of rows of the global tensor.
  int64_t total() const { return total_; }
  /// The rows of which the layout makes this rank the owner, collected from the rows that it and
  /// other ranks have computed. Collective over the mesh, unless all rows are already in place.
  DenseTensor balance(Rank& rank, const DenseTensor& computed) const;

 private:
  /// The position of a coordinate among the shards of dim 0.
  size_t place(const Coordinate& at) const;

  const DistSpec* spec_;
  CommCause cause_;
  std::vector<Range> held_;    // by position
  std::vector<Range> wanted_;  // by position
  int64_t total_ = 0;
};

}  // namespace shard::call
