// Gradients of captured functions, and backward passes and optimiser steps inside them.
#include <catch2/catch.hpp>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/program/capture/split.h"
#include "shard/program/io/json.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace gradient_test {

using namespace shard;
using namespace shard::test;

namespace {

/// y = x w, whose two arguments backward reads.
program::Function product(const Tensor& w) {
  return [w](const Tensors& in) -> Tensors { return {multiply(in[0], w)}; };
}

program::Split split_of(CapturedFunction& captured, const Tensors& inputs) {
  return program::split(captured.trace(inputs));
}

}  // namespace

TEST_CASE(
    "32: a training step with backward and optimiser inside is one program, equal to eager after each of 5 steps") {
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
  CHECK_THROWS_WITH(out.backward(vec({1, 1})), Catch::Contains("saved were freed by an earlier backward"));
}

TEST_CASE(
    "32: a parameter that backward reads stands in its own place, and a write before backward is an error that names "
    "it") {
  const Tensor w = leaf({2, 3}), x = leaf({1, 2});
  CapturedFunction captured(product(w), {});
  const program::Split split = split_of(captured, {x});
  CHECK(split.residuals.empty());
  CHECK(split.backward.parameters.size() == 2);
  const Tensor out = captured({x})[0];
  {
    const NoGrad off;
    Tensor target = w;
    scale_(target, Scalar(2), Scalar(0), true);
  }
  CHECK_THROWS_WITH(total(out).backward(), Catch::Contains("[captured] backward reads 'p0'") &&
                                               Catch::Contains("version 0") && Catch::Contains("[scale_] at"));
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
  REQUIRE(split.residuals.size() == 1);
  CHECK(split.residuals[0].held == program::Held::copied);
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
  REQUIRE(split.residuals.size() == 1);
  CHECK(split.residuals[0].held == program::Held::own);
  CHECK(split.residuals[0].visible);
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
  CapturedFunction captured(
      [](const Tensors& in) -> Tensors { return {total(scale(in[0], Scalar(2), Scalar(0), true))}; }, {});
  for (const program::Residual& middle : split_of(captured, {x}).residuals)
    CHECK(middle.held == program::Held::shape_only);
  captured({x})[0].backward();
  CHECK(values(x.grad()) == Values{2, 2});
}

TEST_CASE("32: dropout's mask goes from forward to backward, and recompute draws the same again") {
  const Tensor x = leaf(Values(64, 1)), y = leaf(Values(64, 1));
  const auto function = [](const Tensors& in) -> Tensors {
    return recompute(
        [](const Tensors& inner) -> Tensors { return {dropout(multiply(inner[0], inner[0]), {}, Scalar(0.5))}; }, in);
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
  const auto cube = [&](const Tensors& in) -> Tensors {
    return {multiply(multiply(in[0], in[0]), multiply(in[0], w)), total(in[0])};
  };
  CapturedFunction captured(cube, {});
  const auto check = [&](const Tensor& input) {
    const auto derivatives = [&](const program::Function& function) {
      const Tensor first = grad({total(function({input})[0])}, {x}, {}, {.create_graph = true})[0];
      const Tensors second = grad({total(first)}, {x, w}, {}, {.create_graph = true});
      return std::vector<Values>{values(first), values(second[0]), values(second[1]),
                                 values(grad({total(second[0])}, {x}, {}, {.retain_graph = true})[0])};
    };
    CHECK(derivatives([&](const Tensors& in) { return captured(in); }) == derivatives(cube));
  };
  check(x);
  check(multiply(x, x));
}

TEST_CASE("32: a gradient of a captured function that is recorded draws the random numbers of the call again") {
  const Tensor x = leaf(Values(64, 1));
  CapturedFunction captured(
      [](const Tensors& in) -> Tensors { return {dropout(multiply(in[0], in[0]), {}, Scalar(0.5f))}; }, {});
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
    } catch (const Error& error) { text = error.what(); }
    return text;
  };
  CapturedFunction reads([&](const Tensors& in) -> Tensors { return {add(in[0], c)}; }, {});
  const Tensor out = reads({x})[0];
  scale_(c, Scalar(2), Scalar(0), true);
  CHECK_THAT(refused(out), Catch::Contains("'p0' (f64[2]) has been written since the call: it was at version 0 and is "
                                           "at 1, written last by [scale_] at "));
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
  const auto losses = [&](const Tensors& in) -> Tensors {
    return {total(multiply(in[0], w)), total(multiply(multiply(in[1], in[1]), w))};
  };
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
    CHECK_THROWS_WITH(out[first_first ? 0 : 1].backward(), Catch::Contains("saved were freed by an earlier backward"));
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
  for (const program::Function& each :
       {program::Function(function), program::Function([&](const Tensors& in) { return captured(in); })}) {
    const Tensors out = each({x});
    out[0].backward();
    CHECK_THROWS_WITH(out[2].backward(), Catch::Contains("saved were freed by an earlier backward"));
    out[1].backward();
    CHECK(values(w.grad()) == Values{2, 5});
    w.set_grad({});
  }
}

