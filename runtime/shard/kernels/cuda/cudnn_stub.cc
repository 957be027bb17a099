// What is computed by cuDNN, in builds that have not found its header.
#include "shard/kernels/cuda/conv_cudnn.h"
#include "shard/kernels/cuda/pool_cudnn.h"
#include "shard/kernels/cuda/rnn_cudnn.h"

namespace shard::cuda {

bool convolve_by_cudnn(const OpContext&, cpu::ConvPass, const cpu::Convolution&, const DenseTensor&, const DenseTensor&,
                       const DenseTensor&) {
  return false;
}

bool mean_pool_by_cudnn(const cpu::Pooled&, const DenseTensor&, const ShardBox&, const ShardBox&, const DenseTensor&) {
  return false;
}
bool mean_pool_grad_by_cudnn(const cpu::Pooled&, const DenseTensor&, const ShardBox&, const DenseTensor&,
                             const ShardBox&, const DenseTensor&) {
  return false;
}

bool has_cudnn_rnn(meta::RnnMode, bool) { return false; }
std::shared_ptr<const RnnBuffers> find_cudnn_rnn(const RnnLayers&) { return nullptr; }
bool rnn_by_cudnn(const RnnLayers&, const RnnArguments&, void*, void*, void*) { return false; }
bool rnn_grad_by_cudnn(const RnnLayers&, const RnnArguments&, const void*, const RnnGradients&) { return false; }

}  // namespace shard::cuda
