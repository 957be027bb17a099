// Layers that other libraries have as one kernel, made of other ops.
#include <limits>

#include "shard/composites/fuses.h"
#include "shard/core/error.h"
#include "shard/ops/api.h"
#include "shard/ops/fused_ops.h"

namespace shard::external {
namespace {

void check_rank(const char* op, const char* name, const Tensor& x, int rank) {
  if (x.dims().rank() == rank) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} has the shape {}, but must have {} dims", op, name, to_string(x.dims()),
       rank);
}

/// x + y, where only y broadcasts.
Tensor add_broadcast(const char* op, const Tensor& x, const char* name, const Tensor& y) {
  const Tensor sum = add(x, y);
  if (sum.dims() == x.dims()) return sum;
  fail(ErrorCode::shape_mismatch, "[{}] {} has the shape {}, but must broadcast to {}", op, name, to_string(y.dims()),
       to_string(x.dims()));
}

}  // namespace

Tensor fused_gemm_epilogue(const Tensor& x, const Tensor& y, const Tensor& bias, bool trans_x, bool trans_y,
                           const std::string& activation) {
  check_rank("fused_gemm_epilogue", "bias", bias, 1);
  const auto multiplied = [&] { return matmul(x, y, trans_x, trans_y); };
  const auto finished = [&](const Tensor& product) {
    const Tensor out = add_broadcast("fused_gemm_epilogue", product, "bias", bias);
    if (activation == "none") return out;
    if (activation == "relu") return relu(out);
    if (activation == "gelu") return gelu(out, /*approximate=*/true);
    fail(ErrorCode::invalid_argument, "[fused_gemm_epilogue] activation is {}, but must be none, relu or gelu",
         activation);
  };
  const int last = x.defined() ? x.dims().rank() - 1 : 0;
  const int64_t terms = last >= 1 ? x.dims()[trans_x ? last - 1 : last] : 0;
  const int64_t elements = terms == 0 ? 0 : x.dims().numel() / terms * bias.dims().numel();
  const auto kind = activation == "gelu" ? call::LoopKind::functions : call::LoopKind::arithmetic;
  return fuses(elements, x, y, bias) ? call::run_fused(multiplied, finished, kind) : finished(multiplied());
}

Tensor fused_bias_act(const Tensor& x, const Tensor& bias, const Tensor& dequant_scales, const Tensor& shift,
                      const Tensor& smooth, const std::string& act_method, const std::string&, float quant_scale, int,
                      float, float) {
  if (dequant_scales.defined() || shift.defined() || smooth.defined() || quant_scale >= 0) {
    fail(ErrorCode::invalid_argument,
         "[fused_bias_act] quantisation is not supported: pass no dequant_scales, shift and smooth, and a quant_scale "
         "of -1");
  }
  const int64_t elements = x.defined() ? x.dims().numel() : 0;
  const auto sum_of = [&] { return bias.defined() ? add_broadcast("fused_bias_act", x, "bias", bias) : x; };
  const auto activated = [&](Tensor (*activation)(const Tensor&)) {
    const auto calls = [&](const Tensor&) { return activation(sum_of()); };
    return bias.defined() && fuses(elements, x, bias) ? call::run_fused({}, calls, call::LoopKind::functions)
                                                      : calls({});
  };
  if (act_method == "gelu") return activated([](const Tensor& sum) { return gelu(sum); });
  if (act_method == "relu") return activated([](const Tensor& sum) { return relu(sum); });
  if (act_method == "silu" || act_method == "swish") return activated([](const Tensor& sum) { return silu(sum); });
  const Tensor sum = sum_of();
  if (act_method == "swiglu") return swiglu(sum, {});
  if (act_method == "geglu") {
    const std::vector<Tensor> halves = split_with_num(sum, 2, -1);
    return multiply(gelu(halves[0]), halves[1]);
  }
  fail(ErrorCode::invalid_argument,
       "[fused_bias_act] act_method is {}, but must be gelu, relu, silu, swish, swiglu or geglu", act_method);
}

Tensor fused_dropout_add(const Tensor& x, const Tensor& y, const Tensor& seed_tensor, const Scalar& p, bool is_test,
                         const std::string& mode, int seed, bool fix_seed) {
  if (x.dims() != y.dims()) {
    fail(ErrorCode::shape_mismatch, "[fused_dropout_add] x has the shape {} and y {}, but their shapes must be equal",
         to_string(x.dims()), to_string(y.dims()));
  }
  return add(dropout(x, seed_tensor, p, is_test, mode, seed, fix_seed), y);
}

std::tuple<Tensor, Tensor> fused_bias_residual_layernorm(const Tensor& x, const Tensor& bias, const Tensor& residual,
                                                         const Tensor& norm_weight, const Tensor& norm_bias,
                                                         float epsilon, float residual_alpha, int begin_norm_axis,
                                                         float quant_scale, int, float, float) {
  constexpr const char* op = "fused_bias_residual_layernorm";
  if (quant_scale > 0)
    fail(ErrorCode::invalid_argument, "[{}] quantisation is not supported: pass a quant_scale of 0 or -1", op);
  const auto summed = [&](const Tensor&) {
    const Tensor sum = bias.defined() ? add_broadcast(op, x, "bias", bias) : x;
    return residual.defined() ? add_broadcast(op, sum, "residual", scale(residual, residual_alpha)) : sum;
  };
  const bool fused = x.defined() && residual.defined() && fuses(x.dims().numel(), x, bias, residual);
  const Tensor sum = fused ? call::run_fused({}, summed, call::LoopKind::arithmetic) : summed({});
  return {layer_norm(sum, norm_weight, norm_bias, epsilon, begin_norm_axis), sum};
}

Tensor fused_softmax_mask(const Tensor& x, const Tensor& mask) {
  check_rank("fused_softmax_mask", "x", x, 4);
  check_rank("fused_softmax_mask", "mask", mask, 4);
  return softmax(add_broadcast("fused_softmax_mask", x, "mask", mask), -1);
}

Tensor fused_softmax_mask_upper_triangle(const Tensor& X) {
  check_rank("fused_softmax_mask_upper_triangle", "X", X, 4);
  const Tensor seen = not_equal(tril(full_like(X, 1), 0), full_like(X, 0));
  return softmax(where(seen, X, full_like(X, -std::numeric_limits<double>::infinity())), -1);
}

}  // namespace shard::external
