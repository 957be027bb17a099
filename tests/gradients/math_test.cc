// Gradients of ops of math.yaml and dynamic.yaml against central differences, and on meshes against one rank.
#include <catch2/catch.hpp>

#include "gradients/central_difference.h"
#include "gradients/distributed.h"
#include "shard/shard.h"
#include "shard/testing/op_cases.h"

namespace shard::test::math_test {
namespace {

std::vector<Tensor> list(const std::tuple<Tensor, Tensor>& pair) { return {std::get<0>(pair), std::get<1>(pair)}; }

using In = const std::vector<Tensor>&;

struct BinaryCase {
  const char* name;
  testing::Function<Tensor, const Tensor&, const Tensor&> forward;
  std::function<std::vector<Tensor>(const Tensor& x, const Tensor& y, const Tensor& g, GradMask wanted)> gradient;
  double low = -1, high = 1;
};

const std::vector<BinaryCase>& binary_cases() {
  using T = const Tensor&;
  static const std::vector<BinaryCase> cases = {
      {"add", add, [](T x, T y, T g, GradMask wanted) { return list(add_grad(x, y, g, wanted)); }},
      {"subtract", subtract, [](T x, T y, T g, GradMask wanted) { return list(subtract_grad(x, y, g, wanted)); }},
      {"multiply", multiply, [](T x, T y, T g, GradMask wanted) { return list(multiply_grad(x, y, g, wanted)); }},
      {"divide", divide,
       [](T x, T y, T g, GradMask wanted) { return list(divide_grad(x, y, divide(x, y), g, wanted)); }, 0.5, 2},
      {"maximum", maximum, [](T x, T y, T g, GradMask wanted) { return list(maximum_grad(x, y, g, wanted)); }},
      {"minimum", minimum, [](T x, T y, T g, GradMask wanted) { return list(minimum_grad(x, y, g, wanted)); }},
      {"elementwise_pow", elementwise_pow,
       [](T x, T y, T g, GradMask wanted) { return list(elementwise_pow_grad(x, y, g, wanted)); }, 0.5, 2},
  };
  return cases;
}

TEST_CASE("gradients of ops of two tensors are those of central differences, in every kind of broadcasting") {
  const std::vector<std::pair<Dims, Dims>> shapes = {
      {{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{3, 4}, {3, 1}},    {{3, 1}, {1, 4}}, {{4}, {2, 3, 4}},
      {{3, 4}, {}},     {{}, {}},      {{2, 1, 4}, {3, 1}}, {{0, 4}, {4}},    {{2, 3, 0}, {1, 0}}};
  for (const BinaryCase& one : binary_cases()) {
    for (const auto& [x, y] : shapes) {
      INFO(one.name << " of " << to_string(x) << " and " << to_string(y));
      const std::vector<Tensor> inputs = {random_values(x, 3, one.low, one.high),
                                          random_values(y, 8, one.low, one.high)};
      const std::string difference =
          gradient_difference([&](In in) { return one.forward(in[0], in[1]); },
                              [&](In in, const Tensor& g) { return one.gradient(in[0], in[1], g, {}); }, inputs);
      CHECK(difference == "");
    }
  }
}

TEST_CASE("gradients that are not wanted are not computed") {
  const Tensor x = random_values({2, 3}, 1, 0.5, 1), y = random_values({3}, 2, 0.5, 1), g = random_values({2, 3}, 3);
  GradMask second = GradMask::none();
  second.add(1);
  for (const BinaryCase& one : binary_cases()) {
    INFO(one.name);
    const std::vector<Tensor> both = one.gradient(x, y, g, {}), some = one.gradient(x, y, g, second);
    CHECK_FALSE(some[0].defined());
    CHECK(some[1].to_vector<double>() == both[1].to_vector<double>());
  }
}

TEST_CASE("gradients of ops of two tensors are the same on a mesh, in every layout") {
  for (const BinaryCase& one : binary_cases()) {
    const GradientCall call = [&](In in) { return one.gradient(in[0], in[1], in[2], {}); };
    for (const auto& [x, y, out] : std::vector<std::tuple<Dims, Dims, Dims>>{
             {{4, 5}, {4, 5}, {4, 5}}, {{4, 5}, {5}, {4, 5}}, {{4, 1}, {1, 5}, {4, 5}}}) {
      INFO(one.name << " of " << to_string(x) << " and " << to_string(y));
      CHECK(mesh_difference(call, {random_values(x, 3, one.low, one.high), random_values(y, 8, one.low, one.high),
                                   random_values(out, 5)}) == "");
    }
  }
}

TEST_CASE("the gradient of a sum of equal shapes is the gradient of its output itself") {
  const Tensor x = random_values({2, 3}, 1), g = random_values({2, 3}, 3);
  const auto [x_grad, y_grad] = add_grad(x, x, g);
  CHECK(&x_grad.get() == &g.get());
  CHECK(&y_grad.get() == &g.get());
}

TEST_CASE("of equal elements the second one has the gradient of maximum and minimum") {
  const Tensor x = Tensor::from_data(std::vector<double>{1, 2, 3}, {3}),
               y = Tensor::from_data(std::vector<double>{2, 2, 2}, {3});
  const Tensor g = Tensor::from_data(std::vector<double>{5, 6, 7}, {3});
  const std::vector<Tensor> larger = list(maximum_grad(x, y, g)), smaller = list(minimum_grad(x, y, g));
  CHECK(larger[0].to_vector<double>() == std::vector<double>{0, 0, 7});
  CHECK(larger[1].to_vector<double>() == std::vector<double>{5, 6, 0});
  CHECK(smaller[0].to_vector<double>() == std::vector<double>{5, 0, 0});
  CHECK(smaller[1].to_vector<double>() == std::vector<double>{0, 6, 7});
}

TEST_CASE("the gradient of elementwise_pow is 0 for a constant power, and for the power of 0") {
  const Tensor x = Tensor::from_data(std::vector<double>{0, 0, 2}, {3}),
               y = Tensor::from_data(std::vector<double>{0, 3, 0}, {3});
  const std::vector<Tensor> grads =
      list(elementwise_pow_grad(x, y, Tensor::from_data(std::vector<double>{1, 1, 1}, {3})));
  CHECK(grads[0].to_vector<double>() == std::vector<double>{0, 0, 0});
  CHECK(grads[1].to_vector<double>() == std::vector<double>{0, 0, std::log(2.0)});
}

struct Product {
  Dims x, y, out;
  bool transpose_x = false, transpose_y = false;
};

const std::vector<Product>& products() {
  static const std::vector<Product> all = {
      {{3, 4}, {4, 2}, {3, 2}},
      {{4, 3}, {4, 2}, {3, 2}, true, false},
      {{3, 4}, {2, 4}, {3, 2}, false, true},
      {{4, 3}, {2, 4}, {3, 2}, true, true},
      {{2, 3, 4}, {2, 4, 5}, {2, 3, 5}},
      {{2, 4, 3}, {2, 5, 4}, {2, 3, 5}, true, true},
      {{2, 3, 4}, {4, 5}, {2, 3, 5}},
      {{2, 3, 4}, {5, 4}, {2, 3, 5}, false, true},
      {{2, 4, 3}, {4, 5}, {2, 3, 5}, true, false},
      {{3, 4}, {2, 4, 5}, {2, 3, 5}},
      {{2, 1, 3, 4}, {3, 4, 2}, {2, 3, 3, 2}},
      {{1, 3, 4}, {2, 5, 4}, {2, 3, 5}, false, true},
      {{4}, {4}, {}},
      {{4}, {4}, {}, true, true},
      {{4}, {4, 3}, {3}},
      {{4}, {3, 4}, {3}, true, true},
      {{4}, {2, 4, 3}, {2, 3}},
      {{3, 4}, {4}, {3}},
      {{4, 3}, {4}, {3}, true, false},
      {{2, 3, 4}, {4}, {2, 3}},
      {{0, 4}, {4, 3}, {0, 3}},
      {{3, 0}, {0, 2}, {3, 2}},
      {{0}, {0}, {}},
      {{0}, {0, 3}, {3}},
      {{2, 0, 4}, {4, 3}, {2, 0, 3}},
  };
  return all;
}

TEST_CASE("gradients of matmul are those of central differences: transposed, broadcast, and of vectors") {
  for (const Product& p : products()) {
    INFO(to_string(p.x) << (p.transpose_x ? "'" : "") << " times " << to_string(p.y) << (p.transpose_y ? "'" : ""));
    CHECK(gradient_difference(
              [&](In in) { return matmul(in[0], in[1], p.transpose_x, p.transpose_y); },
              [&](In in, const Tensor& g) { return list(matmul_grad(in[0], in[1], g, p.transpose_x, p.transpose_y)); },
              {random_values(p.x, 3), random_values(p.y, 8)}) == "");
  }
}

TEST_CASE("gradients of matmul are the same on a mesh, in every layout") {
  for (const Product& p : products()) {
    if (p.x.rank() > 3 || p.out.numel() == 0) continue;
    INFO(to_string(p.x) << (p.transpose_x ? "'" : "") << " times " << to_string(p.y) << (p.transpose_y ? "'" : ""));
    const GradientCall call = [&](In in) {
      return list(matmul_grad(in[0], in[1], in[2], p.transpose_x, p.transpose_y));
    };
    CHECK(mesh_difference(call, {random_values(p.x, 3), random_values(p.y, 8), random_values(p.out, 5)}) == "");
  }
}

TEST_CASE(
    "the gradient of a weight sends nothing when rows are cut by the batch or by the sequence, and is a pending sum") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"a"});
    const Tensor weight = distribute(random_values({4, 6}, 1), DistSpec::parse(mesh, "-, -"));
    for (const char* layout : {"a, -, -", "-, a, -"}) {
      const Tensor x = distribute(random_values({2, 3, 4}, 2), DistSpec::parse(mesh, layout));
      const Tensor g = distribute(random_values({2, 3, 6}, 3), DistSpec::parse(mesh, layout));
      const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
      const auto [x_grad, y_grad] = matmul_grad(x, weight, g);
      check(spec_of(x_grad) == spec_of(x), "layout of x_grad is " + spec_of(x_grad)->text());
      check(spec_of(y_grad)->text() == "[-, -] sum(a)", "layout of y_grad is " + spec_of(y_grad)->text());
    }
  });
}

