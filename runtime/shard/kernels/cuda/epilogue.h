// Epilogues of products on CUDA: a bias and an activation that cuBLASLt (matmul.cc) adds before it writes a product. Loops
// (fused_loop.cc) find them among the kernels that follow.
#pragma once

#include <cstdint>

#include "shard/core/algorithm_policy.h"
#include "shard/core/dense_tensor.h"

namespace shard::cuda {

enum class Activation : uint8_t { none, relu, gelu_tanh };

struct Epilogue {
  const void* bias = nullptr;  // one element for each column, of the product's dtype; null: none
  Activation activation = Activation::none;
};

/// From which alignment of a bias on cuBLASLt is asked for an epilogue, in bytes.
inline constexpr size_t kBiasAlignment = 16;

/// Whether a product of this dtype may have an activation: those of cuBLASLt do not have the bits of ours, which results of 32 and 64 bits
/// promise, and make 0 of NaN (relu), and NaN of -infinity (gelu).
inline bool takes_activations(DType dtype) {
  return size_of(dtype) == 2 && algorithm_policy() == AlgorithmPolicy::fastest;
}

/// The arguments of the kernel of a product of floats that is not empty.
struct ProductCall {
  const char* op;
  DenseTensor x, y;
  bool transpose_x, transpose_y;
  DenseTensor out;
};

/// Writes the product with its epilogue to `to`, which has room for call.out. Returns false where cuBLASLt has no algorithm for that, or `to`
/// is aligned otherwise than call.out; `to` may have been written nevertheless. Without an epilogue it throws then. float32 and float64 have
/// the bits of the product, to which the bias is added; activations are for 16-bit floats alone. These are rounded once, after the epilogue.
bool run_product(const ProductCall& call, const Epilogue& epilogue, void* to);

/// Keeps the product for the open loop of this thread, until it is known what follows. Returns false, and does nothing, where the loop is
/// not for its device.
bool lead_loop(const ProductCall& call);

}  // namespace shard::cuda
