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

void AucInferMeta(const OpContext& ctx, const Meta& x, const Meta& label, const Meta& stat_pos, const Meta& stat_neg,
                  const Meta* ins_tag_weight, const std::string& curve, int num_thresholds, int slide_steps, Meta& auc,
                  Meta& stat_pos_out, Meta& stat_neg_out) {
  if (curve != "ROC") fail(ErrorCode::invalid_argument, "[{}] curve is '{}', but must be ROC", ctx.op, curve);
  if (num_thresholds < 1 || slide_steps < 0) {
    fail(ErrorCode::invalid_argument,
         "[{}] num_thresholds is {} and slide_steps {}, but must be at least 1 and at least 0", ctx.op, num_thresholds,
         slide_steps);
  }
  check_floating(ctx, "x", x);
  check_index(ctx, "label", label);
  if (x.dims.rank() != 2 || x.dims[1] < 1 || x.dims[1] > 2 ||
      (label.dims != Dims{x.dims[0]} && label.dims != Dims{x.dims[0], 1})) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} and label is {}, but must be [n, 1] or [n, 2], and [n] or [n, 1]",
         ctx.op, to_string(x), to_string(label));
  }
  const int64_t buckets = int64_t{num_thresholds} + 1;
  stat_pos_out = {slide_steps == 0 ? Dims{1, buckets} : Dims{(int64_t{slide_steps} + 1) * buckets + 1}, DType::int64};
  stat_neg_out = stat_pos_out;
  for (const auto& [name, stat] : {std::pair{"stat_pos", &stat_pos}, std::pair{"stat_neg", &stat_neg}}) {
    if (stat->dtype == DType::int64 && stat->numel() == stat_pos_out.numel()) continue;
    const bool typed = stat->dtype == DType::int64;
    fail(typed ? ErrorCode::shape_mismatch : ErrorCode::dtype_mismatch,
         "[{}] {} is {}, but with num_thresholds {} and slide_steps {} must be {}", ctx.op, name, to_string(*stat),
         num_thresholds, slide_steps, to_string(stat_pos_out));
  }
  if (ins_tag_weight != nullptr && (ins_tag_weight->dtype != DType::float32 || ins_tag_weight->numel() != 1)) {
    fail(ErrorCode::dtype_mismatch, "[{}] ins_tag_weight is {}, but must be one float32", ctx.op,
         to_string(*ins_tag_weight));
  }
  auc = {Dims{}, DType::float64};
}

}  // namespace shard::meta
