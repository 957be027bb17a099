// infer_meta of neural network ops. Attention is in attention.cc, optimisers are in optim.cc.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// scale or bias of a normalisation: `count` elements, in the dtype of the statistics or, if allowed, of x.
void check_affine(const OpContext& ctx, std::string_view name, const Meta* affine, const Meta& x, int64_t count,
                  bool dtype_of_x) {
  if (affine == nullptr) return;
  const DType statistics = statistics_dtype(x.dtype);
  if (affine->dtype != statistics && !(dtype_of_x && affine->dtype == x.dtype)) {
    fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but for x, which is {}, it must be {}; cast it first", ctx.op, name,
         to_string(*affine), to_string(x), to_string(statistics));
  }
  if (affine->numel() != count) {
    fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but for x, which is {}, it must have {} elements", ctx.op, name,
         to_string(*affine), to_string(x), count);
  }
}

void check_statistic(const OpContext& ctx, std::string_view name, const Meta& value, const Meta& x, int64_t channels) {
  check_affine(ctx, name, &value, x, channels, false);
  if (value.dims.rank() == 1) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have the one dim [{}]", ctx.op, name, to_string(value),
       channels);
}

/// A label of class indices has the shape of the loss, or that shape without the class axis.
bool is_index_label(const Dims& label, const Dims& loss, int axis) {
  if (label == loss) return true;
  Dims dropped = loss;
  dropped.erase(axis);
  return label == dropped;
}

void check_dropout(const OpContext& ctx, const Scalar& p, const std::string& mode) {
  if (!(p.to<double>() >= 0 && p.to<double>() <= 1)) {
    fail(ErrorCode::invalid_argument, "[{}] p is {}, but a probability is from 0 to 1", ctx.op, p.to<double>());
  }
  if (mode != "upscale_in_train" && mode != "downscale_in_infer") {
    fail(ErrorCode::invalid_argument, "[{}] mode is {}, but must be upscale_in_train or downscale_in_infer", ctx.op,
         mode);
  }
}

/// The loss of a cross entropy whose values or probabilities, `name`, are `input`.
Meta loss_of(const OpContext& ctx, std::string_view name, const Meta& input, const Meta& label, bool soft_label,
             int axis) {
  check_floating(ctx, name, input);
  const int along = normalize_axis(ctx.op, "axis", axis, input.dims.rank());
  if (input.dims.rank() == 0)
    fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but needs a dim of classes", ctx.op, name, to_string(input));
  Meta loss = input;
  loss.dims[along] = 1;
  if (soft_label) {
    check_same_dtype(ctx, name, input, "label", label);
    if (label.dims == input.dims) return loss;
    fail(ErrorCode::shape_mismatch, "[{}] label is {}, but with soft_label it must have the shape {} of {}", ctx.op,
         to_string(label), to_string(input.dims), name);
  }
  check_index(ctx, "label", label);
  if (!is_index_label(label.dims, loss.dims, along)) {
    fail(ErrorCode::shape_mismatch,
         "[{}] {} is {} and label is {}, but the label must have the shape {}, or that without dim {}", ctx.op, name,
         to_string(input), to_string(label), to_string(loss.dims), along);
  }
  return loss;
}

}  // namespace

void MatmulInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, bool transpose_x, bool transpose_y,
                     Meta& out) {
  check_same_dtype(ctx, "x", x, "y", y);
  const int rx = x.dims.rank();
  const int ry = y.dims.rank();
  if (rx == 0 || ry == 0) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} and y is {}, but both need a dim; use multiply for numbers", ctx.op,
         to_string(x), to_string(y));
  }
  const int64_t m = rx == 1 ? 1 : x.dims[transpose_x ? rx - 1 : rx - 2];
  const int64_t kx = rx == 1 ? x.dims[0] : x.dims[transpose_x ? rx - 2 : rx - 1];
  const int64_t ky = ry == 1 ? y.dims[0] : y.dims[transpose_y ? ry - 1 : ry - 2];
  const int64_t n = ry == 1 ? 1 : y.dims[transpose_y ? ry - 2 : ry - 1];
  if (kx != ky) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {}{} and y is {}{}, whose inner sizes {} and {} differ; transpose or reshape one of them", ctx.op,
         to_string(x), transpose_x ? " (transposed)" : "", to_string(y), transpose_y ? " (transposed)" : "", kx, ky);
  }
  const auto leading = [](const Dims& dims) {
    return Dims(std::span<const int64_t>(dims.begin(), static_cast<size_t>(dims.rank() > 2 ? dims.rank() - 2 : 0)));
  };
  out = {broadcast(ctx, "the leading part of x", leading(x.dims), "of y", leading(y.dims)), x.dtype};
  if (rx > 1) out.dims.push_back(m);
  if (ry > 1) out.dims.push_back(n);
  check_size(ctx, out.dims, out.dtype);
}

