// Programs as drawings.
#pragma once

#include <string>

#include "program/program.h"

namespace shard::program {

/// A graph in the language of Graphviz ("dot -Tsvg"): ops are boxes, inputs ellipses, parameters cylinders, outputs and gradients that the program
/// leaves octagons. Edges say what is read. Values that share a buffer have one colour, what is written is bold, and what goes into a move is
/// red, with the bytes that all ranks together send. Throws layout for a move between layouts that do not fit.
std::string to_dot(const Program& program);

/// The same graph as an SVG drawing, which browsers open. Graphviz's program `dot` draws it: throws invalid_argument with what to install where that is
/// not in PATH.
std::string to_svg(const Program& program);

}  // namespace shard::program
