// Ops that kernels of a device may compute with the product before them.
#pragma once

#include <string_view>

namespace shard {

/// Kernels of the backend may compute this op with the product before it. Called while built-in kernels are registered.
void note_epilogue_op(int backend, std::string_view op);
bool is_epilogue_op(int backend, std::string_view op);

}  // namespace shard
