// Gradients of gradients, to any order, as functions to which central differences can be applied.
#pragma once

#include "gradients/central_difference.h"
#include "shard/autograd/autograd.h"
#include "shard/shard.h"

namespace shard::test {

/// The gradients of `forward` for its inputs for which `wanted` holds, concatenated, as a function of the inputs
/// and of the gradient of its output, which comes last. It is recorded, so it can be differentiated again. An input
/// without a gradient gets zeros.
inline ForwardFunction gradient_function(const ForwardFunction& forward, const std::vector<bool>& wanted) {
  return [=](const std::vector<Tensor>& at) {
    std::vector<Tensor> inputs(at.begin(), at.end() - 1), differentiated;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!wanted[i]) continue;
      if (!inputs[i].requires_grad()) inputs[i] = inputs[i].detach().set_requires_grad(true);
      differentiated.push_back(inputs[i]);
    }
    const std::vector<Tensor> found =
        grad({forward(inputs)}, differentiated, {at.back()}, {.create_graph = true}, true);
    std::vector<Tensor> flat;
    for (size_t i = 0; i < found.size(); ++i) {
      const Tensor& one = found[i].defined() ? found[i] : full_like(differentiated[i].detach(), 0);
      flat.push_back(reshape(one, {one.numel()}));
    }
    return flat.size() == 1 ? flat[0] : concat(flat, 0);
  };
}

/// Empty when the gradients of `forward` of order `order` (2 for gradients of gradients) equal the central
/// differences of the gradients of the previous order.
inline std::string higher_order_difference(const ForwardFunction& forward, std::vector<Tensor> inputs,
                                           std::vector<bool> wanted, int order) {
  ForwardFunction function = forward;
  for (int i = 1; i < order; ++i) {
    const Tensor weight = random_values(function(inputs).dims(), 100 + static_cast<unsigned>(i));
    function = gradient_function(function, wanted);
    inputs.push_back(weight);
    wanted.push_back(true);
  }
  const auto gradient = [&](const std::vector<Tensor>& at, const Tensor& out_grad) {
    std::vector<Tensor> arguments = at;
    arguments.push_back(out_grad);
    const Tensor flat = gradient_function(function, wanted)(arguments).detach();
    std::vector<Tensor> all;
    int64_t begin = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      all.emplace_back();
      if (!wanted[i]) continue;
      all.back() = reshape(slice(flat, {0}, {begin}, {begin + at[i].numel()}), at[i].dims());
      begin += at[i].numel();
    }
    return all;
  };
  // The fifth derivative of a third one may be large: that of a quotient by 0.1 is 1e11.
  const double step = order < 3 ? kDifferenceStep : kDifferenceStep / 4;
  return gradient_difference([&](const std::vector<Tensor>& at) { return function(at).detach(); }, gradient, inputs,
                             kGradientTolerance, step);
}

}  // namespace shard::test
