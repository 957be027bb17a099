// What the ranks of a world tell each other so that all know what only some can see: row counts, hashes, values of scalars.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/dense_tensor.h"
#include "dist/spec.h"
#include "dist/world.h"

namespace shard::call {

/// Each rank's `words`, one rank of the world after the other. Collective over the world: ranks outside a mesh take part, so
/// that all of them know.
std::vector<uint64_t> gather_words(Rank& rank, std::span<const uint64_t> words, CommCause cause);
/// What all ranks together send when each of the world tells the others so many bytes.
int64_t gather_bytes(int world_size, size_t bytes);

/// How many rows the processes of a mesh have computed of a tensor whose dim 0 is sharded by `spec`, whose pieces follow each
/// other in the order of the layout, and which is the same in every replica.
class RowPieces {
 public:
  /// `rows`: by rank of the world. Throws internal where replicas differ.
  RowPieces(const DistSpec* spec, std::vector<int64_t> rows, CommCause cause);
  /// In the whole tensor.
  int64_t total() const { return total_; }
  /// The rows that the layout gives this rank, out of those that it and others have computed. Collective over the mesh, unless
  /// all are in place.
  DenseTensor balance(Rank& rank, const DenseTensor& computed) const;

 private:
  /// Where a coordinate comes among the pieces of dim 0.
  size_t place(const Coordinate& at) const;

  const DistSpec* spec_;
  CommCause cause_;
  std::vector<Range> held_;    // by place
  std::vector<Range> wanted_;  // by place
  int64_t total_ = 0;
};

}  // namespace shard::call