struct UnaryCase {
  const char* name;
  testing::Function<Tensor, const Tensor&> forward;
  std::function<Tensor(const Tensor& x, const Tensor& out, const Tensor& g)> gradient;
  // The gradients of gradient(x, out, g) for its arguments: of x, with what comes through out, and of g. ggx is the
  // gradient of x_grad.
  std::function<std::vector<Tensor>(const Tensor& x, const Tensor& out, const Tensor& g, const Tensor& ggx)> second;
  double low = -1, high = 1;
};

const std::vector<UnaryCase>& unary_cases() {
  using T = const Tensor&;
  static const std::vector<UnaryCase> cases = {
      {"exp", exp, [](T, T out, T g) { return exp_grad(out, g); },
       [](T, T out, T g, T ggx) {
         const auto [of_out, of_g] = exp_double_grad(out, g, ggx);
         return std::vector{exp_grad(out, of_out), of_g};
       }},
      {"log", log, [](T x, T, T g) { return log_grad(x, g); },
       [](T x, T, T g, T ggx) { return list(log_double_grad(x, g, ggx)); }, 0.5, 2},
      {"tanh", tanh, [](T, T out, T g) { return tanh_grad(out, g); },
       [](T, T out, T g, T ggx) {
         const auto [of_out, of_g] = tanh_double_grad(out, g, ggx);
         return std::vector{tanh_grad(out, of_out), of_g};
       }},
      {"sqrt", sqrt, [](T, T out, T g) { return sqrt_grad(out, g); },
       [](T, T out, T g, T ggx) {
         const auto [of_out, of_g] = sqrt_double_grad(out, sqrt_grad(out, g), ggx);
         return std::vector{sqrt_grad(out, of_out), of_g};
       },
       0.5, 2},
      {"rsqrt", rsqrt, [](T, T out, T g) { return rsqrt_grad(out, g); },
       [](T, T out, T g, T ggx) {
         const auto [of_out, of_g] = rsqrt_double_grad(out, rsqrt_grad(out, g), ggx);
         return std::vector{rsqrt_grad(out, of_out), of_g};
       },
       0.5, 2},
      {"sigmoid", sigmoid, [](T, T out, T g) { return sigmoid_grad(out, g); },
       [](T, T out, T g, T ggx) {
         const auto [of_out, of_g] = sigmoid_double_grad(out, g, ggx);
         return std::vector{sigmoid_grad(out, of_out), of_g};
       },
       -3, 3},
      {"relu", relu, [](T, T out, T g) { return relu_grad(out, g); },
       [](T x, T out, T, T ggx) {
         return std::vector{full_like(x, 0), relu_double_grad(out, ggx)};
       }},
      {"sin", sin, [](T x, T, T g) { return sin_grad(x, g); },
       [](T x, T, T g, T ggx) { return list(sin_double_grad(x, g, ggx)); }, -3, 3},
      {"cos", cos, [](T x, T, T g) { return cos_grad(x, g); },
       [](T x, T, T g, T ggx) { return list(cos_double_grad(x, g, ggx)); }, -3, 3},
      {"square", square, [](T x, T, T g) { return square_grad(x, g); },
       [](T x, T, T g, T ggx) { return list(square_double_grad(x, g, ggx)); }},
      {"abs", abs, [](T x, T, T g) { return abs_grad(x, g); },
       [](T x, T, T, T ggx) {
         return std::vector{full_like(x, 0), abs_double_grad(x, ggx)};
       }},
      {"clip", [](T x) { return clip(x, -0.5, 0.6); }, [](T x, T, T g) { return clip_grad(x, g, -0.5, 0.6); },
       [](T x, T, T, T ggx) {
         return std::vector{full_like(x, 0), clip_double_grad(x, ggx, -0.5, 0.6)};
       }},
      {"pow 0", [](T x) { return pow(x, 0); }, [](T x, T, T g) { return pow_grad(x, g, 0); },
       [](T x, T, T g, T ggx) { return list(pow_double_grad(x, g, ggx, 0)); }},
      {"pow 1", [](T x) { return pow(x, 1); }, [](T x, T, T g) { return pow_grad(x, g, 1); },
       [](T x, T, T g, T ggx) { return list(pow_double_grad(x, g, ggx, 1)); }},
      {"pow 2", [](T x) { return pow(x, 2); }, [](T x, T, T g) { return pow_grad(x, g, 2); },
       [](T x, T, T g, T ggx) { return list(pow_double_grad(x, g, ggx, 2)); }},
      {"pow 3", [](T x) { return pow(x, 3); }, [](T x, T, T g) { return pow_grad(x, g, 3); },
       [](T x, T, T g, T ggx) { return list(pow_double_grad(x, g, ggx, 3)); }},
      {"pow -1.5", [](T x) { return pow(x, -1.5); }, [](T x, T, T g) { return pow_grad(x, g, -1.5); },
       [](T x, T, T g, T ggx) { return list(pow_double_grad(x, g, ggx, -1.5)); }, 0.5, 2},
      {"scale", [](T x) { return scale(x, 3, 5); }, [](T, T, T g) { return scale_grad(g, 3); }, nullptr},
      {"scale after bias", [](T x) { return scale(x, 3, 5, false); }, [](T, T, T g) { return scale_grad(g, 3); },
       nullptr},
      {"assign", assign, [](T, T, T g) { return assign_grad(g); }, nullptr},
      {"cast", [](T x) { return cast(x, DType::float64); }, [](T x, T, T g) { return cast_grad(x, g); }, nullptr},
      {"cumsum", [](T x) { return cumsum(x, -2); },
       [](T x, T, T g) { return cumsum_grad(x, g, -2, false, false, false); }, nullptr},
      {"cumsum, exclusive", [](T x) { return cumsum(x, 1, false, true); },
       [](T x, T, T g) { return cumsum_grad(x, g, 1, false, true, false); }, nullptr},
      {"cumsum, reverse", [](T x) { return cumsum(x, 0, false, false, true); },
       [](T x, T, T g) { return cumsum_grad(x, g, 0, false, false, true); }, nullptr},
      {"cumsum, flatten", [](T x) { return cumsum(x, -1, true); },
       [](T x, T, T g) { return cumsum_grad(x, g, -1, true, false, false); }, nullptr},
      {"cumsum, all", [](T x) { return cumsum(x, -1, true, true, true); },
       [](T x, T, T g) { return cumsum_grad(x, g, -1, true, true, true); }, nullptr},
  };
  return cases;
}

