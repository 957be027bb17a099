// Gradients of captured functions, and backward passes and optimiser steps inside of them.
#include <catch2/catch.hpp>

#include "api.h"
#include "autograd/autograd.h"
#include "program/function.h"
#include "program/json.h"
#include "program/split.h"
#include "support/tensors.h"

using namespace shard;
using namespace shard::test;

namespace {

/// y = x w, whose two arguments backward reads.
program::Function product(const Tensor& w) {
  return [w](const Tensors& in) -> Tensors { return {multiply(in[0], w)}; };
}

program::Split split_of(CapturedFunction& captured, const Tensors& inputs) { return program::split(captured.trace(inputs)); }

}  // namespace

TEST_CASE("32: a training step with backward and optimiser inside is one program, equal to eager after each of 5 steps") {
  const auto make = [] { return leaf({1, -2, 3}); };
  Tensor a = make(), b = make(), none;
  const Tensor rate = vec({0.1});
  const auto step = [&](Tensor& w) {
    return [&](const Tensors& in) -> Tensors {
      const Tensor loss = total(multiply(multiply(w, w), in[0]));
      w.set_grad({});
      loss.backward();
      const NoGrad off;
      sgd_(w, rate, w.grad(), none);
      return {loss};
    };
  };
  CapturedFunction captured(step(a), {});
  const auto eager = step(b);
  for (int run = 0; run < 5; ++run) {
    const Tensor x = vec({1.0 + run, 2, 3});
    CHECK(values(captured({x})[0]) == values(eager({x})[0]));
    CHECK(values(a) == values(b));
    CHECK(values(a.grad()) == values(b.grad()));
    CHECK(a.version() == b.version());
  }
  // The first run found no gradient, the others one.
  CHECK(captured.stats().misses <= 2);
}

TEST_CASE("32: gradients that are there are added to, as eager does") {
  Tensor w = leaf({1, 2});
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        total(multiply(w, in[0])).backward();
        return {};
      },
      {});
  captured({vec({1, 2})});
  captured({vec({3, 4})});
  captured({vec({5, 6})});
  CHECK(values(w.grad()) == Values{9, 12});
}

TEST_CASE("32: two forwards and then two backwards are right, in either order") {
  for (const bool first_first : {true, false}) {
    const Tensor w = leaf({2, 3}), x = leaf({1, 2}), y = leaf({5, 7});
    CapturedFunction captured(product(w), {});
    const Tensor a = captured({x})[0], b = captured({y})[0];
    CHECK(values(a) == Values{2, 6});
    CHECK(values(b) == Values{10, 21});
    const auto back = [&](bool first) { total(multiply(first ? a : b, vec({1, 10}))).backward(); };
    back(first_first);
    back(!first_first);
    CHECK(values(x.grad()) == Values{2, 30});
    CHECK(values(y.grad()) == Values{2, 30});
    CHECK(values(w.grad()) == Values{6, 90});
  }
}

TEST_CASE("32: backward twice with retain_graph is right, and without it an error") {
  const Tensor w = leaf({2, 3}), x = leaf({1, 2});
  CapturedFunction captured(product(w), {});
  const Tensor out = captured({x})[0];
  out.backward(vec({1, 1}), true);
  out.backward(vec({1, 1}), true);
  CHECK(values(w.grad()) == Values{2, 4});
  out.backward(vec({1, 1}));
  CHECK(values(w.grad()) == Values{3, 6});
  CHECK_THROWS_WITH(out.backward(vec({1, 1})), Catch::Contains("is gone"));
}

TEST_CASE("32: a parameter that backward reads stands in its own place, and a write before backward is an error that names it") {
  const Tensor w = leaf({2, 3}), x = leaf({1, 2});
  CapturedFunction captured(product(w), {});
  const program::Split split = split_of(captured, {x});
  CHECK(split.middles.empty());
  CHECK(split.backward.parameters.size() == 2);
  const Tensor out = captured({x})[0];
  {
    const NoGrad off;
    Tensor target = w;
    scale_(target, Scalar(2), Scalar(0), true);
  }
  CHECK_THROWS_WITH(total(out).backward(), Catch::Contains("[captured] backward reads 'p0'") && Catch::Contains("version 0") && Catch::Contains("[scale_] at"));
}

