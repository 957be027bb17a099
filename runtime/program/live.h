// How many bytes the buffers of a program take while it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace shard::program {

/// Bytes of a value on the rank that has the largest piece of it.
int64_t bytes_of(const Type& type);

/// Whether a value of the program is distributed.
bool is_on_mesh(const Program& program);

/// While each op runs: the bytes of buffers that the program has made and still needs, on a rank with the largest pieces. Those of inputs and
/// parameters are not counted, those of outputs to the end. Of a program on meshes plain values are not counted: they may differ from rank to rank.
std::vector<int64_t> live_bytes(const Program& program);

}  // namespace shard::program
