// How ops of graphs read their attributes, for their infer_meta and their kernels.
#pragma once

#include <string>

#include "shard/core/op_context.h"

namespace shard::meta {

/// How the rows that arrive at one row are reduced.
enum class Reduction { sum, mean, min, max };

/// Throws invalid_argument for an unknown name; `attribute` is the one that has it.
Reduction reduction_of(const char* op, const char* attribute, const std::string& name);

/// Whether a message is a product of two rows, not their sum. Throws invalid_argument for an unknown name.
bool is_product(const char* op, const std::string& message_op);

}  // namespace shard::meta
