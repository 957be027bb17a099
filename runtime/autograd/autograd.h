// Gradients: what programs call. Tensor::backward, requires_grad, grad and detach are members of Tensor (core/tensor.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "autograd/grad_mode.h"
#include "core/tensor.h"

namespace shard {

struct BackwardOptions {
  bool retain_graph = false;  // recorded steps stay, for another backward over them
  bool create_graph =
      false;  // the gradients are recorded themselves, so that they can be differentiated; retains the graph
  /// Leaf gradients that have to be reduced or moved are moved together, as soon as so many bytes of them are there, while backward goes
  /// on. 0 moves each on its own when it is there.
  int64_t bucket_bytes = int64_t{25} << 20;
};

/// Adds the gradients of the sum of all elements of `outputs`, each times its `grad_outputs` (of its shape and dtype; may be left out for
/// tensors of one element), to the leaves that they were computed from. Throws autograd where nothing was recorded, or where it was freed
/// by an earlier backward.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs = {},
              const BackwardOptions& options = {});

/// The gradients of `inputs`, each of its shape and dtype, in its layout; nothing is added to leaves. An input that no output depends on
/// is an error, or with `allow_unused` gets an undefined tensor.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs = {}, const BackwardOptions& options = {},
                         bool allow_unused = false);

/// In which layout the gradient of a distributed leaf is kept.
enum class GradLayout : uint8_t {
  of_leaf,  // reduced, and moved to the layout of the leaf
  as_is  // where it is a pending sum it stays one, for several backward passes that are reduced once; else as of_leaf
};
/// Throws autograd for a tensor that is no leaf.
void set_grad_layout(const Tensor& leaf, GradLayout layout);

/// A function that sees each gradient of a tensor as backward makes it, and may give another of the same shape and dtype in its place; an
/// undefined one leaves it. For a leaf it sees what is about to be added, in the leaf's layout.
using GradHook = std::function<Tensor(const Tensor& gradient)>;
/// Of the value that `tensor` has now: a write in place makes another one. Returns a number for remove_hook. Throws autograd for a tensor that requires
/// no gradient. A hook that holds a handle to `tensor` itself is never freed; let it hold detach() of it.
uint64_t add_hook(const Tensor& tensor, GradHook hook);
void remove_hook(const Tensor& tensor, uint64_t hook);
/// Keeps the gradient of a tensor that is no leaf in its grad() too: that of the value which it has when it is used last before backward, and
/// from the latest backward.
void retain_grad(const Tensor& tensor);

/// A function of the user with a gradient of its own.
struct CustomFunction {
  std::string name = "custom";  // in messages
  /// Called with the inputs, without recording. A result whose buffer others have too is copied.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)> forward;
  /// Gets the gradients of the outputs (zeros where nothing depends on one), and gives one for each input; undefined ones are none.
  /// Recorded where gradients are differentiated again (create_graph).
  std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                    const std::vector<Tensor>& grad_outputs)>
      backward;
};
/// Inputs and outputs are saved, and checked as those of ops: a later write is an error of backward.
std::vector<Tensor> apply(const CustomFunction& function, const std::vector<Tensor>& inputs,
                          CallSite site = CallSite::here());

/// `function` of `inputs` without keeping what its steps save: backward calls it again, with the policies of this call, and random numbers
/// are drawn again as they were. It must do the same then, and must write no tensor from outside. What it takes from outside beside its
/// inputs, such as parameters that it captures, gets its gradient too, and must not be written before backward, which throws autograd then. Scopes may lie in each other. A result whose buffer others have too is copied.
std::vector<Tensor> recompute(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                              const std::vector<Tensor>& inputs, CallSite site = CallSite::here());

}  // namespace shard
