// Rough estimates of how long ops take, for choosing between ways to run a program.
#pragma once

#include "shard/program/ir/program.h"

namespace shard::program {

/// The multiplications of a matrix product on the rank with the largest local shards; 0 for other
/// ops.
double products_of(const Program& program, const Op& op);
/// The approximate time of an op on one core in nanoseconds, without communication.
double cost_of(const Program& program, const Op& op);

}  // namespace shard::program
