// Cases of the ops of creation.yaml and math.yaml.
#include "shard/ops/creation.h"
#include "shard/ops/elementary.h"
#include "shard/ops/math.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

void add_casts(OpCases& cases) {
  const auto add = [&](DType from, DType to) {
    const auto make = [=](auto run) { return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(2))}, run}; }; };
    const std::string name = std::string("to ") + to_string(to);
    cases.push_back(
        {"cast", name + " from " + to_string(from), {from}, make([=](Tensors& t) { return Tensors{cast(t[0], to)}; })});
    cases.push_back({"cast_", name + " from " + to_string(from), {from}, make([=](Tensors& t) {
                       return Tensors{cast_(t[0], to)};
                     })});
  };
  // Float to float in both directions, and the conversions that the guard of cast refuses: integers
  // and bools wrap, truncate, or lose values.
  add(DType::float32, DType::float64);
  add(DType::float32, DType::float32);
  add(DType::float64, DType::float32);
  add(DType::float32, DType::bfloat16);
  add(DType::bfloat16, DType::float32);
  add(DType::float32, DType::int64);
  add(DType::float32, DType::boolean);
  add(DType::int32, DType::float32);
  add(DType::int32, DType::int64);
  add(DType::int64, DType::int32);
  add(DType::uint8, DType::int32);
  add(DType::boolean, DType::float32);
}

void add_scales(OpCases& cases) {
  const auto add = [&](const char* name, const std::vector<DType>& dtypes, Scalar factor, Scalar bias,
                       bool after = true) {
    const auto make = [=](auto run) { return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(2))}, run}; }; };
    cases.push_back(
        {"scale", name, dtypes, make([=](Tensors& t) { return Tensors{scale(t[0], factor, bias, after)}; })});
    cases.push_back(
        {"scale_", name, dtypes, make([=](Tensors& t) { return Tensors{scale_(t[0], factor, bias, after)}; })});
  };
  add("by 2", kNumbers, 2, 0);
  add("by -2", kNumbers, -2, 0);
  add("by 0.5", {DType::float32}, 0.5, 0.0);
  add("by 2 plus 1", kNumbers, 2, 1);
  add("plus 1, by 2", kNumbers, 2, 1, false);
}

void add_matmuls(OpCases& cases) {
  using Shape = Dims (*)(int64_t m, int64_t k, int64_t n, int64_t b);
  const auto add = [&](const char* name, Shape x, Shape y, bool transpose_x = false, bool transpose_y = false) {
    cases.push_back({"matmul", name, kNumbers, [=](Draw& draw) {
                       const int64_t m = draw.size(), k = draw.size(), n = draw.size(), b = draw.size();
                       return CaseCall{{draw.input(x(m, k, n, b)), draw.input(y(m, k, n, b))}, [=](Tensors& t) {
                                         return Tensors{matmul(t[0], t[1], transpose_x, transpose_y)};
                                       }};
                     }});
  };
  using I = int64_t;
  const Shape mk = [](I m, I k, I, I) { return Dims{m, k}; }, km = [](I m, I k, I, I) { return Dims{k, m}; };
  const Shape kn = [](I, I k, I n, I) { return Dims{k, n}; }, nk = [](I, I k, I n, I) { return Dims{n, k}; };
  const Shape just_k = [](I, I k, I, I) { return Dims{k}; };
  const Shape bmk =
                  [](I m, I k, I, I b) {
                    return Dims{b, m, k};
                  },
              bkn = [](I, I k, I n, I b) {
                return Dims{b, k, n};
              };
  const Shape one_mk = [](I m, I k, I, I) { return Dims{1, m, k}; };
  add("[m, k] and [k, n]", mk, kn);
  add("[k, m] transposed and [k, n]", km, kn, true);
  add("[m, k] and [n, k] transposed", mk, nk, false, true);
  add("both transposed", km, nk, true, true);
  add("[b, m, k] and [b, k, n]", bmk, bkn);
  add("[b, m, k] and [k, n]", bmk, kn);
  add("[1, m, k] and [b, k, n]", one_mk, bkn);
  add("[k] and [k]", just_k, just_k);
  add("[k] and [k, n]", just_k, kn);
  add("[k] and [b, k, n]", just_k, bkn);
  add("[m, k] and [k]", mk, just_k);
  add("[k, m] transposed and [k]", km, just_k, true);
}

