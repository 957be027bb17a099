// How long ops take, roughly: to choose between ways to run a program.
#pragma once

#include "program/program.h"

namespace shard::program {

/// The multiplications of a product of matrices on the rank with the largest pieces; 0 for other ops.
double products_of(const Program& program, const Op& op);
/// About how many nanoseconds an op takes on one core, where it sends nothing.
double cost_of(const Program& program, const Op& op);

}  // namespace shard::program
