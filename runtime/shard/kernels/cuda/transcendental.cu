// The functions of formulas/transcendental.inc on CUDA.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

template <class V>
__device__ V erf_of(V x) {
  return erf(x);
}

#include "shard/kernels/formulas/transcendental.inc"

}  // namespace

void register_transcendental(int) { register_transcendental_formulas(); }

}  // namespace shard::cuda