void SoftmaxInferMeta(const OpContext& ctx, const Meta& x, int axis, Meta& out) {
  check_floating(ctx, "x", x);
  normalize_axis(ctx.op, "axis", axis, x.dims.rank());
  out = x;
}

void LabelSmoothInferMeta(const OpContext& ctx, const Meta& label, const Meta* prior_dist, Meta& out) {
  check_floating(ctx, "label", label);
  const int rank = label.dims.rank();
  if (rank == 0)
    fail(ErrorCode::shape_mismatch, "[{}] label is {}, but needs a dim of classes", ctx.op, to_string(label));
  out = label;
  if (prior_dist == nullptr) return;
  check_same_dtype(ctx, "label", label, "prior_dist", *prior_dist);
  const Dims& dims = prior_dist->dims;
  bool fits = dims.rank() > 0 && dims.rank() <= rank && dims[dims.rank() - 1] == label.dims[rank - 1];
  const Dims& global = global_dims(ctx, 1, *prior_dist);
  for (int d = 0; fits && d < dims.rank() - 1; ++d) fits = global[d] == 1;
  if (fits) return;
  fail(ErrorCode::shape_mismatch,
       "[{}] prior_dist is {}, but for label, which is {}, it must be [{}], with dims of 1 before it at most", ctx.op,
       to_string(*prior_dist), to_string(label), label.dims[rank - 1]);
}

void EmbeddingInferMeta(const OpContext& ctx, const Meta& x, const Meta& weight, Meta& out) {
  check_index(ctx, "x", x);
  if (weight.dims.rank() != 2) {
    fail(ErrorCode::shape_mismatch, "[{}] weight is {}, but must have the two dims [vocabulary, width]", ctx.op,
         to_string(weight));
  }
  out = {x.dims, weight.dtype};
  out.dims.push_back(weight.dims[1]);
  check_size(ctx, out.dims, out.dtype);
}

void LayerNormInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, int begin_norm_axis,
                        Meta& out, Meta& mean, Meta& variance) {
  check_floating(ctx, "x", x);
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, x.dims.rank());
  // Rows may be sharded; scale and bias are whole.
  const int64_t width = global_dims(ctx, 0, x).numel(begin, x.dims.rank());
  check_affine(ctx, "scale", scale, x, width, true);
  check_affine(ctx, "bias", bias, x, width, true);
  if (scale != nullptr && bias != nullptr) check_same_dtype(ctx, "scale", *scale, "bias", *bias);
  out = x;
  mean = {Dims(std::span<const int64_t>(x.dims.begin(), static_cast<size_t>(begin))), statistics_dtype(x.dtype)};
  variance = mean;
}

void RmsNormInferMeta(const OpContext& ctx, const Meta& x, const Meta& scale, Meta& out, Meta& invvar) {
  check_floating(ctx, "x", x);
  const int last = x.dims.rank() - 1;
  if (last < 0)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but needs a dim to normalise over", ctx.op, to_string(x));
  check_affine(ctx, "scale", &scale, x, x.dims[last], true);
  out = x;
  invvar = {Dims(std::span<const int64_t>(x.dims.begin(), static_cast<size_t>(last))), statistics_dtype(x.dtype)};
}

void BatchNormInferMeta(const OpContext& ctx, const Meta& x, const Meta& mean, const Meta& variance, const Meta* scale,
                        const Meta* bias, const std::string& data_format, Meta& out, Meta& mean_out, Meta& variance_out,
                        Meta& saved_mean, Meta& saved_variance) {
  check_floating(ctx, "x", x);
  if (data_format.size() < 2 || data_format[0] != 'N' || (data_format[1] != 'C' && data_format.back() != 'C')) {
    fail(ErrorCode::invalid_argument, "[{}] data_format is {}, but must be like NCHW or NHWC", ctx.op, data_format);
  }
  if (x.dims.rank() < 2) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must have at least the two dims [n, c]", ctx.op, to_string(x));
  }
  const int64_t channels = x.dims[data_format[1] == 'C' ? 1 : x.dims.rank() - 1];
  check_statistic(ctx, "mean", mean, x, channels);
  check_statistic(ctx, "variance", variance, x, channels);
  check_affine(ctx, "scale", scale, x, channels, false);
  check_affine(ctx, "bias", bias, x, channels, false);
  out = x;
  mean_out = variance_out = saved_mean = saved_variance = mean;
}

void DropoutInferMeta(const OpContext& ctx, const Meta& x, const Meta* seed_tensor, const Scalar& p,
                      const std::string& mode, Meta& out, Meta& mask) {
  check_floating(ctx, "x", x);
  check_dropout(ctx, p, mode);
  if (seed_tensor != nullptr) {
    check_index(ctx, "seed_tensor", *seed_tensor);
    if (seed_tensor->numel() != 1) {
      fail(ErrorCode::shape_mismatch, "[{}] seed_tensor is {}, but must have one element", ctx.op,
           to_string(*seed_tensor));
    }
  }
  out = x;
  mask = {x.dims, DType::uint8};
}

