// infer_meta of normalisations of images by group or by channel. Other ones are in nn.cc.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

void check_weight(const OpContext& ctx, std::string_view name, const Meta* weight, const Meta& x, int64_t channels) {
  if (weight == nullptr) return;
  if (weight->dtype != x.dtype && weight->dtype != statistics_dtype(x.dtype)) {
    fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but for x, which is {}, it must be {}; cast it first", ctx.op, name,
         to_string(*weight), to_string(x), to_string(statistics_dtype(x.dtype)));
  }
  if (weight->dims == Dims{channels}) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but for x, which is {}, it must have the shape [{}]", ctx.op, name,
       to_string(*weight), to_string(x), channels);
}

/// Images [n, c, ...], or [n, ..., c] for a data_format that ends with C.
int64_t channels_of(const OpContext& ctx, const Meta& x, const std::string& data_format) {
  check_floating(ctx, "x", x);
  if (data_format.size() < 2 || data_format[0] != 'N' || (data_format[1] != 'C' && data_format.back() != 'C'))
    fail(ErrorCode::invalid_argument, "[{}] data_format is {}, but must be like NCHW or NHWC", ctx.op, data_format);
  if (x.dims.rank() < 2)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must have at least the two dims [n, c]", ctx.op, to_string(x));
  return x.dims[data_format[1] == 'C' ? 1 : x.dims.rank() - 1];
}

void infer(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, int64_t channels, int64_t groups,
           Meta& y, Meta& mean, Meta& variance) {
  check_weight(ctx, "scale", scale, x, channels);
  check_weight(ctx, "bias", bias, x, channels);
  y = x;
  mean = variance = {Dims{x.dims[0], groups}, statistics_dtype(x.dtype)};
}

void infer_grad(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, const Meta& statistic,
                const Meta& mean, const Meta& variance, const Meta& y_grad, Meta& x_grad, Meta& scale_grad,
                Meta& bias_grad) {
  check_like_forward(ctx, "the mean", mean, statistic);
  check_like_forward(ctx, "the variance", variance, statistic);
  check_like_forward(ctx, "y_grad", y_grad, x);
  x_grad = x;
  if (scale != nullptr) scale_grad = *scale;
  if (bias != nullptr) bias_grad = *bias;
}

}  // namespace

void GroupNormInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, int groups,
                        const std::string& data_format, Meta& y, Meta& mean, Meta& variance) {
  const int64_t channels = channels_of(ctx, x, data_format);
  // Of local shards, the groups may be shared with other ranks.
  if (ctx.local == nullptr && (groups < 1 || channels % groups != 0)) {
    fail(ErrorCode::invalid_argument, "[{}] groups is {}, but must divide the {} channels of x, which is {}", ctx.op,
         groups, channels, to_string(x));
  }
  infer(ctx, x, scale, bias, channels, groups, y, mean, variance);
}

void InstanceNormInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, Meta& y,
                           Meta& saved_mean, Meta& saved_variance) {
  const int64_t channels = channels_of(ctx, x, "NCHW");
  infer(ctx, x, scale, bias, channels, channels, y, saved_mean, saved_variance);
}

void GroupNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias, const Meta& mean,
                            const Meta& variance, const Meta& y_grad, int groups, const std::string& data_format,
                            Meta& x_grad, Meta& scale_grad, Meta& bias_grad) {
  Meta y, statistic;
  GroupNormInferMeta(ctx, x, scale, bias, groups, data_format, y, statistic, statistic);
  infer_grad(ctx, x, scale, bias, statistic, mean, variance, y_grad, x_grad, scale_grad, bias_grad);
}

void InstanceNormGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* scale, const Meta* bias,
                               const Meta& saved_mean, const Meta& saved_variance, const Meta& y_grad, Meta& x_grad,
                               Meta& scale_grad, Meta& bias_grad) {
  Meta y, statistic;
  InstanceNormInferMeta(ctx, x, scale, bias, y, statistic, statistic);
  infer_grad(ctx, x, scale, bias, statistic, saved_mean, saved_variance, y_grad, x_grad, scale_grad, bias_grad);
}

}  // namespace shard::meta
