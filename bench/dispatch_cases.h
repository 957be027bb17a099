// The calls of the benchmarks and of the counting loop, so that a name means the same in both.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shard/dist/dist_tensor.h"
#include "shard/dist/world.h"
#include "shard/shard.h"

namespace shard::bench {

/// 0, 1, 2, ... as float32.
inline Tensor counting(const Dims& dims) {
  std::vector<float> values(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return Tensor::from_data(values, dims);
}

/// Two plain vectors of 4 elements.
struct DensePair {
  Tensor x = counting({4});
  Tensor y = counting({4});
};

/// Two distributed vectors of 4 elements per rank, sharded over all ranks; must be created inside
/// World::run.
struct DistPair {
  explicit DistPair(Rank& rank) {
    // A call that communicates is not the one that is to be measured, so it throws.
    rank.policies.comm = CommPolicy::forbid;
    const int ranks = rank.world().size();
    const DistSpec* spec = DistSpec::parse(ProcessMesh::make({ranks}), "a");
    x = from_local(counting({4}), spec, {4 * ranks}, DType::float32);
    y = from_local(counting({4}), spec, {4 * ranks}, DType::float32);
    halves = {2 * ranks, 2};
  }
  Tensor x;
  Tensor y;
  IntArray halves;  // the shape of x as rows of 2, which needs no communication
};

}  // namespace shard::bench
