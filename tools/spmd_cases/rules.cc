#include "rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "shard/core/error.h"

namespace spmd_cases {
namespace {

using shard::SlotDef;
using Conflict = PeerOptions::Conflict;
using Pending = PeerOptions::Pending;

/// Splits `text` at the first `mark`: returns the text before it, and leaves the text after it in
/// `text`.
std::string_view cut(std::string_view& text, std::string_view mark) {
  const size_t at = text.find(mark);
  std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + mark.size());
  const auto trim = [](std::string_view& s) {
    while (s.starts_with(' ')) s.remove_prefix(1);
    while (s.ends_with(' ')) s.remove_suffix(1);
  };
  trim(head);
  trim(text);
  return head;
}

SlotDef slot_of(std::string_view text) {
  if (text.ends_with("[]")) return {text.substr(0, text.size() - 2), SlotDef::Kind::list};
  if (text.ends_with('?')) return {text.substr(0, text.size() - 1), SlotDef::Kind::optional};
  return {text};
}

AttrDef attr_of(std::string_view kind, std::string_view text) {
  AttrDef attr;
  attr.name = cut(text, "=");
  if (kind == "bool") attr.kind = AttrDef::Kind::boolean;
  else if (kind == "int") attr.kind = AttrDef::Kind::integer;
  else if (kind == "float") attr.kind = AttrDef::Kind::number;
  else if (kind == "ints") attr.kind = AttrDef::Kind::integers;
  else if (kind != "any") throw std::logic_error(fmt::format("unknown kind '{}' of attribute", kind));
  if (!text.empty()) attr.fallback = nlohmann::json::parse(text);
  return attr;
}

constexpr std::string_view kUnary = "... -> ...";
constexpr std::string_view kBinary = "..., ... -> ...";
constexpr std::string_view kBinaryGrad = "..., ..., ... -> ..., ...";
constexpr std::string_view kReduceSum = "...{axis:sum} -> ...{-axis?keepdim}";
constexpr std::string_view kReduction = "x, ints axis=[], bool keepdim=false -> out";
constexpr std::string_view kTypedReduction = "x, ints axis, any dtype, bool keepdim -> out";
constexpr std::string_view kMatmulGrad =
    "... m? k ^transpose_x, ... k n? ^transpose_y, ... m? n? -> ... m? k ^transpose_x, ... k n? ^transpose_y";
constexpr std::string_view kMatrix = "... !m !n -> ... !m !n";

std::vector<Entry> elementwise_entries() {
  return {
      {.names =
           "elementwise_unary assign hardswish mish relu6 swish acos acosh asin asinh atan atanh bernoulli bitwise_not "
           "ceil celu clip conj cos "
           "cosh digamma elu erf erfinv exp expm1 fill floor gelu hardshrink hardsigmoid hardtanh label_smooth "
           "leaky_relu lgamma log log10 log1p "
           "log2 logical_not logit logsigmoid poisson pow reciprocal relu round rsqrt scale selu sigmoid sign silu sin "
           "sinh softplus softshrink "
           "softsign sqrt square stanh tan tanh tanh_shrink thresholded_relu trunc dropout abs isfinite isinf isnan",
       .signature = "x, ... -> out=x",
       .rule = kUnary},
      {.names = "cast", .signature = "x, ... -> out=x", .rule = kUnary, .peer = {.pending = Pending::pass}},
      {.names = "full_like zeros_like ones_like",
       .signature = "x, ... -> out=x",
       .rule = kUnary,
       .peer = {.untouched = 1}},
      {.names = "elementwise_binary add elementwise_add divide elementwise_div elementwise_pow floor_divide fmin "
                "heaviside maximum minimum multiply "
                "elementwise_mul remainder subtract elementwise_sub bitwise_and bitwise_or bitwise_xor fmax "
                "logical_and logical_or logical_xor "
                "not_equal equal less_than less_equal greater_than greater_equal",
       .signature = "x, y, ... -> out",
       .rule = kBinary,
       .shapes = broadcast_shapes,
       .peer = {.ones_whole = true}},
      {.names = "cos_grad exp_grad relu_grad rsqrt_grad silu_grad sin_grad square_grad pow_grad cast_grad tanh_grad "
                "sigmoid_grad gelu_grad sqrt_grad "
                "log_grad abs_grad",
       .signature = "x, out_grad, ... -> x_grad=x",
       .rule = "..., ... -> ...",
       .peer = {.visit = {1}}},
      {.names = "silu_grad",
       .signature = "x, out, out_grad, ... -> x_grad=x",
       .rule = "..., ..., ... -> ...",
       .peer = {.visit = {2}}},
      {.names = "add_grad subtract_grad multiply_grad divide_grad maximum_grad minimum_grad elementwise_pow_grad",
       .signature = "x, y, out_grad, any axis=-1 -> x_grad=x, y_grad=y",
       .rule = kBinaryGrad,
       .peer = {.visit = {2}, .ones_whole = true}},
      {.names = "divide_grad",
       .signature = "x, y, out, out_grad, any axis=-1 -> x_grad=x, y_grad=y",
       .rule = "..., ..., ..., ... -> ..., ...",
       .peer = {.visit = {3}, .ones_whole = true}},
      {.names = "swiglu",
       .signature = "x, y? -> out",
       .shapes = swiglu_shapes,
       .peer = {.ones_whole = true},
       .peer_rule = kBinary,
       .peer_check = check_swiglu},
      {.names = "swiglu_grad",
       .signature = "x, y?, out_grad -> x_grad=x, y_grad?=y",
       .rule = "cases::swiglu_grad",
       .peer = {.visit = {2}, .ones_whole = true},
       .peer_rule = kBinaryGrad,
       .peer_check = check_swiglu},
      {.names = "where",
       .signature = "condition, x, y -> out=condition",
       .peer = {.visit = {0, 1}},
       .peer_check = check_where},
      {.names = "where_grad",
       .signature = "condition, x, y, out_grad -> x_grad=x, y_grad=y",
       .rule = "..., ..., ..., ... -> ..., ...",
       .peer = {.visit = {0, 1, 3}},
       .peer_check = check_where},
      {.names = "default_data_parallel default_",
       .signature = "x[] -> out[]",
       .rule = "cases::data_parallel",
       .shapes = given_shapes,
       .flat = true,
       .outputs_given = true,
       .free_outputs = true},
      {.names = "replicated",
       .signature = "x[] -> out[]",
       .rule = "cases::replicated",
       .shapes = given_shapes,
       .flat = true,
       .outputs_given = true,
       .free_outputs = true},
  };
}

std::vector<Entry> reduction_entries() {
  const PeerOptions keeps{.keeps_outputs = true};
  return {
      {.names = "sum reduce_sum frobenius_norm squared_l2_norm mean",
       .signature = kReduction,
       .rule = kReduceSum,
       .shapes = reduction_shapes,
       .peer = keeps},
      {.names = "sum prod",
       .signature = kTypedReduction,
       .rule = kReduceSum,
       .shapes = reduction_shapes,
       .peer = keeps},
      {.names = "max reduce_max amax",
       .signature = kReduction,
       .rule = "...{axis:max} -> ...{-axis?keepdim}",
       .shapes = reduction_shapes,
       .peer = keeps},
      {.names = "min amin",
       .signature = kReduction,
       .rule = "...{axis:min} -> ...{-axis?keepdim}",
       .shapes = reduction_shapes,
       .peer = keeps},
      {.names = "prod",
       .signature = kReduction,
       .rule = "...{axis:prod} -> ...{-axis?keepdim}",
       .shapes = reduction_shapes,
       .peer = keeps},
      {.names = "any",
       .signature = kReduction,
       .rule = "...{axis:any} -> ...{-axis?keepdim}",
       .shapes = reduction_shapes,
       .peer = keeps},
      {.names = "all",
       .signature = kReduction,
       .rule = "...{axis:all} -> ...{-axis?keepdim}",
       .shapes = reduction_shapes,
       .peer = keeps},
      {.names = "sum_grad mean_grad",
       .signature = "x, out_grad, ints axis=[], bool keepdim=false, bool reduce_all=false -> x_grad=x",
       .rule = "..., ...{-axis?keepdim} -> ...",
       .peer = {.visit = {1}}},
      {.names = "max_grad min_grad amax_grad amin_grad prod_grad",
       .signature = "x, out, out_grad, ints axis=[], bool keepdim=false, bool reduce_all=false -> x_grad=x",
       .rule = "...{!axis}, ...{-axis?keepdim}, ...{-axis?keepdim} -> ...{!axis}",
       .peer = {.visit = {2}}},
      {.names = "argmax argmin",
       .signature = "x, int axis, bool keepdims, bool flatten, any dtype -> out",
       .rule = "CombinedArgMaxInferSpmd",
       .shapes = argmax_shapes},
      {.names = "argmax argmin",
       .signature = "x, int axis, bool keepdims, bool flatten -> out",
       .rule = "CombinedArgMaxInferSpmd",
       .shapes = argmax_shapes},
      {.names = "cumsum",
       .signature = "x, int axis, bool flatten=false, bool exclusive=false, bool reverse=false -> out",
       .shapes = cumsum_shapes},
      {.names = "cumsum_grad",
       .signature = "x, out_grad, int axis, bool flatten=false, bool exclusive=false, bool reverse=false -> x_grad=x",
       .rule = "cases::cumsum_grad",
       .peer = {.visit = {1}, .untouched = 1}},
      {.names = "numel",
       .signature = "x -> out",
       .shapes = scalar_shapes,
       .peer = {.untouched = 1},
       .peer_rule = "... -> "},
  };
}

std::vector<Entry> shape_entries() {
  return {
      {.names = "reshape reshape2",
       .signature = "x, ints shape -> out",
       .shapes = reshape_shapes,
       .peer = {.pending = Pending::pass},
       .peer_rule = "cases::leading_reshape",
       .free_outputs = true,
       .xshape = true,
       .open_sizes = true},
      {.names = "reshape_grad",
       .signature = "xshape, out_grad -> x_grad",
       .rule = "cases::reshape_grad",
       .shapes = reshape_grad_shapes,
       .peer = {.pending = Pending::pass},
       .answers = {1}},
      {.names = "flatten flatten_contiguous_range",
       .signature = "x, int start_axis, int stop_axis -> out",
       .shapes = flatten_shapes,
       .peer_rule = "cases::leading_reshape",
       .xshape = true},
      {.names = "squeeze squeeze2",
       .signature = "x, ints axis=[] -> out",
       .shapes = squeeze_shapes,
       .peer = {.ones_whole = true},
       .peer_rule = "cases::leading_reshape",
       .xshape = true},
      {.names = "unsqueeze unsqueeze2",
       .signature = "x, ints axis -> out",
       .shapes = unsqueeze_shapes,
       .peer = {.ones_whole = true},
       .peer_rule = "cases::leading_reshape",
       .xshape = true},
      {.names = "squeeze_grad unsqueeze_grad flatten_grad",
       .signature = "xshape, out_grad, ints axis=[] -> x_grad",
       .rule = "cases::squeeze_grad",
       .shapes = reshape_grad_shapes,
       .peer = {.pending = Pending::pass}},
      {.names = "transpose transpose2",
       .signature = "x, ints perm -> out",
       .shapes = transpose_shapes,
       .peer = {.pending = Pending::copy}},
      {.names = "transpose_grad",
       .signature = "out_grad, ints perm -> x_grad",
       .rule = "...{@perm} -> ...",
       .shapes = transpose_grad_shapes},
      {.names = "slice",
       .signature = "input, ints axes, ints starts, ints ends, ints infer_flags=[], ints decrease_axis=[] -> out",
       .shapes = slice_shapes,
       .peer = {.whole_claims = true},
       .peer_rule = "...{!axes} -> ...{!axes}"},
      {.names = "slice_grad",
       .signature = "input, out_grad, ints axes, ints starts, ints ends, ints infer_flags=[], ints decrease_axis=[] -> "
                    "input_grad",
       .rule = "cases::slice_grad",
       .shapes = strided_slice_shapes,
       .peer = {.visit = {1, 0}}},
      {.names = "strided_slice",
       .signature = "x, ints axes, ints starts, ints ends, ints strides -> out",
       .shapes = strided_slice_shapes},
      {.names = "strided_slice_grad",
       .signature = "x, out_grad, ints axes, ints starts, ints ends, ints strides -> x_grad",
       .rule = "...{!axes}, ...{!axes} -> ...{!axes}",
       .shapes = strided_slice_shapes,
       .peer = {.visit = {1, 0}}},
      {.names = "split",
       .signature = "x, ints sections, int axis -> out[]",
       .shapes = split_shapes,
       .peer = {.whole_claims = true},
       .flat = true},
      {.names = "split_with_num",
       .signature = "x, int num, int axis -> out[]",
       .shapes = split_shapes,
       .peer = {.whole_claims = true},
       .flat = true},
      {.names = "unbind", .signature = "x, int axis=0 -> out[]", .shapes = unbind_shapes, .flat = true},
      {.names = "concat",
       .signature = "x[], int axis=0 -> out",
       .shapes = concat_shapes,
       .peer = {.conflict = Conflict::align, .pending = Pending::pass, .keeps_outputs = true}},
      {.names = "split_grad split_with_num_grad",
       .signature = "out_grad[], int axis=0 -> x_grad",
       .rule = "[...{!axis}] -> ...{!axis}",
       .shapes = concat_shapes,
       .peer = {.conflict = Conflict::align, .pending = Pending::pass}},
      {.names = "concat_grad",
       .signature = "x[], out_grad, int axis=0 -> x_grad[]",
       .rule = "[...{!axis}], ...{!axis} -> [...{!axis}]",
       .shapes = concat_grad_shapes,
       .peer = {.conflict = Conflict::align, .pending = Pending::pass}},
      {.names = "stack",
       .signature = "x[], int axis=0 -> out",
       .shapes = stack_shapes,
       .peer = {.conflict = Conflict::align, .pending = Pending::pass, .keeps_outputs = true}},
      {.names = "stack_grad",
       .signature = "out_grad, int axis=0 -> x_grad[]",
       .rule = "...{+axis} -> [...]",
       .shapes = stack_grad_shapes},
      {.names = "tile", .signature = "x, ints repeat_times -> out", .shapes = tile_shapes, .peer_rule = "cases::tile"},
      {.names = "tile_grad", .signature = "x, out_grad, ints repeat_times -> x_grad=x", .rule = "cases::tile"},
      {.names = "expand_as expand_as_v2",
       .signature = "x, y?, ints target_shape=[] -> out",
       .shapes = expand_as_shapes,
       .peer = {.visit = {1}}},
      {.names = "expand_as_grad",
       .signature = "x, out_grad, ints target_shape=[] -> x_grad=x",
       .rule = "cases::expand_as_grad",
       .peer = {.visit = {1}}},
      {.names = "gather",
       .signature = "x, index, int axis=0 -> out",
       .shapes = gather_shapes,
       .peer = {.untouched = 2, .keeps_outputs = true}},
      {.names = "gather_grad",
       .signature = "x, index, out_grad, int axis=0 -> x_grad=x",
       .rule = "cases::gather_grad",
       .peer = {.visit = {2}, .untouched = 1}},
      {.names = "gather_nd", .signature = "x, index -> out", .rule = "GatherNdInferSpmd", .shapes = gather_nd_shapes},
      {.names = "gather_nd_grad", .signature = "x, index, out_grad -> x_grad=x", .rule = "cases::gather_nd_grad"},
      {.names = "scatter",
       .signature = "x, index, updates, bool overwrite=true -> out=x",
       .peer = {.visit = {1, 2}},
       .peer_rule = "cases::scatter"},
      {.names = "scatter_grad",
       .signature = "index, updates, out_grad, bool overwrite=true -> x_grad, updates_grad",
       .rule = "cases::scatter_grad",
       .shapes = scatter_grad_shapes,
       .peer = {.visit = {2}, .untouched = 2}},
      {.names = "triu tril",
       .signature = "x, int diagonal=0 -> out=x",
       .peer_rule = kMatrix,
       .peer_check = check_last_two},
      {.names = "tril_triu",
       .signature = "x, int diagonal=0, bool lower=false -> out=x",
       .rule = kUnary,
       .peer_rule = kMatrix,
       .peer_check = check_last_two},
      {.names = "triu_grad tril_grad tril_triu_grad",
       .signature = "out_grad, ... -> x_grad=out_grad",
       .rule = kUnary,
       .peer_rule = kMatrix,
       .peer_check = check_last_two},
      {.names = "one_hot",
       .signature = "x, any num_classes -> out",
       .shapes = one_hot_shapes,
       .peer = {.untouched = 1}},
  };
}

std::vector<Entry> nn_entries() {
  return {
      {.names = "matmul matmul_v2",
       .signature = "x, y, bool transpose_x=false, bool transpose_y=false -> out",
       .shapes = matmul_shapes,
       .peer = {.keeps_outputs = true},
       .peer_reverse = Conflict::error,
       .peer_check = check_matmul},
      {.names = "matmul_grad",
       .signature = "x, y, out_grad, bool transpose_x=false, bool transpose_y=false -> x_grad=x, y_grad=y",
       .rule = kMatmulGrad,
       .peer_rule = "cases::matmul_grad"},
      {.names = "fused_linear_param_grad_add",
       .signature =
           "x, dout, dweight?, dbias?, bool multi_precision=true, bool has_bias=true -> dweight_out, dbias_out",
       .rule = "cases::linear_grad",
       .shapes = linear_grad_shapes,
       .peer = {.visit = {0, 1}, .untouched = 12}},
      {.names = "softmax log_softmax",
       .signature = "x, int axis=-1 -> out=x",
       .rule = "...{*axis} -> ...{*axis}",
       .peer = {.conflict = Conflict::error}},
      {.names = "softmax_grad log_softmax_grad",
       .signature = "out, out_grad, int axis=-1 -> x_grad=out",
       .rule = "...{*axis}, ...{*axis} -> ...{*axis}",
       .peer = {.ones_whole = true}},
      {.names = "cross_entropy_with_softmax softmax_with_cross_entropy",
       .signature = "input, label, bool soft_label=false, bool use_softmax=true, bool numeric_stable_mode=true, int "
                    "ignore_index=-100, int axis=-1 "
                    "-> softmax, loss",
       .shapes = cross_entropy_shapes,
       .peer = {.visit_outputs = {1, 0}, .whole_claims = true},
       .peer_rule = "cases::cross_entropy",
       .peer_check = check_cross_entropy},
      {.names = "cross_entropy_with_softmax_grad",
       .signature = "label, softmax, loss_grad, bool soft_label=false, bool use_softmax=true, bool "
                    "numeric_stable_mode=true, int ignore_index=-100, "
                    "int axis=-1 -> input_grad=softmax",
       .rule = "cases::cross_entropy_grad",
       .peer = {.whole_claims = true}},
      {.names = "embedding lookup_table_v2",
       .signature = "x, weight, int padding_idx=-1, bool sparse=false -> out",
       .shapes = embedding_shapes,
       .peer = {.conflict = Conflict::error, .keeps_outputs = true},
       .peer_reverse = Conflict::error,
       .peer_check = check_embedding},
      {.names = "embedding_grad",
       .signature = "x, weight, out_grad, int padding_idx=-1, bool sparse=false -> weight_grad=weight",
       .rule = "..., v d, ... d -> v d",
       .peer = {.conflict = Conflict::error, .visit = {0, 2}},
       .peer_rule = "cases::embedding_grad"},
      {.names = "layer_norm",
       .signature = "x, scale?, bias?, float epsilon, int begin_norm_axis -> out, mean, variance",
       .shapes = layer_norm_shapes,
       .peer = {.whole_claims = true},
       .peer_check = check_normalized_scale},
      {.names = "layer_norm_grad",
       .signature = "x, scale?, bias?, mean, variance, out_grad, float epsilon, int begin_norm_axis -> x_grad=x, "
                    "scale_grad=scale, bias_grad=bias",
       .rule = "...{*begin_norm_axis..}, 1, 1, ...{-begin_norm_axis..}, ...{-begin_norm_axis..}, "
               "...{*begin_norm_axis..} -> "
               "...{*begin_norm_axis..}, 1:sum, 1:sum",
       .peer = {.conflict = Conflict::align, .visit = {0, 3, 4, 5}}},
      {.names = "fused_rms_norm rms_norm",
       .signature = "x, scale, float epsilon -> out, invvar",
       .rule = "... !d, 1 -> ... !d, ...",
       .shapes = rms_norm_shapes,
       .peer = {.whole_claims = true}},
      {.names = "fused_rms_norm_grad rms_norm_grad",
       .signature = "x, scale, invvar, out_grad, float epsilon -> x_grad=x, scale_grad=scale",
       .rule = "... !d, 1, ..., ... !d -> ... !d, 1:sum",
       .peer = {.conflict = Conflict::align, .visit = {0, 2, 3}}},
      {.names = "flash_attention flash_attn",
       .signature = "q, k, v, fixed_seed_offset?, attn_mask?, float dropout=0.0, bool causal=false, bool "
                    "return_softmax=false, bool is_test=false, "
                    "any rng_name=\"\" -> out, softmax?, softmax_lse, seed_offset?",
       .rule = "cases::flash_attention",
       .shapes = flash_attention_shapes,
       .peer = {.visit = {0, 1}, .visit_outputs = {0, 2}, .untouched = 24},
       .free_outputs = true},
      {.names = "flash_attention_grad flash_attn_grad",
       .signature = "q, k, v, out, softmax_lse, seed_offset?, attn_mask?, out_grad, float dropout=0.0, bool "
                    "causal=false -> q_grad=q, k_grad=k, v_grad=v",
       .rule = "cases::flash_attention",
       .peer = {.visit = {0, 1, 3, 7, 4}, .untouched = 96}},
      {.names = "fused_rotary_position_embedding",
       .signature = "q, k?, v?, sin?, cos?, position_ids?, bool use_neox_rotary_style=true, bool time_major=false, "
                    "float rotary_emb_base=10000.0 "
                    "-> out_q=q, out_k?=k, out_v?=v",
       .rule = "cases::rope",
       .peer = {.visit = {0, 1, 2, 5}, .whole_claims = true}},
      {.names = "fused_rotary_position_embedding_grad",
       .signature = "sin?, cos?, position_ids?, out_q_grad, out_k_grad?, out_v_grad?, bool use_neox_rotary_style=true, "
                    "bool time_major=false, "
                    "float rotary_emb_base=10000.0 -> q_grad, k_grad?, v_grad?",
       .rule = "cases::rope_grad",
       .shapes = rope_grad_shapes,
       .peer = {.visit = {3, 4, 5, 2}, .whole_claims = true}},
      {.names = "adamw_ adam_ adamw adam",
       .signature = "param, grad, learning_rate, moment1, moment2, beta1_pow, beta2_pow, master_param?, skip_update?, "
                    "... -> param_out=param, "
                    "moment1_out=moment1, moment2_out=moment2, beta1_pow_out=beta1_pow, beta2_pow_out=beta2_pow, "
                    "master_param_out?=master_param",
       .peer_rule = "cases::adam"},
      {.names = "sgd_ sgd",
       .signature = "param, learning_rate, grad, master_param?, bool multi_precision=false -> param_out=param, "
                    "master_param_out?=master_param",
       .peer = {.visit = {0, 2}, .untouched = 2, .ones_whole = true}},
      {.names = "add_n", .signature = "inputs[] -> out", .shapes = broadcast_shapes, .peer_rule = "cases::replicated"},
  };
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list;
    for (const auto& part : {elementwise_entries(), reduction_entries(), shape_entries(), nn_entries()})
      list.insert(list.end(), part.begin(), part.end());
    return list;
  }();
  return all;
}

