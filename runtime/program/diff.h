// How two programs differ.
#pragma once

#include <string>

#include "program/program.h"

namespace shard::program {

/// A line for each op, input, parameter, output and effect that only `a` has (-) or only `b` has (+); empty where the programs are equal but for
/// the numbers of their values. Values that both have are numbered in the order of `a`; those of `b` alone are called %b1, %b2, ...
std::string diff(const Program& a, const Program& b);

}  // namespace shard::program
