// infer_meta of losses. Cross entropies are in nn.cc.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// Two tensors of one shape and float dtype.
void check_alike(const OpContext& ctx, std::string_view x_name, const Meta& x, std::string_view y_name, const Meta& y) {
  check_floating(ctx, x_name, x);
  check_same_dtype(ctx, x_name, x, y_name, y);
  if (x.dims == y.dims) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {} and {} is {}, but their shapes must be equal; expand one of them",
       ctx.op, x_name, to_string(x), y_name, to_string(y));
}

}  // namespace

void BCELossInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, Meta& out) {
  check_alike(ctx, "input", input, "label", label);
  out = input;
}

void LogLossInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, Meta& out) {
  BCELossInferMeta(ctx, input, label, out);
}

void HuberLossInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, Meta& out, Meta& residual) {
  BCELossInferMeta(ctx, input, label, out);
  residual = out;
}

void NllLossRawInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta* weight,
                         const std::string& reduction, Meta& out, Meta& total_weight) {
  check_floating(ctx, "input", input);
  check_index(ctx, "label", label);
  if (reduction != "none" && reduction != "sum" && reduction != "mean")
    fail(ErrorCode::invalid_argument, "[{}] reduction is {}, but must be none, sum or mean", ctx.op, reduction);
  if (input.dims.rank() < 2)
    fail(ErrorCode::shape_mismatch, "[{}] input is {}, but must have at least the two dims [n, c]", ctx.op,
         to_string(input));
  Dims dims = input.dims;
  dims.erase(1);
  if (label.dims != dims) {
    fail(ErrorCode::shape_mismatch,
         "[{}] input is {} and label is {}, but label must have the shape {}: that of input "
         "without the classes",
         ctx.op, to_string(input), to_string(label), to_string(dims));
  }
  if (weight != nullptr) {
    check_same_dtype(ctx, "input", input, "weight", *weight);
    if (weight->dims != Dims{input.dims[1]}) {
      fail(ErrorCode::shape_mismatch, "[{}] weight is {}, but must have the shape [{}]: an element for each class",
           ctx.op, to_string(*weight), input.dims[1]);
    }
  }
  out = {reduction == "none" ? dims : Dims{}, input.dtype};
  total_weight = {Dims{}, statistics_dtype(input.dtype)};
}

void MarginCrossEntropyInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label, int nranks, Meta& softmax,
                                 Meta& loss) {
  check_floating(ctx, "logits", logits);
  check_index(ctx, "label", label);
  if (nranks != 1) {
    fail(ErrorCode::invalid_argument, "[{}] nranks is {}, but must be 1; shard the classes of logits over a mesh",
         ctx.op, nranks);
  }
  const bool is_matrix = logits.dims.rank() == 2;
  if (!is_matrix || (label.dims != Dims{logits.dims[0]} && label.dims != Dims{logits.dims[0], 1})) {
    fail(ErrorCode::shape_mismatch, "[{}] logits is {} and label is {}, but they must be [n, c] and [n] or [n, 1]",
         ctx.op, to_string(logits), to_string(label));
  }
  softmax = logits;
  loss = {Dims{logits.dims[0], 1}, logits.dtype};
}

void MarginCrossEntropyGradInferMeta(const OpContext& ctx, const Meta& logits, const Meta& label, const Meta& softmax,
                                     const Meta& loss_grad, int nranks, Meta& logits_grad) {
  Meta loss;
  MarginCrossEntropyInferMeta(ctx, logits, label, nranks, logits_grad, loss);
  check_like_forward(ctx, "softmax", softmax, logits);
  check_like_forward(ctx, "loss_grad", loss_grad, loss);
}

void LossGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta& out_grad,
                       Meta& input_grad) {
  check_alike(ctx, "input", input, "label", label);
  check_like_forward(ctx, "out_grad", out_grad, input);
  input_grad = input;
}

void HuberLossGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta& out_grad,
                            Meta& input_grad, Meta& label_grad) {
  LossGradInferMeta(ctx, input, label, out_grad, input_grad);
  label_grad = input_grad;
}

void NllLossGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, const Meta* weight,
                          const Meta& total_weight, const Meta& out_grad, const std::string& reduction,
                          Meta& input_grad) {
  Meta out, total;
  NllLossRawInferMeta(ctx, input, label, weight, reduction, out, total);
  check_like_forward(ctx, "total_weight", total_weight, total);
  check_like_forward(ctx, "out_grad", out_grad, out);
  input_grad = input;
}

}  // namespace shard::meta