std::vector<std::string_view> split_names(std::string_view names) {
  std::vector<std::string_view> list;
  while (!names.empty()) list.push_back(cut(names, " "));
  return list;
}

}  // namespace

Signature::Signature(std::string_view signature) : text(signature) {
  std::string_view rest = signature;
  std::string_view arguments = cut(rest, "->");
  while (!arguments.empty()) {
    // A list in brackets is a default value, and contains commas.
    const size_t bracket = arguments.find("=[");
    const size_t comma = arguments.find(',');
    std::string_view item;
    if (bracket != std::string_view::npos && bracket < comma) {
      const size_t end = arguments.find(']', bracket) + 1;
      item = arguments.substr(0, end);
      arguments.remove_prefix(end);
      cut(arguments, ",");
    } else {
      item = cut(arguments, ",");
    }
    if (item == "...") {
      more_attrs = true;
    } else if (item.find(' ') == std::string_view::npos) {
      inputs.push_back(slot_of(item));
    } else {
      const std::string_view kind = cut(item, " ");
      attrs.push_back(attr_of(kind, item));
      attr_names.push_back(attrs.back().name);
    }
  }
  while (!rest.empty()) {
    std::string_view item = cut(rest, ",");
    const SlotDef slot = slot_of(cut(item, "="));
    outputs.push_back({slot, item});
    output_slots.push_back(slot);
  }
}

const shard::spmd::AttrValue& Call::attr(std::string_view name) const {
  const auto found = std::find(signature.attr_names.begin(), signature.attr_names.end(), name);
  if (found == signature.attr_names.end())
    shard::fail(shard::ErrorCode::internal, "({}) has no attribute '{}'", signature.text, name);
  return attrs[static_cast<size_t>(found - signature.attr_names.begin())];
}

std::vector<const Entry*> find_entries(std::string_view name) {
  std::vector<const Entry*> found;
  for (const Entry& entry : entries()) {
    const auto names = split_names(entry.names);
    if (std::find(names.begin(), names.end(), name) != names.end()) found.push_back(&entry);
  }
  return found;
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) {
    for (std::string_view name : split_names(entry.names)) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace spmd_cases
