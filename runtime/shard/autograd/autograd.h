// The public functions for gradients. Tensor::backward, requires_grad, grad and detach are members
// of Tensor (core/tensor.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shard/autograd/grad_mode.h"
#include "shard/core/export.h"
#include "shard/core/tensor.h"

namespace shard {

struct BackwardOptions {
  bool retain_graph = false;  // recorded steps are kept for another backward over them
  // the gradients are recorded themselves, so that they can be differentiated; retains the graph
  bool create_graph = false;
  /// Leaf gradients that have to be reduced or resharded are collected, and sent together when they
  /// have this many bytes, while backward continues. 0 sends each of them as soon as it is
  /// computed.
  int64_t bucket_bytes = int64_t{25} << 20;
};

/// Adds the gradients of the sum of all elements of `outputs`, each times its `grad_outputs` (of
/// its shape and dtype; may be left out for tensors of one element), to the leaves that they were
/// computed from. Throws autograd where nothing was recorded, or where the steps were freed by an
/// earlier backward.
SHARD_API void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs = {},
                        const BackwardOptions& options = {});

/// The gradients of `inputs`, each with its shape, dtype and layout; nothing is added to leaves. An
/// input that no output depends on is an error, or with `allow_unused` gets an undefined tensor.
SHARD_API std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                   const std::vector<Tensor>& grad_outputs = {}, const BackwardOptions& options = {},
                                   bool allow_unused = false);

/// The layout in which the gradient of a distributed leaf is kept.
enum class GradLayout : uint8_t {
  of_leaf,  // reduced, and resharded to the layout of the leaf
  as_is     // a pending sum stays pending, so that several backward passes are reduced once; otherwise as of_leaf
};
/// Throws autograd for a tensor that is not a leaf.
SHARD_API void set_grad_layout(const Tensor& leaf, GradLayout layout);

/// A function that is called with each gradient of a tensor in backward. It may return a
/// replacement of the same shape and dtype, or an undefined tensor to keep the gradient. For a leaf
/// it is called with what is about to be added, in the leaf's layout.
using GradHook = std::function<Tensor(const Tensor& gradient)>;
/// Adds a hook to the present value of `tensor`: a write in place makes another value. Returns a
/// number for remove_hook. Throws autograd for a tensor that requires no gradient. A hook that
/// holds a handle to `tensor` itself is never freed; let it hold detach() of it.
SHARD_API uint64_t add_hook(const Tensor& tensor, GradHook hook);
SHARD_API void remove_hook(const Tensor& tensor, uint64_t hook);
/// Keeps the gradient of a tensor that is not a leaf in its grad() too: that of its last value
/// before backward, from the latest backward.
SHARD_API void retain_grad(const Tensor& tensor);

/// A user-defined function with a custom gradient.
struct CustomFunction {
  std::string name = "custom";  // in messages
  /// Called with the inputs, without recording. A result whose buffer is shared with others is
  /// copied.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)> forward;
  /// Gets the gradients of the outputs (zeros where nothing depends on one), and returns one for
  /// each input; an undefined one means no gradient. Recorded where gradients are differentiated
  /// again (create_graph).
  std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                    const std::vector<Tensor>& grad_outputs)>
      backward;
};
/// Inputs and outputs are saved and version-checked like those of ops: a later write is an error in
/// backward.
SHARD_API std::vector<Tensor> apply(const CustomFunction& function, const std::vector<Tensor>& inputs,
                                    CallSite site = CallSite::here());

/// Calls `function` with `inputs` without keeping the residuals of its steps: backward calls it
/// again, with the policies of this call and the same random numbers. It must then do the same, and
/// must not write a tensor from outside. Tensors that it takes from outside beside its inputs, such
/// as captured parameters, get gradients too. They must not be written before backward, which
/// throws autograd then. Scopes may be nested. A result whose buffer is shared with others is
/// copied.
SHARD_API std::vector<Tensor> recompute(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                                        const std::vector<Tensor>& inputs, CallSite site = CallSite::here());

}  // namespace shard
