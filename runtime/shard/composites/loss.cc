// Losses that are made of other ops.
#include "shard/core/error.h"
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/loss_ops.h"

namespace shard::external {

using gradients::narrowed;
using gradients::widened;

namespace {

/// Losses of elements take tensors of one shape; a broadcast would count elements more than once.
void check_alike(const char* op, const char* name, const Tensor& x, const Tensor& label) {
  if (x.dims() == label.dims()) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} has the shape {} and label {}, but their shapes must be equal", op, name,
       to_string(x.dims()), to_string(label.dims()));
}

}  // namespace

Tensor sigmoid_cross_entropy_with_logits(const Tensor& x, const Tensor& label, const Tensor& pos_weight, bool normalize,
                                         int ignore_index) {
  check_alike("sigmoid_cross_entropy_with_logits", "x", x, label);
  // (1 - label) * x + pos_weight * log(1 + exp(-x)), whose summands may cancel, in logarithms of probabilities.
  const Tensor logits = widened(x), target = widened(label);
  const Tensor of_true = pos_weight.defined() ? add(scale(target, 1, -1), widened(pos_weight)) : target;
  const Tensor loss = scale(
      add(multiply(of_true, logsigmoid(logits)), multiply(scale(target, -1, 1), logsigmoid(scale(logits, -1)))), -1);
  if (loss.dims() != x.dims()) {
    fail(ErrorCode::shape_mismatch,
         "[sigmoid_cross_entropy_with_logits] pos_weight has the shape {}, but must broadcast to that of x, {}",
         to_string(pos_weight.dims()), to_string(x.dims()));
  }
  const Tensor counts = not_equal(label, full_like(label, ignore_index));
  const Tensor kept = where(counts, loss, full_like(loss, 0));
  if (!normalize) return narrowed(kept, x.dtype());
  const Tensor count = cast(sum(counts), loss.dtype());
  return narrowed(divide(kept, maximum(count, full_like(count, 1e-5))), x.dtype());
}

std::tuple<Tensor, Tensor, Tensor> accuracy(const Tensor& x, const Tensor& indices, const Tensor& label) {
  const Dims &chosen = indices.dims(), &labels = label.dims();
  if (chosen.rank() != 2 || x.dims() != chosen || labels != Dims{chosen[0], 1}) {
    fail(ErrorCode::shape_mismatch,
         "[accuracy] x is {}, indices is {} and label is {}, but x and indices must be [n, k] and label [n, 1]",
         to_string(x.meta()), to_string(indices.meta()), to_string(label.meta()));
  }
  const Tensor found = cast(any(equal(indices, label), {1}), DType::int32);
  const Tensor correct = cast(sum(found), DType::int32), total = cast(sum(full_like(found, 1)), DType::int32);
  const Tensor least = maximum(total, full_like(total, 1));
  return {divide(cast(correct, DType::float32), cast(least, DType::float32)), correct, total};
}

Tensor kldiv_loss(const Tensor& given_x, const Tensor& given_label, const std::string& reduction, bool log_target) {
  check_alike("kldiv_loss", "x", given_x, given_label);
  const Tensor x = widened(given_x), label = widened(given_label);
  const auto of_probabilities = [&] {
    const Tensor zero = full_like(label, 0), none = less_equal(label, zero);  // not NaN
    const Tensor logarithm = log(where(none, full_like(label, 1), label));    // finite, so that 0 times it is 0
    return where(none, zero, multiply(label, subtract(logarithm, x)));
  };
  const Tensor loss = log_target ? multiply(exp(label), subtract(label, x)) : of_probabilities();
  const auto result = [&](const Tensor& value) { return narrowed(value, given_x.dtype()); };
  if (reduction == "none") return result(loss);
  if (reduction == "sum") return result(sum(loss));
  if (reduction == "mean") return result(mean(loss));
  if (reduction != "batchmean" || loss.dims().rank() == 0) {
    fail(ErrorCode::invalid_argument,
         "[kldiv_loss] reduction is {}, but must be none, sum, mean, or for x with a dim batchmean", reduction);
  }
  return result(scale(sum(loss), 1.0 / static_cast<double>(loss.dims()[0])));
}

}  // namespace shard::external
