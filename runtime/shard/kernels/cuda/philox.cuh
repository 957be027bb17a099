// Random words on CUDA: those of core/random.h, by the index of an element in its whole tensor.
#pragma once

#include "shard/core/op_context.h"
#include "shard/core/random.h"
#include "shard/kernels/cuda/cuda_types.cuh"

namespace shard::cuda {

/// The words of the blocks of a key. The last block is kept, so that neighbouring elements cost one evaluation.
class PhiloxWords {
 public:
  __device__ explicit PhiloxWords(RandomKey key) : key_(key) {}

  __device__ uint32_t at(uint64_t element) {
    if (element >> 2 != block_) draw(element >> 2);
    const unsigned word = static_cast<unsigned>(element) & 3u;
    return word < 2 ? (word == 0 ? c0_ : c1_) : (word == 2 ? c2_ : c3_);
  }

 private:
  __device__ void draw(uint64_t block) {
    block_ = block;
    c0_ = static_cast<uint32_t>(block);
    c1_ = static_cast<uint32_t>(block >> 32);
    c2_ = static_cast<uint32_t>(key_.offset);
    c3_ = static_cast<uint32_t>(key_.offset >> 32);
    uint32_t k0 = static_cast<uint32_t>(key_.seed), k1 = static_cast<uint32_t>(key_.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint32_t high0 = __umulhi(0xD2511F53u, c0_), low0 = 0xD2511F53u * c0_;
      const uint32_t high1 = __umulhi(0xCD9E8D57u, c2_), low1 = 0xCD9E8D57u * c2_;
      c0_ = high1 ^ c1_ ^ k0;
      c1_ = low1;
      c2_ = high0 ^ c3_ ^ k1;
      c3_ = low0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  RandomKey key_;
  uint64_t block_ = ~uint64_t{0};  // no element has this one
  uint32_t c0_ = 0, c1_ = 0, c2_ = 0, c3_ = 0;
};

/// Uniform in [0, 1) with 24 bits.
__device__ inline float uniform_fraction(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// The row-major index in the whole tensor of an element of a local shard.
class GlobalIndex {
 public:
  GlobalIndex(const Box& box, const Dims& dims) {
    int64_t step = 1;
    Dims steps = dims;
    for (int d = dims.rank() - 1; d >= 0; --d) {
      steps[d] = step;
      first_ += box.begin[d] * step;
      step *= box.global[d];
    }
    for (int d = 0; d < dims.rank(); ++d) shape_.append(dims[d], {steps[d]});
  }
  __device__ int64_t of(int64_t local) const {
    int64_t at[1];
    if (local >> 31 == 0) shape_.locate(static_cast<uint32_t>(local), at);
    else shape_.locate(local, at);
    return first_ + at[0];
  }

 private:
  Strided<1> shape_;
  int64_t first_ = 0;
};

}  // namespace shard::cuda
