// A table of the calls on a mesh, for programs that show what each call plans.
#pragma once

#include <array>
#include <string>

#include <shard/shard.h>

/// The cells of a row: op, layouts in, communication, layouts out, aliases.
using CallRow = std::array<std::string, 5>;

/// Prints a row within 120 columns. In a cell, each of several entries ("x: ...; y: ...") has lines
/// of its own.
void print_row(const CallRow& cells);
/// Prints the names of the columns, and a line.
void print_header();
/// Prints what one call planned.
void print_call(const shard::CallRecord& record);
