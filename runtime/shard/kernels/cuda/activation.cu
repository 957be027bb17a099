// The activations of formulas/activation.inc on CUDA.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/activation.inc"

}  // namespace

void register_activation(int) { register_activation_formulas(); }

}  // namespace shard::cuda
