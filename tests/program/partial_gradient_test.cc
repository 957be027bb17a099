// Backward passes of captured functions where only some outputs have a gradient: steps that lead only to the others
// take no part, as in eager calls.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <regex>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/program/capture/parts.h"
#include "shard/program/io/json.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace partial_gradient_test {

using namespace shard;
using namespace shard::test;

namespace {

using Gradients = std::vector<std::optional<Values>>;

/// NaN equals NaN.
bool same(const Gradients& a, const Gradients& b) {
  const auto same_number = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  const auto same_values = [&](const std::optional<Values>& x, const std::optional<Values>& y) {
    return x.has_value() == y.has_value() &&
           (!x || std::equal(x->begin(), x->end(), y->begin(), y->end(), same_number));
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_values);
}

size_t finite_numbers(const Gradients& gradients) {
  size_t count = 0;
  for (const std::optional<Values>& each : gradients)
    count +=
        each ? static_cast<size_t>(std::count_if(each->begin(), each->end(), [](double x) { return std::isfinite(x); }))
             : 0;
  return count;
}

/// The gradients of `leaves` where only the outputs in the set `which` are differentiated; undefined where a leaf
/// gets none.
Gradients gradients_of(const program::Function& function, const Tensors& inputs, const Tensors& leaves, unsigned which,
                       bool retain = false) {
  const Tensors out = function(inputs);
  Tensors chosen;
  for (size_t i = 0; i < out.size(); ++i) {
    if ((which >> i & 1u) != 0) chosen.push_back(out[i]);
  }
  Gradients found;
  for (const bool again : {true, false}) {
    if (again && !retain) continue;
    const Tensors gradients = grad(chosen, leaves, {}, {.retain_graph = again}, /*allow_unused=*/true);
    for (const Tensor& each : gradients) found.push_back(each.defined() ? std::optional(whole(each)) : std::nullopt);
  }
  return found;
}

/// Outputs of one group: the gradients of some are not finite, or are combined with numbers that are not.
Tensors losses(const Tensors& in, const Tensor& w) {
  const Tensor shared = multiply(in[0], in[0]);
  const Tensor middle = multiply(shared, in[1]);
  return {total(sqrt(shared)), total(multiply(middle, w)), total(exp(shared)), total(add(middle, square(middle)))};
}

}  // namespace

TEST_CASE("32: outputs without a gradient take no part in the captured backward, where zeros would meet infinities") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = leaf({0, 2}), y = leaf({1, 3}), w = leaf({infinity, 1});
  const program::Function eager = [&](const Tensors& in) { return losses(in, w); };
  program::Scope scope;
  scope.set("w", w);
  for (const bool passes : {true, false}) {
    CapturedFunction captured(eager, {.scope = &scope, .passes = passes});
    CapturedFunction loaded(program::from_json(program::to_json(captured.trace({x, y})), scope));
    CHECK(program::group_count(*captured.trace({x, y}).gradient) == 1);
    size_t finite = 0;
    for (const CapturedFunction& called : {captured, loaded}) {
      const program::Function function = [&](const Tensors& in) { return CapturedFunction(called)(in); };
      for (const bool retain : {false, true}) {
        for (unsigned which = 1; which < 16; ++which) {
          CAPTURE(passes, retain, which);
          const Gradients expected = gradients_of(eager, {x, y}, {x, y, w}, which, retain);
          CHECK(same(gradients_of(function, {x, y}, {x, y, w}, which, retain), expected));
          finite += finite_numbers(expected);
        }
      }
    }
    CHECK(finite > 100);
  }
}

TEST_CASE("32: backward of some outputs checks and needs only what they read") {
  const Tensor x = leaf({1, 2}), v = vec({3, 4}), one = Tensor::from_data(Values{1}, {});
  Tensor w = vec({5, 6});
  const program::Function eager = [&](const Tensors& in) -> Tensors {
    const Tensor shared = exp(in[0]);
    return {total(multiply(shared, w)), total(multiply(shared, v))};
  };
  CapturedFunction captured(eager, {});
  for (const program::Function& function :
       {eager, program::Function([&](const Tensors& in) { return captured(in); })}) {
    const Tensors out = function({x});
    scale_(w, Scalar(2), Scalar(0), true);
    out[1].backward(one, /*retain_graph=*/true);
    CHECK(values(x.grad())[0] == Approx(3 * std::exp(1.0)));
    CHECK_THROWS_WITH(out[0].backward(one, true),
                      Catch::Contains("written last by [scale_]") || Catch::Contains("last by [scale_]"));
    CHECK_THROWS_WITH(add(out[0], out[1]).backward(), Catch::Contains("by [scale_]"));
    x.set_grad({});
  }
}

TEST_CASE("32: a gradient that is added in place to one that is absent, and parts with a memory goal, are eager's") {
  const Tensor x = leaf({0.5, -2, 3});
  const program::Function eager = [](const Tensors& in) -> Tensors {
    const Tensor a = multiply(in[0], in[0]);
    const Tensor b = reshape(a, {3, 1}), c = exp(a);
    return {total(multiply(b, b)), total(multiply(c, a)), total(reshape(multiply(b, reshape(c, {3, 1})), {3}))};
  };
  for (const int64_t goal : {0, 1}) {
    CapturedFunction captured(eager, {.memory_goal = goal});
    for (unsigned which = 1; which < 8; ++which) {
      CAPTURE(goal, which);
      CHECK(gradients_of([&](const Tensors& in) { return captured(in); }, {x}, {x}, which) ==
            gradients_of(eager, {x}, {x}, which));
    }
  }
}

