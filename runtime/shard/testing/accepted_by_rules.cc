// Known gaps of placement rules, each with its reason; shard_verify_rules counts them separately.
// The cases are in op_cases_*.cc.
#include "shard/core/reduce_type.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

const std::vector<std::string> kPending(kReduceTypeNames.begin(), kReduceTypeNames.end());
template <class... Ts>
std::vector<DType> list_of(Types<Ts...>) {
  return {dtype_of<Ts>...};
}
const std::vector<DType> kNumeric = list_of(NumberTypes{});
const std::vector<DType> kIntegers = list_of(IntTypes{});

}  // namespace

std::vector<Accepted> accepted_by_rules() {
  using What = Accepted::What;
  std::vector<Accepted> all = {
      {What::move,
       "*",
       {"any", "all"},
       "numbers pending with any or all are 0 or 1, for which more commutes than a rule can know of numbers",
       kNumeric},
      {What::move,
       "*",
       kPending,
       "of truth values sum, max and any are one reduction and min, prod and all another; rules distinguish the names",
       {DType::boolean}},
      {What::refusal,
       "*",
       {"any", "all"},
       "a result that need not be 0 or 1 cannot be written back into what is pending with any or all",
       kNumeric},
      {What::refusal,
       "*",
       {"avg"},
       "a result cannot be written back into a pending average of integers, which may wrap around",
       kIntegers},
      {What::refusal,
       "update_loss_scaling_",
       {"avg"},
       "its counts are integers, whose pending average may wrap around"},
      {What::refusal,
       "average_accumulates_",
       {"avg"},
       "its counts are integers, whose pending average may wrap around"},
      {What::move,
       "*",
       {"avg"},
       "an average of integers is truncated, and a replicated integer times the number of ranks may wrap around",
       kIntegers},
      {What::move,
       "add",
       {"max", "min"},
       "c added to a pending maximum, where c is replicated: no kind of commutation is monotone in one argument"},
      {What::move,
       "subtract",
       {"max", "min"},
       "as for add; and a maximum that is subtracted becomes a minimum, which no kind expresses"},
      {What::move,
       "divide",
       {"max", "min", "prod"},
       "monotone only for divisors of one sign, which a rule does not know"},
      {What::move, "multiply", {"prod"}, "an op declares one kind, and multiply is multilinear"},
      {What::move, "pow", {"prod"}, "a product's power is exact only where nothing overflows"},
      {What::move, "rsqrt", {"min"}, "a falling function: its minimum becomes a maximum, which no kind expresses"},
      {What::move,
       "scale",
       {"max", "min"},
       "an op declares one kind, and scale is linear; the sign of the factor decides between max and min"},
      {What::move, "scale", {"avg"}, "an average commutes with a bias too, but the guard does not see the type"},
      {What::move,
       "cast",
       {"sum", "max", "min", "prod", "avg"},
       "conversions of integers commute only where nothing wraps or is truncated; those of floats declare linear"},
      {What::move,
       "sum",
       {"sum"},
       "in the wider dtype of the sum integers do not wrap as the pending sum does (SumKeepsDType)",
       {DType::int32, DType::uint8}},
      {What::move, "prod", kPending,
       "prod declares nothing: floats round products differently, and integers change their dtype"},
      {What::move, "where", kPending,
       "pending values beside a replicated condition: no kind states which arguments are only read"},
      {What::move, "gather", kPending,
       "pending values beside a replicated index: no kind states which arguments are only read"},
      {What::move, "masked_select", kPending,
       "pending values beside a replicated mask: no kind states which arguments are only read"},
      {What::move, "scatter", kPending,
       "pending values beside a replicated index: no kind states which arguments are only read"},
      {What::move, "grid_sample", kPending,
       "linear in the images, beside the places: no kind states which arguments are only read"},
      {What::move, "grid_sample_grad", kPending,
       "linear in the gradient, beside images and places: no kind states which arguments are only read"},
      {What::move, "top_p_sampling", kPending,
       "a pending threshold, which has no effect where ps is 0, as in the cases"},
      {What::move, "unpool", kPending,
       "pending values beside replicated places: no kind states which arguments are only read"},
      {What::move, "roi_align", kPending,
       "linear in the images, beside boxes: no kind states which arguments are only read"},
      {What::move, "roi_align_grad", kPending,
       "linear in the gradient, beside boxes; and no element of x is read, but the rule has it reduced"},
      {What::move, "roi_pool", kPending,
       "monotone in the images, beside boxes and with the places of the largest: no kind states this"},
      {What::move, "send_u_recv", kPending,
       "linear or monotone in the rows, as the reduction says, beside indices: no kind states this"},
      {What::move, "send_ue_recv", kPending,
       "linear or monotone in rows and edges, as the attributes say, beside indices: no kind states this"},
      {What::move, "send_uv", kPending,
       "linear or multilinear in the rows, as the message says, beside indices: no kind states this"},
      {What::move, "segment_pool", kPending,
       "linear or monotone in the rows, as the reduction says, beside ids: no kind states this"},
      {What::move, "bincount", kPending,
       "linear in the weights, beside the numbers: no kind states which arguments are only read"},
      {What::move, "gather_tree", kPending,
       "pending ids beside replicated parents: no kind states which arguments are only read"},
      {What::move, "warpctc_grad", kPending,
       "a pending gradient beside replicated lengths: no kind states which arguments are only read"},
      {What::move, "rnn_grad", kPending,
       "linear in the gradients, beside weights and what was kept: no kind states which arguments are only read"},
      {What::move, "uniform_inplace", kPending, "no element of x is read, but the rule has it reduced"},
      {What::move, "gaussian_inplace", kPending, "no element of x is read, but the rule has it reduced"},
      {What::move, "exponential", kPending, "no element of x is read, but the rule has it reduced"},
      {What::move, "expand_as", kPending, "no element of y is read, but the rule has it reduced"},
      {What::move,
       "fused_linear_param_grad_add",
       {"sum", "avg"},
       "linear in one of its arguments, but the bias gradient is not in the other"},
      {What::move, "embedding", kPending,
       "a pending weight beside replicated ids: no kind states which arguments are only read"},
      {What::move, "dropout", kPending, "linear in x, but the mask, an output too, is not a contribution"},
      {What::move,
       "cross_entropy_with_softmax",
       {"min"},
       "the logarithm of given probabilities falls, which no kind expresses"},
      {What::move,
       "layer_norm",
       {"sum", "avg", "max", "min"},
       "a pending bias: no kind is linear or monotone in one argument"},
      {What::move, "sync_batch_norm", kPending,
       "running statistics are updated linearly, but the op as a whole commutes with nothing"},
      {What::move, "batch_norm", kPending,
       "running statistics are updated linearly, but the op as a whole commutes with nothing"},
      {What::move,
       "softmax_grad",
       {"sum", "avg"},
       "a pending gradient beside a replicated softmax: no kind states which arguments are only read"},
      {What::move,
       "log_softmax_grad",
       {"sum", "avg"},
       "a pending gradient beside a replicated log_softmax: no kind states which arguments are only read"},
      {What::move,
       "layer_norm_grad",
       {"sum", "avg"},
       "linear in the gradient, beside x and its statistics: no kind states which arguments are only read"},
      {What::move, "rms_norm", {"sum", "avg"}, "linear in the scale, but invvar, an output too, is not a contribution"},
      {What::move,
       "rms_norm_grad",
       {"sum", "avg"},
       "linear in the gradient, beside x and invvar: no kind states which arguments are only read"},
      {What::move, "embedding_grad", kPending,
       "a pending gradient beside replicated ids; and no element of weight is read, but the rule reshards it and "
       "reduced"},
      {What::move, "dropout_grad", kPending,
       "a pending gradient beside a replicated mask: no kind states which arguments are only read"},
      {What::move, "cross_entropy_with_softmax_grad", kPending,
       "linear in the gradient, and of hard labels affine in softmax: no kind states which arguments are only read"},
      {What::move,
       "batch_norm_grad",
       {"sum", "avg"},
       "with constant statistics linear in the gradient: no kind states which arguments are only read"},
      {What::move,
       "label_smooth_grad",
       {"max", "min"},
       "it is implemented with scale, which is linear; the sign of the factor decides between max and min"},
      {What::move, "sgd_", kPending,
       "a step is linear, but a pending gradient must be summed for a parameter that is not pending"},
      {What::move, "adamw_", kPending, "powers of the betas are scaled, but the op as a whole commutes with nothing"},
      {What::move, "average_accumulates_", kPending,
       "sums are added or moved by counts, so that the op as a whole commutes with nothing"},
      {What::move, "add_n", {"max", "min"}, "as for add"},
      {What::move, "maximum", {"min"}, "a maximum with c of a pending minimum, where c is replicated: as for add"},
      {What::move, "minimum", {"max"}, "a minimum with c of a pending maximum, where c is replicated: as for add"},
      {What::move, "elementwise_pow", kPending, "monotone for positive bases alone, which a rule does not know"},
      {What::move, "pow", {"max", "min"}, "monotone for odd powers alone"},
      {What::move, "abs", {"prod"}, "products are exact only where nothing overflows"},
      {What::move, "square", {"prod"}, "products are exact only where nothing overflows"},
      {What::move, "label_smooth", kPending, "a mean of label and prior: no kind is affine"},
      {What::move, "bitwise_not", kPending,
       "a falling function, whose maximum becomes a minimum, which no kind expresses"},
      {What::move, "all", kPending,
       "whether numbers are 0 commutes with more reductions than a rule can know of their type"},
      {What::move, "any", kPending,
       "whether numbers are 0 commutes with more reductions than a rule can know of their type"},
      {What::move, "equal", kPending,
       "a comparison turns a pending maximum into a pending any: no kind changes the type"},
      {What::move, "not_equal", kPending,
       "a comparison turns a pending maximum into a pending any: no kind changes the type"},
      {What::move, "less_than", kPending,
       "a comparison turns a pending maximum into a pending any: no kind changes the type"},
      {What::move, "less_equal", kPending,
       "a comparison turns a pending maximum into a pending any: no kind changes the type"},
      {What::move, "greater_than", kPending,
       "a comparison turns a pending maximum into a pending any: no kind changes the type"},
      {What::move, "greater_equal", kPending,
       "a comparison turns a pending maximum into a pending any: no kind changes the type"},
      {What::move, "logical_and", kPending,
       "reductions of numbers become reductions of their truth or bits: no kind changes the type"},
      {What::move, "logical_or", kPending,
       "reductions of numbers become reductions of their truth or bits: no kind changes the type"},
      {What::move, "logical_xor", kPending,
       "reductions of numbers become reductions of their truth or bits: no kind changes the type"},
      {What::move, "logical_not", kPending,
       "reductions of numbers become reductions of their truth or bits: no kind changes the type"},
      {What::move, "bitwise_and", kPending,
       "reductions of numbers become reductions of their truth or bits: no kind changes the type"},
      {What::move, "bitwise_or", kPending,
       "reductions of numbers become reductions of their truth or bits: no kind changes the type"},
      {What::move, "bitwise_xor", kPending,
       "reductions of numbers become reductions of their truth or bits: no kind changes the type"},
  };
  const auto add = [&](std::initializer_list<const char*> ops, const std::vector<std::string>& types,
                       const char* reason) {
    for (const char* op : ops) all.push_back({What::move, op, types, reason});
  };
  add({"erf_grad",        "expm1_grad",       "log1p_grad",
       "log2_grad",       "log10_grad",       "tan_grad",
       "asin_grad",       "acos_grad",        "atan_grad",
       "sinh_grad",       "cosh_grad",        "asinh_grad",
       "acosh_grad",      "atanh_grad",       "reciprocal_grad",
       "logit_grad",      "leaky_relu_grad",  "elu_grad",
       "celu_grad",       "selu_grad",        "relu6_grad",
       "hardtanh_grad",   "hardsigmoid_grad", "hardswish_grad",
       "hardshrink_grad", "softshrink_grad",  "thresholded_relu_grad",
       "softplus_grad",   "softsign_grad",    "logsigmoid_grad",
       "mish_grad",       "swish_grad",       "tanh_shrink_grad",
       "stanh_grad"},
      kPending,
      "a pending gradient times a slope: monotone where all slopes have one sign, and exact where they are equal, as "
      "are "
      "those of whole numbers of some functions; a rule knows neither");
  std::vector<std::string> any_state = kPending;
  any_state.push_back("shard");
  add({"conv2d_grad", "depthwise_conv2d_grad", "conv3d_grad", "conv2d_transpose_grad", "conv3d_transpose_grad",
       "pool2d_grad", "pool3d_grad", "pool2d_double_grad", "pool3d_double_grad", "max_pool2d_with_index_grad",
       "max_pool3d_with_index_grad", "max_pool2d_with_index_double_grad", "max_pool3d_with_index_double_grad",
       "group_norm_grad", "instance_norm_grad", "bce_loss_grad", "log_loss_grad", "huber_loss_grad", "nll_loss_grad"},
      kPending, "a pending gradient beside replicated arguments: no kind states which arguments are only read");
  add({"margin_cross_entropy_grad"}, kPending,
      "linear in the gradient, and affine in softmax: no kind states which arguments are only read");
  add({"pool2d", "pool3d", "max_pool2d_with_index", "max_pool3d_with_index"}, kPending,
      "linear or monotone by pooling_type, for which an op declares one kind");
  add({"linear_interp", "bilinear_interp", "trilinear_interp", "bicubic_interp", "nearest_interp", "linear_interp_grad",
       "bilinear_interp_grad", "trilinear_interp_grad", "bicubic_interp_grad", "nearest_interp_grad"},
      kPending,
      "linear, and exact or monotone for the weights of some cases, but the rule of pooling keeps nothing pending");
  add({"prelu", "spectral_norm", "fused_bias_residual_layernorm"}, kPending,
      "composites, which are monotone or linear in one argument for the numbers of the case alone");
  add({"accuracy"}, any_state, "the values of x are not read, and counts of few classes agree by chance");
  add({"flash_attn"}, kPending,
      "linear in v beside q and k, and the seed is not read without dropout: no kind states which arguments are read");
  add({"group_norm", "instance_norm"}, {"sum", "avg", "max", "min"},
      "a pending bias: no kind is linear or monotone in one argument");
  add({"bce_loss", "log_loss", "huber_loss", "nll_loss"}, kPending,
      "monotone or linear in one argument beside a replicated one, for the numbers of the case alone");
  add({"floor", "ceil", "round", "trunc", "hardshrink", "sign"}, {"sum", "prod", "avg"},
      "cases have whole numbers, of which roundings are copies");
  add({"reciprocal", "lgamma", "gammaln", "digamma", "polygamma", "i1", "logit", "tanh_shrink", "stanh", "increment"},
      {"max", "min", "prod", "avg"}, "monotone, falling or affine for the numbers of the case alone");
  add({"fmax"}, {"min"}, "as for maximum");
  add({"fmin"}, {"max"}, "as for minimum");
  add({"remainder", "floor_divide", "copysign", "heaviside", "atan2", "lerp"}, kPending,
      "monotone or linear in one argument beside a replicated one, for some signs of that");
  add({"isnan", "isinf", "isfinite", "isclose", "allclose"}, kPending,
      "finite numbers stay finite and distant ones distant in most reductions, which no kind expresses");
  add({"scatter_nd_add", "index_add", "put_along_axis", "index_select", "index_put"}, kPending,
      "pending values beside a replicated index: no kind states which arguments are only read");
  add({"fill", "fill_diagonal", "set_value"}, kPending,
      "what is filled is not read, but the rule has it reduced, because its target must not stay pending");
  add({"view_dtype"}, kPending,
      "a view of the same dtype moves elements, but one of another dtype commutes with nothing");
  add({"pad", "diag"}, {"max", "min", "prod", "avg", "any", "all"},
      "padding with another value than 0 commutes with some types, but the guard does not see the type");
  add({"bitwise_left_shift", "bitwise_right_shift"}, kPending,
      "a product or quotient by a replicated power of two, which no kind expresses");
  add({"searchsorted"}, kPending,
      "linear or monotone in one argument beside a replicated one: no kind states which arguments are only read");
  add({"cumprod", "kron"}, {"prod"}, "products are exact only where nothing overflows");
  add({"lu_unpack"}, kPending,
      "a selection of elements beside constants and replicated pivots: no kind states which arguments are only read");
  add({"triangular_solve", "solve", "cholesky_solve", "lstsq"}, any_state,
      "linear in the right side alone, beside a replicated matrix: no kind states which arguments are only read");
  add({"matrix_rank"}, any_state, "matrices of cases are regular, which a rule does not know");
  add({"reduce_as"}, kPending,
      "a composite of ops that commute less than they do together, for the few different numbers of its cases");
  return all;
}

}  // namespace shard::testing