namespace {

/// Captured and eager calls with one leaf that is given in several ways.
void check_one_leaf(const std::function<program::Function(const Tensor&)>& make,
                    const std::function<Tensors(const Tensor&)>& inputs) {
  const Tensor a = leaf({1, 2}), b = leaf({1, 2});
  CapturedFunction captured(make(a), {});
  const program::Function eager = make(b);
  for (int run = 0; run < 4; ++run) {
    const Tensors out = captured(inputs(a)), expected = eager(inputs(b));
    REQUIRE(out.size() == expected.size());
    for (size_t i = 0; i < out.size(); ++i) CHECK(values(out[i]) == values(expected[i]));
    CHECK(values(a) == values(b));
    CHECK(a.version() == b.version());
    REQUIRE(a.grad().defined() == b.grad().defined());
    if (a.grad().defined()) CHECK(values(a.grad()) == values(b.grad()));
  }
  CHECK(captured.stats().misses <= 2);  // without a gradient and with one
}

}  // namespace

TEST_CASE(
    "32: one leaf that is given as two inputs, or as an input and by closure, has one gradient inside of the "
    "function") {
  const auto twice = [](const Tensor& x) -> Tensors { return {x, x}; };
  const auto once = [](const Tensor& x) -> Tensors { return {x, vec({1, 1})}; };
  // a b^2 of the two, and the function when its gradient has been computed.
  const auto product = [](const Tensor& a, const Tensor& b) { return total(multiply(a, multiply(b, b))); };
  for (const bool closure : {false, true}) {
    const auto other = [closure](const Tensors& in, const Tensor& x) { return closure ? x : in[1]; };
    const auto inputs = closure ? std::function<Tensors(const Tensor&)>(once) : twice;
    check_one_leaf(  // the gradient that backward leaves
        [&](const Tensor& x) {
          return [=](const Tensors& in) -> Tensors {
            product(in[0], other(in, x)).backward();
            return {assign(in[0].grad()), assign(other(in, x).grad())};
          };
        },
        inputs);
    check_one_leaf(  // grad()
        [&](const Tensor& x) {
          return [=](const Tensors& in) -> Tensors {
            return grad({product(in[0], other(in, x))}, {in[0], other(in, x)});
          };
        },
        inputs);
    check_one_leaf(  // set_grad through one, and a backward pass through the other
        [&](const Tensor& x) {
          return [=](const Tensors& in) -> Tensors {
            in[0].set_grad(vec({10, 20}));
            product(other(in, x), other(in, x)).backward();
            return {assign(other(in, x).grad())};
          };
        },
        inputs);
    check_one_leaf(  // training steps
        [&](const Tensor& x) {
          return [=](const Tensors& in) -> Tensors {
            Tensor w = other(in, x), none;
            w.set_grad({});
            const Tensor loss = product(in[0], w);
            loss.backward();
            const NoGrad off;
            sgd_(w, vec({0.01}), in[0].grad(), none);
            return {loss};
          };
        },
        inputs);
    check_one_leaf(  // a backward pass outside is the caller's
        [&](const Tensor& x) { return [=](const Tensors& in) -> Tensors { return {product(in[0], other(in, x))}; }; },
        inputs);
  }
}

TEST_CASE("32: a program for one leaf in two places is not that for two tensors, captured or loaded") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4});
  const program::Function function = [&](const Tensors& in) -> Tensors {
    return {multiply(multiply(in[0], in[1]), x)};
  };
  CapturedFunction captured(function, {});
  for (const Tensors& in : {Tensors{x, x}, Tensors{x, y}, Tensors{y, x}, Tensors{y, y}, Tensors{x, x.detach()}}) {
    for (const Tensor& each : {x, y}) each.set_grad({});
    total(function(in)[0]).backward();
    const std::vector<std::optional<Values>> expected = {
        x.grad().defined() ? std::optional(values(x.grad())) : std::nullopt,
        y.grad().defined() ? std::optional(values(y.grad())) : std::nullopt};
    program::Scope scope;
    scope.set("p0", x);
    for (CapturedFunction called :
         {captured, CapturedFunction(program::from_json(program::to_json(captured.trace(in)), scope))}) {
      for (const Tensor& each : {x, y}) each.set_grad({});
      total(called(in)[0]).backward();
      CHECK(values(x.grad()) == *expected[0]);
      REQUIRE(y.grad().defined() == expected[1].has_value());
      if (expected[1]) CHECK(values(y.grad()) == *expected[1]);
    }
  }
  program::Scope scope;
  scope.set("p0", x);
  CapturedFunction loaded(program::from_json(program::to_json(captured.trace({x, x})), scope));
  CHECK_THROWS_WITH(loaded({y, x}), Catch::Contains("expected the tensor that is also"));
}

