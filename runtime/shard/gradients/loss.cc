// Gradients of losses as composites of other ops, for recorded calls of ops with a kernel.
#include <limits>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/loss_ops.h"

namespace shard::external {

using gradients::narrowed;
using gradients::times;
using gradients::widened;

Tensor bce_loss_grad(const Tensor& input, const Tensor& label, const Tensor& out_grad) {
  const Tensor x = widened(input);
  const Tensor variance = clip(multiply(scale(x, -1, 1), x), 1e-12, std::numeric_limits<double>::infinity());
  return times(out_grad, divide(subtract(x, widened(label)), variance));
}

Tensor log_loss_grad(const Tensor& input, const Tensor& label, const Tensor& out_grad, float epsilon) {
  const double e = static_cast<double>(epsilon);
  const Tensor x = widened(input), y = widened(label);
  return times(out_grad, subtract(divide(scale(y, -1, 1), scale(x, -1, 1 + e)), divide(y, scale(x, 1, e))));
}

std::tuple<Tensor, Tensor> huber_loss_grad(const Tensor& input, const Tensor& label, const Tensor& out_grad,
                                           float delta) {
  const double d = static_cast<double>(delta);
  const Tensor of_label = times(out_grad, clip(subtract(widened(label), widened(input)), -d, d));
  return {scale(of_label, -1), of_label};
}

Tensor nll_loss_double_grad(const Tensor& label, const Tensor& weight, const Tensor& total_weight,
                            const Tensor& grad_input_grad, int64_t ignore_index, const std::string& reduction) {
  const bool mean = reduction == "mean";
  const Tensor out = std::get<0>(nll_loss(grad_input_grad, label, weight, ignore_index, mean ? "sum" : reduction));
  if (!mean) return out;
  const Tensor nothing = logical_not(total_weight);
  const Tensor divisor = where(nothing, full_like(total_weight, 1), total_weight);
  return narrowed(divide(widened(out), divisor), out.dtype());
}

}  // namespace shard::external
