// How many bytes the buffers of a program take while it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace shard::program {

/// Bytes of a value on the rank that has the largest piece of it.
int64_t bytes_of(const Type& type);

/// While each op runs: the bytes of buffers that the program has made and still needs, on a rank with the largest pieces. Those of inputs and
/// parameters are not counted, those of outputs to the end.
std::vector<int64_t> live_bytes(const Program& program);

}  // namespace shard::program