TEST_CASE("gradients of ops of one tensor are those of central differences") {
  for (const UnaryCase& one : unary_cases()) {
    for (const Dims& dims : {Dims{3, 4}, Dims{0, 4}, Dims{4, 0}, Dims{4, 51}}) {
      INFO(one.name << " of " << to_string(dims));
      CHECK(gradient_difference(
                [&](In in) { return one.forward(in[0]); },
                [&](In in, const Tensor& g) { return std::vector{one.gradient(in[0], one.forward(in[0]), g)}; },
                {distinct_values(dims, 3, one.low, one.high)}) == "");
    }
  }
}

TEST_CASE("gradients of gradients are those of central differences") {
  for (const UnaryCase& one : unary_cases()) {
    if (!one.second) continue;
    INFO(one.name);
    CHECK(
        gradient_difference([&](In in) { return one.gradient(in[0], one.forward(in[0]), in[1]); },
                            [&](In in, const Tensor& ggx) { return one.second(in[0], one.forward(in[0]), in[1], ggx); },
                            {distinct_values({3, 4}, 3, one.low, one.high), random_values({3, 4}, 6)}) == "");
  }
}

TEST_CASE("gradients of ops of one tensor are the same on a mesh, in every layout") {
  for (const UnaryCase& one : unary_cases()) {
    INFO(one.name);
    const Tensor x = random_values({4, 5}, 3, one.low, one.high), out = one.forward(x);
    CHECK(mesh_difference([&](In in) { return std::vector{one.gradient(in[0], in[1], in[2])}; },
                          {x, out, random_values(out.dims(), 5)}) == "");
    if (!one.second) continue;
    CHECK(mesh_difference([&](In in) { return one.second(in[0], in[1], in[2], in[3]); },
                          {x, out, random_values({4, 5}, 5), random_values({4, 5}, 6)}) == "");
  }
}

