// The ops of this library that cases may name. Cases use their definitions: the rule, and how they
// commute with pending reductions.
#include <algorithm>

#include "rules.h"
#include "shard/ops/creation_ops.h"
#include "shard/ops/logic_ops.h"
#include "shard/ops/math_ops.h"
#include "shard/ops/nn_ops.h"
#include "shard/ops/optim_ops.h"
#include "shard/ops/reduce_ops.h"
#include "shard/ops/shape_ops.h"

namespace spmd_cases {

const shard::OpDef* find_op(std::string_view name) {
  namespace ops = shard::ops;
  static constexpr const shard::OpDef* all[] = {
      &ops::add,
      &ops::subtract,
      &ops::multiply,
      &ops::divide,
      &ops::maximum,
      &ops::minimum,
      &ops::assign,
      &ops::cast,
      &ops::scale,
      &ops::clip,
      &ops::pow,
      &ops::exp,
      &ops::log,
      &ops::tanh,
      &ops::sqrt,
      &ops::rsqrt,
      &ops::relu,
      &ops::gelu,
      &ops::silu,
      &ops::sigmoid,
      &ops::sin,
      &ops::cos,
      &ops::square,
      &ops::abs,
      &ops::elementwise_pow,
      &ops::swiglu,
      &ops::add_n,
      &ops::where,
      &ops::matmul,
      &ops::cumsum,
      &ops::equal,
      &ops::not_equal,
      &ops::less_than,
      &ops::less_equal,
      &ops::greater_than,
      &ops::greater_equal,
      &ops::bitwise_and,
      &ops::bitwise_or,
      &ops::bitwise_xor,
      &ops::bitwise_not,
      &ops::logical_and,
      &ops::logical_or,
      &ops::logical_xor,
      &ops::logical_not,
      &ops::full_like,
      &ops::reshape,
      &ops::flatten,
      &ops::squeeze,
      &ops::unsqueeze,
      &ops::transpose,
      &ops::tile,
      &ops::expand_as,
      &ops::concat,
      &ops::stack,
      &ops::split,
      &ops::split_with_num,
      &ops::unbind,
      &ops::slice,
      &ops::strided_slice,
      &ops::tril,
      &ops::triu,
      &ops::one_hot,
      &ops::gather,
      &ops::scatter,
      &ops::sum,
      &ops::mean,
      &ops::max,
      &ops::min,
      &ops::prod,
      &ops::all,
      &ops::any,
      &ops::amax,
      &ops::amin,
      &ops::squared_l2_norm,
      &ops::frobenius_norm,
      &ops::numel,
      &ops::argmax,
      &ops::softmax,
      &ops::log_softmax,
      &ops::embedding,
      &ops::layer_norm,
      &ops::label_smooth,
      &ops::cross_entropy_with_softmax,
      &ops::sgd_,
      &ops::adamw_,
  };
  const auto found =
      std::find_if(std::begin(all), std::end(all), [&](const shard::OpDef* op) { return op->name == name; });
  return found == std::end(all) ? nullptr : *found;
}

}  // namespace spmd_cases