TEST_CASE(
    "32: an output leaves no gradient in leaves that it was not computed from, and grad of such a leaf is an error") {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4}), unused = leaf({5, 6});
  const program::Function function = [&](const Tensors& in) -> Tensors {
    return {multiply(in[0], a), multiply(in[0], b), multiply(in[1], in[1])};
  };
  for (const bool loads : {false, true}) {
    CapturedFunction captured(function, {});
    const Tensor x = leaf({1, 1});
    if (loads) {
      program::Scope scope;
      for (const program::Parameter& each : captured.trace({x, unused}).parameters)
        scope.set(each.tensor.impl() == a.impl() ? "p0" : "p1", each.tensor);
      captured = CapturedFunction(program::from_json(program::to_json(captured.trace({x, unused})), scope));
    }
    const auto gradients_after = [&](size_t output) {
      for (const Tensor& each : {a, b, x, unused}) each.set_grad({});
      total(captured({x, unused})[output]).backward();
      std::vector<bool> defined;
      for (const Tensor& each : {a, b, x, unused}) defined.push_back(each.grad().defined());
      return defined;
    };
    CHECK(gradients_after(0) == std::vector<bool>{true, false, true, false});
    CHECK(values(a.grad()) == Values{1, 1});
    CHECK(gradients_after(1) == std::vector<bool>{false, true, true, false});
    CHECK(gradients_after(2) == std::vector<bool>{false, false, false, true});
    CHECK_THROWS_WITH(grad({total(captured({x, unused})[0])}, {b}),
                      Catch::Contains("[grad] no output depends on input 0 (f64[2])"));
    CHECK(!grad({total(captured({x, unused})[0])}, {b}, {}, {}, true)[0].defined());
    const Tensors out = captured({x, unused});
    const Tensors both = grad({add(total(out[0]), total(out[1]))}, {a, b});
    CHECK(values(both[1]) == Values{1, 1});
  }
}

TEST_CASE(
    "32: the gradient that an input has is read, replaced and added to inside of the function, captured and loaded") {
  const auto function = [](const Tensors& in) -> Tensors {
    const Tensor before = in[0].grad().defined() ? assign(in[0].grad()) : vec({0, 0});
    in[0].set_grad(vec({1, 1}));
    total(multiply(in[0], in[0])).backward();
    return {before};
  };
  const Tensor x = leaf({1, 2}), y = leaf({1, 2});
  CapturedFunction captured(function, {});
  for (int run = 0; run < 3; ++run) {
    CHECK(values(captured({x})[0]) == values(function({y})[0]));
    CHECK(values(x.grad()) == values(y.grad()));
    CapturedFunction loaded(program::from_json(program::to_json(captured.trace({x})), {}));
    CHECK(values(loaded({x})[0]) == values(function({y})[0]));
    CHECK(values(x.grad()) == values(y.grad()));
    CHECK_THROWS_WITH(loaded({leaf({1, 2})}), Catch::Contains("is expected to have a gradient (set_grad)"));
  }
}

TEST_CASE("32: a gradient that is also an input or held by closure is the leaf's as long as it is that tensor") {
  const Tensor a = leaf({1, 2}), b = leaf({1, 2});
  for (const Tensor& w : {a, b}) w.set_grad(vec({1, 1}));
  const auto make = [](const Tensor& w) {
    return [w, held = w.grad()](const Tensors& in) -> Tensors {
      const Tensor before = multiply(held, in[0]);
      total(multiply(w, w)).backward();
      return {before, assign(held), assign(w.grad()), assign(in[0])};
    };
  };
  CapturedFunction captured(make(a), {});
  const program::Function eager = make(b);
  for (int run = 0; run < 6; ++run) {
    const bool as_input = run % 2 == 1;
    const Tensors out = captured({as_input ? a.grad() : vec({2, 3})}),
                  expected = eager({as_input ? b.grad() : vec({2, 3})});
    for (size_t i = 0; i < out.size(); ++i) CHECK(values(out[i]) == values(expected[i]));
    CHECK(values(a.grad()) == values(b.grad()));
    for (const Tensor& w : {a, b}) {
      if (run == 1) w.set_grad({});
      if (run == 3) w.set_grad(vec({7, 7}));
    }
  }
}

TEST_CASE("32: constants of the function take part in forward and backward, with and without passes and in files") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor factor = vec({2, 3});
    const Tensor picked = gather(in[0], Tensor::from_data(std::vector<int64_t>{1, 0}, {2}));
    scale_(factor, Scalar(2), Scalar(0), true);
    return {multiply(multiply(picked, factor), picked), factor, reshape(factor, {2, 1})};
  };
  for (const bool passes : {true, false}) {
    CapturedFunction captured(function, {.passes = passes, .memory_goal = 1});
    const Tensor x = leaf({1, 2}), y = leaf({1, 2});
    CapturedFunction loaded(program::from_json(program::to_json(captured.trace({x})), {}));
    for (int run = 0; run < 3; ++run) {
      const Tensors out = (run == 2 ? loaded : captured)({x}), expected = function({y});
      for (size_t i = 0; i < out.size(); ++i) CHECK(values(out[i]) == values(expected[i]));
      CHECK(out[1].shares_buffer_with(out[2]));
      total(out[0]).backward();
      total(expected[0]).backward();
      CHECK(values(x.grad()) == values(y.grad()));
    }
  }
}

}  // namespace gradient_test
