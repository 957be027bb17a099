// Live bytes: how much memory the buffers of a program take while it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/program/ir/program.h"

namespace shard::program {

/// The bytes of a value on the rank that has its largest local shard.
int64_t bytes_of(const Type& type);

/// True if any value of the program is distributed.
bool is_on_mesh(const Program& program);

/// For each op, the live bytes while it runs: those of buffers that the program has made and still
/// needs, on a rank with the largest local shards. Buffers of inputs and parameters are not
/// counted; buffers of outputs are counted to the end. For a program on meshes plain values are not
/// counted, because they may differ from rank to rank.
std::vector<int64_t> live_bytes(const Program& program);

}  // namespace shard::program
