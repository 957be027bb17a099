// Losses that are made of other ops.
#include "shard/core/error.h"
#include "shard/ops/api.h"
#include "shard/ops/loss_ops.h"

namespace shard::external {
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
  const Tensor logarithm = logsigmoid(x);  // -log(1 + exp(-x))
  const Tensor loss = subtract(multiply(scale(label, -1.0, 1.0), x),
                               pos_weight.defined() ? multiply(pos_weight, logarithm) : logarithm);
  const Tensor counts = not_equal(label, full_like(label, ignore_index));
  const Tensor kept = where(counts, loss, full_like(loss, 0));
  if (!normalize) return kept;
  const Tensor count = cast(sum(counts), x.dtype());
  return divide(kept, maximum(count, full_like(count, 1e-5)));
}

Tensor kldiv_loss(const Tensor& x, const Tensor& label, const std::string& reduction, bool log_target) {
  check_alike("kldiv_loss", "x", x, label);
  const auto of_probabilities = [&] {
    const Tensor zero = full_like(label, 0), positive = greater_than(label, zero);
    const Tensor logarithm = log(where(positive, label, full_like(label, 1)));  // finite, so that 0 times it is 0
    return where(positive, multiply(label, subtract(logarithm, x)), zero);
  };
  const Tensor loss = log_target ? multiply(exp(label), subtract(label, x)) : of_probabilities();
  if (reduction == "none") return loss;
  if (reduction == "sum") return sum(loss);
  if (reduction == "mean") return mean(loss);
  if (reduction != "batchmean" || loss.dims().rank() == 0) {
    fail(ErrorCode::invalid_argument,
         "[kldiv_loss] reduction is {}, but must be none, sum, mean, or for x with a dim batchmean", reduction);
  }
  return scale(sum(loss), 1.0 / static_cast<double>(loss.dims()[0]));
}

}  // namespace shard::external