void add_cumsums(OpCases& cases) {
  const auto add = [&](const char* name, int axis, bool flatten, bool exclusive, bool reverse) {
    const auto make = [=](auto run) { return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(2))}, run}; }; };
    cases.push_back({"cumsum", name, kNumbers,
                     make([=](Tensors& t) { return Tensors{cumsum(t[0], axis, flatten, exclusive, reverse)}; })});
    cases.push_back({"cumsum_", name, kNumbers,
                     make([=](Tensors& t) { return Tensors{cumsum_(t[0], axis, flatten, exclusive, reverse)}; })});
  };
  add("axis 0", 0, false, false, false);
  add("axis -1, exclusive", -1, false, true, false);
  add("axis 1, reverse", 1, false, false, true);
  add("flatten", 0, true, false, false);
}

void add_wheres(OpCases& cases) {
  const auto add = [&](const char* name, bool wide_condition, bool wide_y, bool in_place) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const Dims wide = draw.dims(2), row = {wide[1]};
        return CaseCall{{draw.input(wide_condition ? wide : row).of(DType::boolean), draw.input(wide),
                         draw.input(wide_y ? wide : row)},
                        run};
      };
    };
    cases.push_back({"where", name, kNumbers, make([](Tensors& t) { return Tensors{where(t[0], t[1], t[2])}; })});
    if (in_place)
      cases.push_back({"where_", name, kNumbers, make([](Tensors& t) { return Tensors{where_(t[0], t[1], t[2])}; })});
  };
  add("all [m, n]", true, true, true);
  add("[n], [m, n] and [m, n]", false, true, true);
  add("[m, n], [m, n] and [n]", true, false, false);
}

void add_filled(OpCases& cases) {
  for (const bool row : {false, true}) {
    cases.push_back({"masked_fill", row ? "mask [n]" : "mask [m, n]", kNumbers, [=](Draw& draw) {
                       const Dims dims = draw.dims(2);
                       return CaseCall{{draw.input(dims), draw.input(row ? Dims{dims[1]} : dims).of(DType::boolean)},
                                       [](Tensors& t) { return Tensors{masked_fill(t[0], t[1], 7)}; }};
                     }});
  }
  // Replacements are named: the defaults depend on the dtype. 1 / x^2 is infinite where x is 0, and 0 times that is NaN.
  for (const double factor : {0.0, 1.0, -1.0}) {
    cases.push_back({"nan_to_num",
                     factor == 0  ? "of NaN"
                     : factor > 0 ? "of infinities"
                                  : "of minus infinities",
                     kFloats, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(2)).between(-1, 1)}, [=](Tensors& t) {
                                         return Tensors{nan_to_num(scale(reciprocal(square(t[0])), factor), 1, 2, -3)};
                                       }};
                     }});
  }
  cases.push_back(
      {"nan_to_num", "of numbers", kNumbers, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(2))}, [](Tensors& t) { return Tensors{nan_to_num(t[0], 1, 2, -3)}; }};
       }});
}

