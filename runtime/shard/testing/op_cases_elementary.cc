// Cases of the ops of elementary.yaml, special.yaml and activation.yaml.
#include "shard/ops/activation.h"
#include "shard/ops/elementary.h"
#include "shard/ops/special.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

using In = const Tensor&;
using Out = Tensor&;

/// The kernel of a gradient: its arguments are the input or output of the op, elements from low to
/// high, and the gradient of the output.
void add_gradient(OpCases& cases, const std::string& op, Function<Tensor, In, In> f, Function<Out, In, Out> f_,
                  int64_t low = -3, int64_t high = 3) {
  const auto add = [&](const std::string& function, auto run) {
    cases.push_back({function, "of two dims", kFloats,
                     [=](Draw& draw) {
                       const CaseInput saved = draw.input(draw.dims(2));
                       return CaseCall{{saved.between(low, high), saved}, run};
                     },
                     16, "contributions to out_grad are multiplied by a rounded number each"});
  };
  add(op, [=](Tensors& t) { return Tensors{f(t[0], t[1])}; });
  add(op + "_", [=](Tensors& t) { return Tensors{f_(t[0], t[1])}; });
}

}  // namespace

void add_elementary_cases(OpCases& cases) {
  add_unary(cases, "erf", kFloats, erf, erf_);
  add_gradient(cases, "erf_grad", erf_grad, erf_grad_);
  add_unary(cases, "expm1", kFloats, expm1, expm1_);
  add_gradient(cases, "expm1_grad", expm1_grad, expm1_grad_);
  add_unary(cases, "log1p", kFloats, log1p, log1p_, 0, 9);
  add_gradient(cases, "log1p_grad", log1p_grad, log1p_grad_, 0, 9);
  add_unary(cases, "log2", kFloats, log2, log2_, 1, 9);
  add_gradient(cases, "log2_grad", log2_grad, log2_grad_, 1, 9);
  add_unary(cases, "log10", kFloats, log10, log10_, 1, 9);
  add_gradient(cases, "log10_grad", log10_grad, log10_grad_, 1, 9);
  add_unary(cases, "tan", kFloats, tan, tan_, -1, 1);
  add_gradient(cases, "tan_grad", tan_grad, tan_grad_, -1, 1);
  add_unary(cases, "asin", kFloats, asin, asin_, 0, 1);
  add_gradient(cases, "asin_grad", asin_grad, asin_grad_, 0, 0);
  add_unary(cases, "acos", kFloats, acos, acos_, 0, 1);
  add_gradient(cases, "acos_grad", acos_grad, acos_grad_, 0, 0);
  add_unary(cases, "atan", kFloats, atan, atan_);
  add_gradient(cases, "atan_grad", atan_grad, atan_grad_);
  add_unary(cases, "sinh", kFloats, sinh, sinh_);
  add_gradient(cases, "sinh_grad", sinh_grad, sinh_grad_);
  add_unary(cases, "cosh", kFloats, cosh, cosh_);
  add_gradient(cases, "cosh_grad", cosh_grad, cosh_grad_);
  add_unary(cases, "asinh", kFloats, asinh, asinh_);
  add_gradient(cases, "asinh_grad", asinh_grad, asinh_grad_);
  add_unary(cases, "acosh", kFloats, acosh, acosh_, 1, 9);
  add_gradient(cases, "acosh_grad", acosh_grad, acosh_grad_, 2, 9);
  add_unary(cases, "atanh", kFloats, atanh, atanh_, 0, 1);
  add_gradient(cases, "atanh_grad", atanh_grad, atanh_grad_, 0, 0);
  add_unary(cases, "reciprocal", kFloats, reciprocal, reciprocal_, 1, 9);
  add_gradient(cases, "reciprocal_grad", reciprocal_grad, reciprocal_grad_, 1, 9);
  add_unary(cases, "floor", kFloats, floor, floor_);
  add_unary(cases, "ceil", kFloats, ceil, ceil_);
  add_unary(cases, "round", kFloats, round, round_);
  add_unary(cases, "trunc", kFloats, trunc, trunc_);
  add_unary(cases, "sign", kFloats, sign, nullptr);
  add_unary(
      cases, "logit", kFloats, [](In x) { return logit(x, 0.25f); }, [](Out x) -> Out { return logit_(x, 0.25f); }, 0,
      1);
  add_gradient(
      cases, "logit_grad", [](In x, In g) { return logit_grad(x, g, 0.25f); },
      [](In x, Out g) -> Out { return logit_grad_(x, g, 0.25f); }, 0, 1);
  add_unary(cases, "lgamma", kFloats, lgamma, lgamma_, 1, 9);
  add_unary(cases, "gammaln", kFloats, gammaln, gammaln_, 1, 9);
  add_unary(cases, "digamma", kFloats, digamma, digamma_, 1, 9);
  add_unary(cases, "erfinv", kFloats, erfinv, erfinv_, 0, 1);
  add_unary(cases, "i0", kFloats, i0, i0_);
  add_unary(cases, "i0e", kFloats, i0e, nullptr);
  add_unary(cases, "i1", kFloats, i1, nullptr);
  add_unary(cases, "i1e", kFloats, i1e, nullptr);
  for (const int n : {0, 2}) {
    const std::string name = n == 0 ? "digamma" : "order 2";
    const auto make = [](auto run) {
      return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(2)).between(1, 9)}, run}; };
    };
    cases.push_back({"polygamma", name, kFloats, make([=](Tensors& t) { return Tensors{polygamma(t[0], n)}; })});
    cases.push_back({"polygamma_", name, kFloats, make([=](Tensors& t) { return Tensors{polygamma_(t[0], n)}; })});
  }
}

