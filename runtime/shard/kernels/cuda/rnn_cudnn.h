// Recurrent networks by cuDNN.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/meta/rnn.h"

namespace shard::cuda {

/// Layers of a network, each of which reads what the one before it makes, for sequences of one length. None of the numbers is 0.
struct RnnLayers {
  meta::RnnMode mode;
  DType dtype;  // float32 or float64, of all tensors
  int64_t time, batch, inputs, hidden, directions, layers;

  auto operator<=>(const RnnLayers&) const = default;
};

/// Neighbours in cuDNN's buffer of weights: elements from `begin` on of one parameter of a cell (a direction of a layer), as the op has it.
struct RnnRun {
  enum Parameter : uint8_t { inputs, state, inputs_bias, state_bias };
  int64_t cell;
  Parameter parameter;
  int64_t begin, numel;
  int64_t place;  // in the buffer, in elements
};

/// The buffers of such layers.
struct RnnBuffers {
  std::vector<RnnRun> weights;
  size_t weight_bytes;
  size_t reserve_bytes;  // what the forward pass of training keeps for the gradients
};

/// Whether networks are computed by cuDNN, if it supports their sizes: where it is there, and was found at build time. Those with lengths
/// are not, because cuDNN reads lengths on the host, nor is relu, because what becomes of NaN is not documented. The answer is the same on all
/// ranks and for a gradient and its forward pass.
bool has_cudnn_rnn(meta::RnnMode mode, bool has_lengths);

/// What cuDNN needs for these layers on the current device; null where it does not support them or has failed.
std::shared_ptr<const RnnBuffers> find_cudnn_rnn(const RnnLayers& layers);

/// The arguments of both passes. Device memory of the dtype, contiguous, at multiples of 16 bytes: c is null but for LSTM.
struct RnnArguments {
  const void* x;        // [time, batch, inputs]
  const void *h, *c;    // [layers * directions, batch, hidden], before the first step
  const void* weights;  // weight_bytes
  void* reserve;        // reserve_bytes; null for a forward pass that no gradient follows
};

/// Writes y [time, batch, directions * hidden] and the states after the last step. False where cuDNN does not support the layers
/// or has failed; then all that is there is undefined.
bool rnn_by_cudnn(const RnnLayers& layers, const RnnArguments& arguments, void* y, void* h_out, void* c_out);

/// The gradients of what they are given, and of the states after the last step.
struct RnnGradients {
  const void *y, *h_out, *c_out;
  void *x, *h, *c;
  void* weights;  // weight_bytes
};
/// Writes the gradients of x, h, c and weights, from the `y` and the reserve of rnn_by_cudnn. False as there.
bool rnn_grad_by_cudnn(const RnnLayers& layers, const RnnArguments& arguments, const void* y,
                       const RnnGradients& gradients);

}  // namespace shard::cuda
