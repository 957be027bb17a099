// Texts for errors of kernels about a value of an argument: its position in the whole tensor.
#pragma once

#include <string>

#include "shard/core/op_context.h"

namespace shard::cpu {

/// "3" or "[3, 1]": the global index of element `i` of `local`, the local shard of flat input `input`.
std::string index_text(const OpContext& ctx, size_t input, const DenseTensor& local, int64_t i);
/// "i32[4, 2]": dtype and global shape of that input.
std::string global_text(const OpContext& ctx, size_t input, const DenseTensor& local);

}  // namespace shard::cpu