void add_activation_cases(OpCases& cases) {
  add_unary(
      cases, "leaky_relu", kFloats, [](In x) { return leaky_relu(x, 0.25f); },
      [](Out x) -> Out { return leaky_relu_(x, 0.25f); });
  add_gradient(
      cases, "leaky_relu_grad", [](In x, In g) { return leaky_relu_grad(x, g, 0.25f); },
      [](In x, Out g) -> Out { return leaky_relu_grad_(x, g, 0.25f); });
  add_unary(
      cases, "elu", kFloats, [](In x) { return elu(x, 0.5f); }, [](Out x) -> Out { return elu_(x, 0.5f); });
  add_unary(
      cases, "celu", kFloats, [](In x) { return celu(x, 0.5f); }, nullptr);
  add_gradient(
      cases, "celu_grad", [](In x, In g) { return celu_grad(x, g, 0.5f); },
      [](In x, Out g) -> Out { return celu_grad_(x, g, 0.5f); });
  add_unary(
      cases, "selu", kFloats, [](In x) { return selu(x); }, nullptr);
  add_gradient(
      cases, "selu_grad", [](In x, In g) { return selu_grad(x, g); },
      [](In x, Out g) -> Out { return selu_grad_(x, g); });
  add_unary(cases, "relu6", kFloats, relu6, nullptr, -7, 7);
  add_gradient(cases, "relu6_grad", relu6_grad, relu6_grad_, -7, 7);
  add_unary(
      cases, "hardtanh", kFloats, [](In x) { return hardtanh(x, -1, 2); },
      [](Out x) -> Out { return hardtanh_(x, -1, 2); });
  add_gradient(
      cases, "hardtanh_grad", [](In x, In g) { return hardtanh_grad(x, g, -1, 2); },
      [](In x, Out g) -> Out { return hardtanh_grad_(x, g, -1, 2); });
  add_unary(
      cases, "hardsigmoid", kFloats, [](In x) { return hardsigmoid(x, 0.25f, 0.5f); }, nullptr);
  add_gradient(
      cases, "hardsigmoid_grad", [](In x, In g) { return hardsigmoid_grad(x, g, 0.25f, 0.5f); },
      [](In x, Out g) -> Out { return hardsigmoid_grad_(x, g, 0.25f, 0.5f); });
  add_unary(cases, "hardswish", kFloats, hardswish, nullptr);
  add_gradient(cases, "hardswish_grad", hardswish_grad, hardswish_grad_);
  add_unary(
      cases, "hardshrink", kFloats, [](In x) { return hardshrink(x, 1); }, nullptr);
  add_gradient(
      cases, "hardshrink_grad", [](In x, In g) { return hardshrink_grad(x, g, 1); },
      [](In x, Out g) -> Out { return hardshrink_grad_(x, g, 1); });
  add_unary(
      cases, "softshrink", kFloats, [](In x) { return softshrink(x, 1); }, nullptr);
  add_gradient(
      cases, "softshrink_grad", [](In x, In g) { return softshrink_grad(x, g, 1); },
      [](In x, Out g) -> Out { return softshrink_grad_(x, g, 1); });
  add_unary(
      cases, "thresholded_relu", kFloats, [](In x) { return thresholded_relu(x); },
      [](Out x) -> Out { return thresholded_relu_(x); });
  add_gradient(
      cases, "thresholded_relu_grad", [](In x, In g) { return thresholded_relu_grad(x, g); },
      [](In x, Out g) -> Out { return thresholded_relu_grad_(x, g); });
  add_unary(
      cases, "softplus", kFloats, [](In x) { return softplus(x, 2, 3); }, nullptr);
  add_gradient(
      cases, "softplus_grad", [](In x, In g) { return softplus_grad(x, g, 2, 3); },
      [](In x, Out g) -> Out { return softplus_grad_(x, g, 2, 3); });
  add_unary(cases, "softsign", kFloats, softsign, nullptr);
  add_gradient(cases, "softsign_grad", softsign_grad, softsign_grad_);
  add_unary(cases, "logsigmoid", kFloats, logsigmoid, nullptr);
  add_gradient(cases, "logsigmoid_grad", logsigmoid_grad, logsigmoid_grad_);
  add_unary(
      cases, "mish", kFloats, [](In x) { return mish(x, 2); }, nullptr);
  add_gradient(
      cases, "mish_grad", [](In x, In g) { return mish_grad(x, g, 2); },
      [](In x, Out g) -> Out { return mish_grad_(x, g, 2); });
  add_unary(cases, "swish", kFloats, swish, nullptr);
  add_gradient(cases, "swish_grad", swish_grad, swish_grad_);
  add_unary(cases, "tanh_shrink", kFloats, tanh_shrink, nullptr);
  add_gradient(cases, "tanh_shrink_grad", tanh_shrink_grad, tanh_shrink_grad_);
  add_unary(
      cases, "stanh", kFloats, [](In x) { return stanh(x); }, nullptr);
  add_gradient(
      cases, "stanh_grad", [](In x, In g) { return stanh_grad(x, g); },
      [](In x, Out g) -> Out { return stanh_grad_(x, g); });
  add_gradient(
      cases, "elu_grad", [](In x, In g) { return elu_grad(x, g, 0.5f); },
      [](In x, Out g) -> Out { return elu_grad_(x, g, 0.5f); });
  const auto add_prelu = [&](const char* name, const char* mode, const char* format, Dims (*alpha)(const Dims& x)) {
    cases.push_back({"prelu", name, kFloats, [=](Draw& draw) {
                       const Dims x = draw.dims(3);
                       return CaseCall{{draw.input(x), draw.input(alpha(x))},
                                       [=](Tensors& t) { return Tensors{prelu(t[0], t[1], format, mode)}; }};
                     }});
  };
  add_prelu("all", "all", "NCHW", [](const Dims&) { return Dims{1}; });
  add_prelu("channel", "channel", "NCHW", [](const Dims& x) { return Dims{x[1]}; });
  add_prelu("channel, last", "channel", "NHWC", [](const Dims& x) { return Dims{x[2]}; });
  add_prelu("element", "element", "NCHW", [](const Dims& x) { return Dims{x[1], x[2]}; });
  // Numbers that turn a function round, so that it commutes with no maximum.
  const auto plain = [](auto run) { return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(2))}, run}; }; };
  cases.push_back(
      {"leaky_relu", "negative slope", kFloats, plain([](Tensors& t) { return Tensors{leaky_relu(t[0], -2)}; })});
  cases.push_back({"stanh", "falling", kFloats, plain([](Tensors& t) { return Tensors{stanh(t[0], -1, 1)}; })});
}

}  // namespace shard::testing