/// Gradients with kernels: arguments are the input or output, from low to high, and the gradient of
/// the output.
void add_gradients(OpCases& cases) {
  using Gradient = Function<Tensor, const Tensor&, const Tensor&>;
  using GradientInplace = Function<Tensor&, const Tensor&, Tensor&>;
  const auto add = [&](const std::string& op, const char* name, Gradient f, GradientInplace f_, int64_t low = -3,
                       int64_t high = 3, double ulps = 0) {
    const char* inexact = ulps == 0 ? "" : "contributions to out_grad are multiplied by a rounded number each";
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const CaseInput saved = draw.input(draw.dims(2));
        return CaseCall{{saved.between(low, high), saved}, run};
      };
    };
    cases.push_back({op, name, kFloats, make([=](Tensors& t) { return Tensors{f(t[0], t[1])}; }), ulps, inexact});
    cases.push_back(
        {op + "_", name, kFloats, make([=](Tensors& t) { return Tensors{f_(t[0], t[1])}; }), ulps, inexact});
  };
  const char* plain = "of two dims";
  add("exp_grad", plain, exp_grad, exp_grad_);
  add("log_grad", plain, log_grad, log_grad_, 1, 9, 16);
  add("tanh_grad", plain, tanh_grad, tanh_grad_);
  add("sqrt_grad", plain, sqrt_grad, sqrt_grad_, 1, 9, 16);
  add("rsqrt_grad", plain, rsqrt_grad, rsqrt_grad_, 1, 9);
  add("relu_grad", plain, relu_grad, relu_grad_);
  add("sigmoid_grad", plain, sigmoid_grad, sigmoid_grad_);
  add("sin_grad", plain, sin_grad, sin_grad_, -3, 3, 16);
  add("cos_grad", plain, cos_grad, cos_grad_, -3, 3, 16);
  add("square_grad", plain, square_grad, square_grad_);
  add("abs_grad", plain, abs_grad, abs_grad_);
  using In = const Tensor&;
  add(
      "clip_grad", "to [-1, 2]", [](In x, In g) { return clip_grad(x, g, -1, 2); },
      [](In x, Tensor& g) -> Tensor& { return clip_grad_(x, g, -1, 2); });
  for (const int y : {0, 2, 3}) {
    add(
        "pow_grad",
        y == 0   ? "0"
        : y == 2 ? "2"
                 : "3",
        [=](In x, In g) { return pow_grad(x, g, y); }, [=](In x, Tensor& g) -> Tensor& { return pow_grad_(x, g, y); });
  }
}

}  // namespace

