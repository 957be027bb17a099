// Gradients of captured functions, and backward passes and optimiser steps inside of them.
#include <catch2/catch.hpp>

#include "api.h"
#include "autograd/autograd.h"
#include "program/function.h"
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
