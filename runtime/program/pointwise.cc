#include "program/pointwise.h"

#include <mutex>
#include <unordered_set>

#include "ops/logic_ops.h"
#include "ops/math_ops.h"

namespace shard::program {
namespace {

struct Known {
  std::mutex mutex;
  // tril and triu look at the place, label_smooth at the number of classes, dropout and bernoulli draw by place.
  std::unordered_set<const OpDef*> ops = {
      &ops::add,           &ops::subtract,      &ops::multiply,     &ops::divide,        &ops::maximum,        &ops::minimum,     &ops::elementwise_pow,
      &ops::assign,        &ops::cast,          &ops::scale,        &ops::clip,          &ops::pow,            &ops::exp,         &ops::log,
      &ops::tanh,          &ops::sqrt,          &ops::rsqrt,        &ops::relu,          &ops::gelu,           &ops::silu,        &ops::sigmoid,
      &ops::sin,           &ops::cos,           &ops::square,       &ops::abs,           &ops::where,          &ops::clip_grad,   &ops::pow_grad,
      &ops::exp_grad,      &ops::log_grad,      &ops::tanh_grad,    &ops::sqrt_grad,     &ops::rsqrt_grad,     &ops::relu_grad,   &ops::sigmoid_grad,
      &ops::sin_grad,      &ops::cos_grad,      &ops::square_grad,  &ops::abs_grad,      &ops::gelu_grad,      &ops::silu_grad,   &ops::equal,
      &ops::not_equal,     &ops::less_than,     &ops::less_equal,   &ops::greater_than,  &ops::greater_equal,  &ops::bitwise_and, &ops::bitwise_or,
      &ops::bitwise_xor,   &ops::bitwise_not,   &ops::logical_and,  &ops::logical_or,    &ops::logical_xor,    &ops::logical_not,
  };
};

Known& known() {
  static Known instance;
  return instance;
}

}  // namespace

void mark_pointwise(const OpDef& op) {
  const std::lock_guard lock(known().mutex);
  known().ops.insert(&op);
}

bool is_pointwise(const OpDef& op) {
  const std::lock_guard lock(known().mutex);
  return known().ops.contains(&op);
}

}  // namespace shard::program
