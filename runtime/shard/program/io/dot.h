// Draws programs as graphs.
#pragma once

#include <string>

#include "shard/core/export.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// A graph in the language of Graphviz ("dot -Tsvg"). Ops are boxes, inputs ellipses, parameters
/// cylinders; outputs and the gradients that the program leaves are octagons. An edge shows what an
/// op reads. Values that share a buffer have one colour. Writes are bold. Edges into reshards are
/// red and have the bytes that all ranks together send. Throws layout for a reshard between layouts
/// that do not fit.
SHARD_API std::string to_dot(const Program& program);

/// The same graph as an SVG drawing, which browsers open. It is drawn by Graphviz's program `dot`.
/// If that is not in PATH, throws invalid_argument with what to install.
SHARD_API std::string to_svg(const Program& program);

}  // namespace shard::program
