// Programs as drawings.
#pragma once

#include <string>

#include "program/program.h"

namespace shard::program {

/// A graph in the language of Graphviz ("dot -Tsvg"): ops are boxes, inputs ellipses, parameters cylinders, outputs and gradients that the program
/// leaves octagons. Edges say what is read. Values that share a buffer have one colour, what is written is bold, and what goes into a move is
/// red, with the bytes that all ranks together send. Throws layout for a move between layouts that do not fit.
std::string to_dot(const Program& program);

}  // namespace shard::program