TEST_CASE("32: a parameter that forward writes and backward reads is copied, so that another forward does no harm") {
  Tensor state = vec({1, 1});
  const Tensor x = leaf({1, 2}), y = leaf({5, 7});
  const auto function = [&](const Tensors& in) -> Tensors {
    // A view of a view of the parameter is written, and read through another one.
    Tensor view = reshape(reshape(state, {1, 2}), {2, 1});
    {
      const NoGrad off;
      scale_(view, Scalar(2), Scalar(0), true);
    }
    return {multiply(in[0], reshape(view, {2})), state};
  };
  CapturedFunction captured(function, {});
  const program::Split split = split_of(captured, {x});
  REQUIRE(split.middles.size() == 1);
  CHECK(split.middles[0].held == program::Held::copied);
  const Tensors a = captured({x}), b = captured({y});
  CHECK(values(a[0]) == Values{2, 4});
  CHECK(values(b[0]) == Values{20, 28});
  CHECK(a[1].impl() == state.impl());
  CHECK(values(state) == Values{4, 4});
  total(a[0]).backward();
  total(b[0]).backward();
  CHECK(values(x.grad()) == Values{2, 2});
  CHECK(values(y.grad()) == Values{4, 4});
}

TEST_CASE("32: a middle value of the call is its own, also where it is an output") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        const Tensor middle = exp(in[0]);  // whose gradient reads the result
        return {multiply(middle, w), middle};
      },
      {});
  const program::Split split = split_of(captured, {x});
  REQUIRE(split.middles.size() == 1);
  CHECK(split.middles[0].held == program::Held::own);
  CHECK(split.middles[0].visible);
  const auto check_gradients = [&](const Tensors& out) {
    total(out[0]).backward();
    const double e = std::exp(1.0), e2 = std::exp(2.0);
    CHECK(values(x.grad())[0] == Approx(3 * e));
    CHECK(values(w.grad())[1] == Approx(e2));
  };
  check_gradients(captured({x}));
  Tensors out = captured({x});
  {
    const NoGrad off;
    scale_(out[1], Scalar(2), Scalar(0), true);
  }
  CHECK_THROWS_WITH(total(out[0]).backward(), Catch::Contains("backward reads an output"));
}

TEST_CASE("32: what backward reads the shape of alone is not kept") {
  const Tensor x = leaf({1, 2});
  CapturedFunction captured([](const Tensors& in) -> Tensors { return {total(scale(in[0], Scalar(2), Scalar(0), true))}; }, {});
  for (const program::Middle& middle : split_of(captured, {x}).middles) CHECK(middle.held == program::Held::shape_only);
  captured({x})[0].backward();
  CHECK(values(x.grad()) == Values{2, 2});
}

TEST_CASE("32: dropout's mask goes from forward to backward, and recompute draws the same again") {
  const Tensor x = leaf(Values(64, 1)), y = leaf(Values(64, 1));
  const auto function = [](const Tensors& in) -> Tensors {
    return recompute([](const Tensors& inner) -> Tensors { return {dropout(multiply(inner[0], inner[0]), {}, Scalar(0.5))}; }, in);
  };
  CapturedFunction captured(function, {});
  call::thread_generator().set_seed(3);
  const Tensor a = captured({x})[0];
  const Tensor between = uniform({2}, DType::float64);
  total(a).backward();
  const RandomKey after = call::thread_generator().state();
  call::thread_generator().set_seed(3);
  const Tensor b = function({y})[0];
  CHECK(values(uniform({2}, DType::float64)) == values(between));
  total(b).backward();
  CHECK(values(a) == values(b));
  CHECK(values(x.grad()) == values(y.grad()));
  CHECK(call::thread_generator().state().offset == after.offset);
}

TEST_CASE("32: gradients of captured functions go on to what their inputs were computed from") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  CapturedFunction captured(product(w), {});
  const Tensor out = captured({multiply(x, x)})[0];
  total(captured({out})[0]).backward();
  // (x^2 w) w
  CHECK(values(x.grad()) == Values{18, 64});
  CHECK(values(w.grad()) == Values{6, 32});
}

TEST_CASE("32: the gradient of a captured function can be differentiated") {
  const Tensor x = leaf({0.5, -2}), w = leaf({3, 4});
  const auto cube = [&](const Tensors& in) -> Tensors { return {multiply(multiply(in[0], in[0]), multiply(in[0], w)), total(in[0])}; };
  CapturedFunction captured(cube, {});
  const auto check = [&](const Tensor& input) {
    const auto derivatives = [&](const program::Function& function) {
      const Tensor first = grad({total(function({input})[0])}, {x}, {}, {.create_graph = true})[0];
      const Tensors second = grad({total(first)}, {x, w}, {}, {.create_graph = true});
      return std::vector<Values>{values(first), values(second[0]), values(second[1]), values(grad({total(second[0])}, {x}, {}, {.retain_graph = true})[0])};
    };
    CHECK(derivatives([&](const Tensors& in) { return captured(in); }) == derivatives(cube));
  };
  check(x);
  check(multiply(x, x));
}

