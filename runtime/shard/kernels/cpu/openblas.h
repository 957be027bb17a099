#pragma once

namespace shard::cpu {

/// Prepares OpenBLAS: kernels for what the processor has, and one thread a call (threads are the library's to divide). Called once, when the library is loaded.
void prepare_openblas();

}  // namespace shard::cpu
