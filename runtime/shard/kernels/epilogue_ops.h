// Ops that kernels of a device may compute with the product before them.
#pragma once

#include <string_view>
#include <vector>

#include "shard/core/attr.h"

namespace shard {

/// Whether a call with these attributes may follow a product of this dtype so, under the AlgorithmPolicy in force.
using EpilogueTest = bool (*)(DType dtype, const std::vector<Attr>& attrs);

/// Kernels of the backend may compute this op with the product before it. Called while built-in kernels are registered.
void note_epilogue_op(int backend, std::string_view op, EpilogueTest test);
bool is_epilogue_op(int backend, std::string_view op, DType dtype, const std::vector<Attr>& attrs);

}  // namespace shard