TEST_CASE("gradients at points without a derivative: 0 for relu, abs and pow, and at the bounds of clip") {
  const Tensor x = Tensor::from_data(std::vector<double>{-1, 0, 1}, {3}),
               g = Tensor::from_data(std::vector<double>{5, 6, 7}, {3});
  CHECK(relu_grad(relu(x), g).to_vector<double>() == std::vector<double>{0, 0, 7});
  CHECK(abs_grad(x, g).to_vector<double>() == std::vector<double>{-5, 0, 7});
  CHECK(clip_grad(x, g, -1, 1).to_vector<double>() == std::vector<double>{0, 6, 0});
  CHECK(pow_grad(x, g, 0).to_vector<double>() == std::vector<double>{0, 0, 0});
}

TEST_CASE("a gradient is written over that of the output where it is asked to") {
  const Tensor x = random_values({3, 4}, 1);
  Tensor g = random_values({3, 4}, 2);
  const std::vector<double> expected = tanh_grad(x, g).to_vector<double>();
  const Tensor before = g;
  tanh_grad_(x, g);
  CHECK(before.to_vector<double>() == expected);
}

TEST_CASE("a gradient of another shape or dtype than the output is an error") {
  const Tensor x = random_values({3, 4}, 1);
  check_contains(error_of([&] { tanh_grad(x, random_values({4}, 2)); }, ErrorCode::shape_mismatch),
                 "[tanh_grad] out_grad is f64[4]");
  error_of([&] { tanh_grad(x, cast(x, DType::float32)); }, ErrorCode::dtype_mismatch);
}