void CrossEntropyWithSoftmaxInferMeta(const OpContext& ctx, const Meta& input, const Meta& label, bool soft_label,
                                      int axis, Meta& softmax, Meta& loss) {
  loss = loss_of(ctx, "input", input, label, soft_label, axis);
  softmax = input;
}

void FusedLinearParamGradAddInferMeta(const OpContext& ctx, const Meta& x, const Meta& dout, const Meta* dweight,
                                      const Meta* dbias, bool multi_precision, bool has_bias, Meta& dweight_out,
                                      Meta& dbias_out) {
  check_floating(ctx, "dout", dout);
  check_same_dtype(ctx, "x", x, "dout", dout);
  const int last = x.dims.rank() - 1;
  bool fits = last >= 0 && dout.dims.rank() == x.dims.rank();
  for (int d = 0; fits && d < last; ++d) fits = x.dims[d] == dout.dims[d];
  if (!fits) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} and dout is {}, but all dims other than the last must be equal",
         ctx.op, to_string(x), to_string(dout));
  }
  const DType dtype = multi_precision ? statistics_dtype(dout.dtype) : dout.dtype;
  dweight_out = {Dims{x.dims[last], dout.dims[last]}, dtype};
  dbias_out = {Dims{has_bias ? dout.dims[last] : 0}, dtype};
  const auto check = [&](std::string_view name, const Meta* given, const Meta& result) {
    if (given == nullptr || *given == result) return;
    fail(given->dtype == result.dtype ? ErrorCode::shape_mismatch : ErrorCode::dtype_mismatch,
         "[{}] {} is {}, but what is added to it is {}", ctx.op, name, to_string(*given), to_string(result));
  };
  check("dweight", dweight, dweight_out);
  if (has_bias) check("dbias", dbias, dbias_out);
  check_size(ctx, dweight_out.dims, dtype);
}

void SoftmaxGradInferMeta(const OpContext& ctx, const Meta& out, const Meta& out_grad, int axis, Meta& x_grad) {
  check_floating(ctx, "out", out);
  normalize_axis(ctx.op, "axis", axis, out.dims.rank());
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = out;
}

void EmbeddingGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& weight, const Meta& out_grad,
                            Meta& weight_grad) {
  Meta out;
  EmbeddingInferMeta(ctx, x, weight, out);
  check_floating(ctx, "weight", weight);
  check_like_forward(ctx, "out_grad", out_grad, out);
  weight_grad = weight;
}

void LayerNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, const Meta& mean,
                            const Meta& variance, const Meta& out_grad, int begin_norm_axis, Meta& x_grad,
                            Meta& scale_grad, Meta& bias_grad) {
  Meta out, statistic;
  LayerNormInferMeta(ctx, x, scale, bias, begin_norm_axis, out, statistic, statistic);
  check_like_forward(ctx, "mean", mean, statistic);
  check_like_forward(ctx, "variance", variance, statistic);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
  if (scale != nullptr) scale_grad = *scale;
  if (bias != nullptr) bias_grad = *bias;
}

void RmsNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& scale, const Meta& invvar,
                          const Meta& out_grad, Meta& x_grad, Meta& scale_grad) {
  Meta out, statistic;
  RmsNormInferMeta(ctx, x, scale, out, statistic);
  check_like_forward(ctx, "invvar", invvar, statistic);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
  scale_grad = scale;
}

void BatchNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias,
                            const Meta& saved_mean, const Meta& saved_variance, const Meta& out_grad,
                            const std::string& data_format, Meta& x_grad, Meta& scale_grad, Meta& bias_grad) {
  Meta out, statistic;
  BatchNormInferMeta(ctx, x, saved_mean, saved_variance, scale, bias, data_format, out, statistic, statistic, statistic,
                     statistic);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
  if (scale != nullptr) scale_grad = *scale;
  if (bias != nullptr) bias_grad = *bias;
}

void DropoutGradInferMeta(const OpContext& ctx, const Meta& mask, const Meta& out_grad, const Scalar& p,
                          const std::string& mode, Meta& x_grad) {
  check_floating(ctx, "out_grad", out_grad);
  check_dropout(ctx, p, mode);
  check_like_forward(ctx, "mask", mask, {out_grad.dims, DType::uint8});
  x_grad = out_grad;
}

void CrossEntropyWithSoftmaxGradInferMeta(const OpContext& ctx, const Meta& label, const Meta& softmax,
                                          const Meta& loss_grad, bool soft_label, int axis, Meta& input_grad) {
  check_like_forward(ctx, "loss_grad", loss_grad, loss_of(ctx, "softmax", softmax, label, soft_label, axis));
  input_grad = softmax;
}

}  // namespace shard::meta
