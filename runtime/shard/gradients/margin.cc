// Gradients of margin_cross_entropy for recorded calls, as other ops, which are recorded.
#include "shard/autograd/grad_mode.h"
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/loss_ops.h"

namespace shard::external {
namespace {

using gradients::narrowed;
using gradients::widened;

/// Whether each class is another than that of `label`: on a mesh sharded like logits.
Tensor is_other(const Tensor& logits, const Tensor& label) {
  const NoGrad constant;
  const Tensor one = full_like(cast(reshape(label, {logits.dims()[0], 1}), logits.dtype()), 1);
  // Of probabilities of 1 the gradient is -1 at label, and 0 elsewhere.
  return logical_not(shard::cross_entropy_with_softmax_grad(label, full_like(logits, 1), one, false, false));
}

/// The gradient of logits, from that of what the softmax has as its argument.
Tensor by_margins(const Tensor& logits, const Tensor& label, const Tensor& grad, float margin1, float margin2,
                  float scale) {
  const auto factor = static_cast<double>(margin1), angle = static_cast<double>(margin2);
  const Tensor wide = widened(grad);
  Tensor result = wide;
  if (factor != 1 || angle != 0) {
    const Tensor other = is_other(logits, label), x = widened(logits);
    const Tensor cosine = sum(where(other, full_like(x, 0), x), {1}, /*keepdim=*/true);
    const Tensor turned = shard::scale(sin(shard::scale(acos(cosine), factor, angle)), factor);
    Tensor slope = multiply(turned, rsqrt(shard::scale(square(cosine), -1, 1)));
    if (angle == 0) {  // the limit at 1
      const Tensor fixed = cosine.detach();
      slope = where(equal(fixed, full_like(fixed, 1)), full_like(fixed, factor * factor), slope);
    }
    result = where(other, wide, multiply(wide, slope));
  }
  return narrowed(shard::scale(result, static_cast<double>(scale)), logits.dtype());
}

}  // namespace

Tensor margin_cross_entropy_grad(const Tensor& logits, const Tensor& label, const Tensor& softmax,
                                 const Tensor& loss_grad, float margin1, float margin2, float scale) {
  const Tensor grad = shard::cross_entropy_with_softmax_grad(label, widened(softmax), widened(loss_grad));
  return by_margins(logits, label, grad, margin1, margin2, scale);
}

Tensor margin_cross_entropy_and_softmax_grad(const Tensor& logits, const Tensor& label, const Tensor& softmax,
                                             const Tensor& softmax_grad, const Tensor& loss_grad, bool return_softmax,
                                             int ring_id, int rank, int nranks, float margin1, float margin2,
                                             float margin3, float scale) {
  const auto of_loss = [&] {
    return shard::margin_cross_entropy_grad(logits, label, softmax, loss_grad, return_softmax, ring_id, rank, nranks,
                                            margin1, margin2, margin3, scale);
  };
  if (!softmax_grad.defined()) return of_loss();
  const Tensor of_argument = shard::softmax_grad(softmax, softmax_grad, 1);
  const Tensor of_softmax = by_margins(logits, label, of_argument, margin1, margin2, scale);
  return loss_grad.defined() ? add(of_loss(), of_softmax) : of_softmax;
}

}  // namespace shard::external
