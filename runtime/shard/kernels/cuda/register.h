// Registers the CUDA kernels. It is there in every build; without CUDA, register_stub.cc stands in.
#pragma once

namespace shard {

/// Registers the CUDA kernels for the backend "cuda". Does nothing when there is none.
void register_cuda_kernels();

}  // namespace shard