TEST_CASE("32: a gradient of a captured function that is recorded draws the random numbers of the call again") {
  const Tensor x = leaf(Values(64, 1));
  CapturedFunction captured([](const Tensors& in) -> Tensors { return {dropout(multiply(in[0], in[0]), {}, Scalar(0.5f))}; }, {});
  const Tensor out = captured({x})[0];
  const RandomKey after = call::thread_generator().state();
  const Tensor first = grad({total(out)}, {x}, {}, {.create_graph = true})[0];
  CHECK(values(first) == values(scale(out.detach(), Scalar(2), Scalar(0), true)));  // 2 m x and m x^2, where x is 1
  CHECK(call::thread_generator().state().offset == after.offset);
}

TEST_CASE("32: what a captured function cannot be called again for is refused, and leaves the plain gradient") {
  const Tensor x = leaf({1, 2});
  Tensor c = vec({3, 4}), steps = vec({0});
  const auto refused = [&](const Tensor& out) {
    std::string text = "no error";
    try {
      grad({total(out)}, {x}, {}, {.create_graph = true});
    } catch (const Error& error) {
      text = error.what();
    }
    return text;
  };
  CapturedFunction reads([&](const Tensors& in) -> Tensors { return {add(in[0], c)}; }, {});
  const Tensor out = reads({x})[0];
  scale_(c, Scalar(2), Scalar(0), true);
  CHECK_THAT(refused(out), Catch::Contains("'p0' (f64[2]) has been written since the call: it was at version 0 and is at 1, written last by [scale_] at "));
  total(out).backward();
  CHECK(values(x.grad()) == Values{1, 1});
  CapturedFunction counts(
      [&](const Tensors& in) -> Tensors {
        scale_(steps, Scalar(1), Scalar(1), true);
        return {multiply(in[0], in[0])};
      },
      {});
  CHECK_THAT(refused(counts({x})[0]), Catch::Contains("has been written since the call"));
}

TEST_CASE("32: outputs that share no step have backward passes of their own, as eager ones have") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4}), w = leaf({5, 6});
  const auto losses = [&](const Tensors& in) -> Tensors { return {total(multiply(in[0], w)), total(multiply(multiply(in[1], in[1]), w))}; };
  Scope scope;
  scope.set("w", w);
  CapturedFunction captured(losses, {.scope = &scope});
  const program::Trace& trace = captured.trace({x, y});
  CHECK(program::group_count(*trace.gradient) == 2);
  const std::string text = program::to_json(trace);
  const program::Trace loaded = program::from_json(text, scope);
  CHECK(program::group_count(*loaded.gradient) == 2);
  CHECK(program::to_json(loaded) == text);
  for (const bool first_first : {true, false}) {
    const Tensors out = captured({x, y});
    const auto halve = [](const Tensor& target) {
      const NoGrad off;
      Tensor to = target;
      scale_(to, Scalar(0.5), Scalar(0), true);
      scale_(to, Scalar(2), Scalar(0), true);
    };
    out[first_first ? 0 : 1].backward();
    CHECK(x.grad().defined() == first_first);
    CHECK(y.grad().defined() == !first_first);
    CHECK_THROWS_WITH(out[first_first ? 0 : 1].backward(), Catch::Contains("is gone"));
    halve(first_first ? x : y);  // which the other one does not read
    out[first_first ? 1 : 0].backward();
    CHECK(values(x.grad()) == Values{5, 6});
    CHECK(values(y.grad()) == Values{30, 48});
    CHECK(values(w.grad()) == Values{10, 18});
    for (const Tensor& each : {x, y, w}) each.set_grad({});
  }
  const Tensors out = captured({x, y});
  add(out[0], out[1]).backward();
  CHECK(values(w.grad()) == Values{10, 18});
  const Tensor first = grad({captured({x, y})[1]}, {y}, {}, {.create_graph = true})[0];
  CHECK(values(grad({total(first)}, {y})[0]) == Values{10, 12});
}

TEST_CASE("32: outputs that share a step need retain_graph, as eager ones do") {
  const Tensor x = leaf({1, 2}), w = leaf({5, 6});
  const auto function = [&](const Tensors& in) -> Tensors {
    const Tensor shared = multiply(in[0], in[0]);
    return {total(multiply(shared, w)), total(w), total(exp(shared))};
  };
  CapturedFunction captured(function, {});
  CHECK(captured.trace({x}).gradient->output_groups == std::vector<size_t>{0, 1, 0});
  for (const program::Function& each : {program::Function(function), program::Function([&](const Tensors& in) { return captured(in); })}) {
    const Tensors out = each({x});
    out[0].backward();
    CHECK_THROWS_WITH(out[2].backward(), Catch::Contains("is gone"));
    out[1].backward();
    CHECK(values(w.grad()) == Values{2, 5});
    w.set_grad({});
  }
}
