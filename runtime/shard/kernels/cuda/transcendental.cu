// The functions of formulas/transcendental.inc on CUDA.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

namespace transcendental {
#include "shard/kernels/formulas/transcendental.inc"
}  // namespace transcendental

}  // namespace

void register_transcendental(int) { transcendental::register_transcendental_formulas(); }

}  // namespace shard::cuda