TEST_CASE(
    "32: a random op in the backward pass keeps all groups in one program, in files too, and each group has its own "
    "gradients") {
  const Tensor x = leaf({0, 2}), y = leaf({3, 4});
  // The hook draws, so that the backward pass can only run as a whole.
  const program::Function eager = [](const Tensors& in) -> Tensors {
    const Tensor noisy = multiply(in[0], in[0]);
    add_hook(noisy, [](const Tensor& g) { return multiply(g, uniform({2}, DType::float64)); });
    return {total(sqrt(noisy)), total(noisy), total(multiply(in[1], in[1]))};
  };
  CapturedFunction captured(eager, {});
  const program::Trace& trace = captured.trace({x, y});
  CHECK(program::group_count(*trace.gradient) == 2);
  CHECK(program::parts_of(program::split(trace), *trace.gradient).size() == 1);
  const std::string text = program::to_json(trace);
  CHECK(program::to_json(program::from_json(text, {})) == text);
  CapturedFunction loaded(program::from_json(text, {}));
  for (const CapturedFunction& called : {captured, loaded}) {
    for (unsigned which = 1; which < 8; ++which) {
      CAPTURE(which);
      const auto run = [&](const program::Function& function) {
        call::thread_generator().set_seed(which);
        return gradients_of(function, {x, y}, {x, y}, which);
      };
      const Gradients found = run([&](const Tensors&in) { return CapturedFunction(called)(in); }),
                      expected = run(eager);
      CHECK(same(found, expected));
    }
  }
}

TEST_CASE("32: a file that does not say which outputs were computed from what gives zeros instead of no gradient") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4});
  CapturedFunction captured(
      [](const Tensors& in) -> Tensors {
        const Tensor shared = multiply(in[0], in[0]);
        return {total(shared), total(multiply(shared, in[1]))};
      },
      {});
  const std::string text = program::to_json(captured.trace({x, y}));
  const std::string shorter = std::regex_replace(text, std::regex(R"(,"reaches":\[(\[[0-9,]*\],?)*\])"), "");
  REQUIRE(shorter.size() < text.size());
  CapturedFunction loaded(program::from_json(shorter, {}));
  CHECK(gradients_of([&](const Tensors& in) { return loaded(in); }, {x, y}, {x, y}, 1) ==
        Gradients{Values{2, 4}, Values{0, 0}});
  CHECK(gradients_of([&](const Tensors& in) { return loaded(in); }, {x, y}, {x, y}, 3) ==
        Gradients{Values{8, 20}, Values{1, 4}});
}

TEST_CASE(
    "32: on meshes groups have backward passes of their own, and outputs of one group that have a gradient are "
    "differentiated alone") {
  for (const int ranks : {4, 5}) {
    run_ranks(ranks, [ranks](Rank&) {
      Tensor a = on("a, b", {4, 6}, 0), b = on("b, -", {3, 2}, 1);
      for (Tensor* each : {&a, &b}) each->set_requires_grad(true);
      // A program is the same on all ranks, so full_tensor() needs all of them in the mesh.
      const auto value = [ranks](const Tensor& x) { return ranks == 4 ? full_tensor(x) : x; };
      const program::Function apart = [value](const Tensors& in) -> Tensors {
        return {value(total(multiply(in[0], in[0]))), value(total(multiply(in[1], in[1])))};
      };
      const program::Function together = [](const Tensors& in) -> Tensors {
        const Tensor shared = multiply(in[0], in[0]);
        return {total(sqrt(shared)), sum(matmul(shared, expand(total(in[1]), {6, 2})), {1}, false), total(shared)};
      };
      for (const program::Function& eager : {apart, together}) {
        CapturedFunction captured(eager, {});
        const Tensors example = captured({a, b});
        for (unsigned which = 1; which < 1u << example.size(); ++which) {
          const auto gradients = [&](const program::Function& function) {
            Tensors chosen;
            const Tensors out = function({a, b});
            for (size_t i = 0; i < out.size(); ++i) {
              if ((which >> i & 1u) != 0) chosen.push_back(total(out[i]));
            }
            Gradients found;
            for (const Tensor& each : grad(chosen, {a, b}, {}, {}, true))
              found.push_back(each.defined() ? std::optional(whole(each)) : std::nullopt);
            return found;
          };
          const auto found = gradients([&](const Tensors&in) { return captured(in); }), expected = gradients(eager);
          check(same(found, expected), "the gradients of the set " + std::to_string(which));
        }
      }
    });
  }
}

TEST_CASE("32: create_graph through the second group, and through one output of a group, is eager's") {
  const Tensor x = leaf({0, 2}), y = leaf({3, 4});
  const program::Function eager = [](const Tensors& in) -> Tensors {
    const Tensor cube = multiply(multiply(in[1], in[1]), in[1]);
    return {total(multiply(in[0], in[0])), total(multiply(cube, cube)), total(sqrt(multiply(cube, in[1])))};
  };
  CapturedFunction captured(eager, {});
  CHECK(captured.trace({x, y}).gradient->output_groups == std::vector<size_t>{0, 1, 1});
  for (const size_t output : {0u, 1u, 2u}) {
    const auto derivatives = [&](const program::Function& function) {
      const Tensor& wanted = output == 0 ? x : y;
      const Tensor first = grad({function({x, y})[output]}, {wanted}, {}, {.create_graph = true})[0];
      return std::vector<Values>{values(first), values(grad({total(first)}, {wanted})[0])};
    };
    CAPTURE(output);
    CHECK(derivatives([&](const Tensors& in) { return captured(in); }) == derivatives(eager));
  }
}

}  // namespace partial_gradient_test