void add_math_cases(OpCases& cases) {
  const std::vector<DType> with_bool = {DType::float32, DType::int64, DType::boolean};
  add_binary(cases, "add", kNumbers, add, add_);
  add_binary(cases, "subtract", kNumbers, subtract, subtract_);
  add_binary(cases, "multiply", kNumbers, multiply, multiply_);
  add_binary(cases, "divide", kNumbers, divide, divide_, 1, 4);
  add_binary(cases, "maximum", with_bool, maximum, maximum_);
  add_binary(cases, "minimum", with_bool, minimum, minimum_);
  add_binary(cases, "remainder", kNumbers, remainder, remainder_, 1, 4);
  add_binary(cases, "floor_divide", kNumbers, floor_divide, floor_divide_, 1, 4);
  add_binary(cases, "fmax", kNumbers, fmax, nullptr);
  add_binary(cases, "fmin", kNumbers, fmin, nullptr);
  // The sign of a 0 decides their results, and is lost in reductions.
  const auto above_0 = [](auto run) {
    return [=](Draw& draw) {
      const CaseInput x = draw.input(draw.dims(2)).between(1, 3);
      return CaseCall{{x, x}, run};
    };
  };
  cases.push_back({"atan2", "of two dims", kFloats, above_0([](Tensors& t) { return Tensors{atan2(t[0], t[1])}; })});
  cases.push_back(
      {"copysign", "of two dims", kFloats, above_0([](Tensors& t) { return Tensors{copysign(t[0], t[1])}; })});
  cases.push_back(
      {"copysign_", "of two dims", kFloats, above_0([](Tensors& t) { return Tensors{copysign_(t[0], t[1])}; })});
  add_binary(cases, "heaviside", kNumbers, heaviside, nullptr);
  add_unary(cases, "assign", kAnyDType, assign, assign_);
  add_unary(cases, "sin", kFloats, sin, sin_);
  add_unary(cases, "cos", kFloats, cos, cos_);
  add_unary(cases, "abs", kNumbers, abs, abs_);
  add_unary(cases, "square", kNumbers, square, square_);
  add_binary(cases, "elementwise_pow", kNumbers, elementwise_pow, nullptr, 0, 3);
  add_unary(cases, "exp", kFloats, exp, exp_);
  add_unary(cases, "log", kFloats, log, log_, 1, 9);
  add_unary(cases, "tanh", kFloats, tanh, tanh_);
  add_unary(cases, "sqrt", kFloats, sqrt, sqrt_, 0, 9);
  add_unary(cases, "rsqrt", kFloats, rsqrt, rsqrt_, 1, 9);
  add_unary(cases, "relu", kNumbers, relu, relu_);
  add_unary(cases, "silu", kFloats, silu, silu_);
  add_unary(cases, "sigmoid", kFloats, sigmoid, sigmoid_);
  const auto plain = [](auto run) { return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(2))}, run}; }; };
  cases.push_back({"full_like", "value 3", kAnyDType, plain([](Tensors& t) { return Tensors{full_like(t[0], 3)}; })});
  cases.push_back({"clip", "to [-1, 2]", kNumbers, plain([](Tensors& t) { return Tensors{clip(t[0], -1, 2)}; })});
  cases.push_back({"clip_", "to [-1, 2]", kNumbers, plain([](Tensors& t) { return Tensors{clip_(t[0], -1, 2)}; })});
  for (const int y : {2, 3}) {
    cases.push_back({"pow", y == 2 ? "2" : "3", kNumbers, plain([=](Tensors& t) { return Tensors{pow(t[0], y)}; })});
    cases.push_back({"pow_", y == 2 ? "2" : "3", kNumbers, plain([=](Tensors& t) { return Tensors{pow_(t[0], y)}; })});
  }
  for (const bool approximate : {false, true}) {
    const std::string name = approximate ? "approximate" : "exact";
    cases.push_back({"gelu", name, kFloats, plain([=](Tensors& t) { return Tensors{gelu(t[0], approximate)}; })});
    cases.push_back({"gelu_", name, kFloats, plain([=](Tensors& t) { return Tensors{gelu_(t[0], approximate)}; })});
  }
  const char* rounded = "contributions to y are multiplied by a rounded sigmoid each";
  cases.push_back({"swiglu", "x and y", kFloats,
                   [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2));
                     return CaseCall{{x, x}, [](Tensors& t) { return Tensors{swiglu(t[0], t[1])}; }};
                   },
                   16, rounded});
  cases.push_back({"swiglu", "x alone", kFloats,
                   [](Draw& draw) {
                     return CaseCall{{draw.input({draw.size(), 2 * draw.size()})},
                                     [](Tensors& t) { return Tensors{swiglu(t[0], {})}; }};
                   },
                   16, rounded});
  cases.push_back({"add_n", "three", kNumbers, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(2));
                     return CaseCall{{x, x, x}, [](Tensors& t) { return Tensors{add_n(t)}; }};
                   }});
  const auto add_lerp = [&](const char* name, bool wide_weight) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) {
        const Dims wide = draw.dims(2);
        return CaseCall{{draw.input(wide), draw.input(wide), draw.input(wide_weight ? wide : Dims{wide[1]})}, run};
      };
    };
    cases.push_back({"lerp", name, kFloats, make([](Tensors& t) { return Tensors{lerp(t[0], t[1], t[2])}; })});
    cases.push_back({"lerp_", name, kFloats, make([](Tensors& t) { return Tensors{lerp_(t[0], t[1], t[2])}; })});
  };
  add_lerp("all [m, n]", true);
  add_lerp("a weight [n]", false);
  const auto single = [](auto run) { return [=](Draw& draw) { return CaseCall{{draw.input({1})}, run}; }; };
  cases.push_back({"increment", "by 2", kNumbers, single([](Tensors& t) { return Tensors{increment(t[0], 2)}; })});
  cases.push_back({"increment_", "by 2", kNumbers, single([](Tensors& t) { return Tensors{increment_(t[0], 2)}; })});
  add_casts(cases);
  add_scales(cases);
  add_wheres(cases);
  add_filled(cases);
  add_matmuls(cases);
  add_cumsums(cases);
  add_gradients(cases);
}

}  // namespace shard::testing