TEST_CASE("gradients of add_n and where") {
  CHECK(gradient_difference([](In in) { return add_n(in); }, [](In in, const Tensor& g) { return add_n_grad(in, g); },
                            {random_values({2, 3}, 1), random_values({2, 3}, 2), random_values({2, 3}, 3)}) == "");
  const Tensor wide = greater_than(random_values({3, 4}, 7), full({3, 4}, 0, DType::float64));
  const Tensor row = greater_than(random_values({4}, 7), full({4}, 0, DType::float64));
  for (const Tensor& condition : {wide, row}) {
    for (const auto& [x, y] :
         std::vector<std::pair<Dims, Dims>>{{{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{3, 1}, {}}, {{}, {3, 4}}}) {
      INFO(to_string(condition.dims()) << ", " << to_string(x) << " and " << to_string(y));
      CHECK(gradient_difference([&](In in) { return where(condition, in[0], in[1]); },
                                [&](In in, const Tensor& g) { return list(where_grad(condition, in[0], in[1], g)); },
                                {random_values(x, 3), random_values(y, 8)}) == "");
    }
  }
  CHECK(mesh_difference([](In in) { return list(where_grad(in[0], in[1], in[2], in[3])); },
                        {wide, random_values({3, 4}, 3), random_values({4}, 4), random_values({3, 4}, 5)}) == "");
}

TEST_CASE("the gradient of masked_select puts rows back to their places, and 0 elsewhere") {
  const Tensor x = random_values({3, 4}, 1);
  const Tensor some = greater_than(random_values({3, 4}, 7), full({3, 4}, 0, DType::float64));
  for (const Tensor& mask : {some, full({3, 4}, 1, DType::boolean), full({3, 4}, 0, DType::boolean)}) {
    CHECK(gradient_difference([&](In in) { return masked_select(in[0], mask); },
                              [&](In in, const Tensor& g) { return std::vector{masked_select_grad(in[0], mask, g)}; },
                              {x}) == "");
    CHECK(mesh_difference([](In in) { return std::vector{masked_select_grad(in[0], in[1], in[2])}; },
                          {x, mask, masked_select(x, mask)}) == "");
  }
}

}  // namespace
}  // namespace shard::test::math_test
