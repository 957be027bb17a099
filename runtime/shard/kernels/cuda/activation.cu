// The activations of formulas/activation.inc on CUDA.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

namespace activation {
#include "shard/kernels/formulas/activation.inc"
}  // namespace activation

}  // namespace

void register_activation(int) { activation::register_activation_formulas(); }

}  // namespace shard::cuda
