// Capture: what a function does becomes a program, which does the same with other tensors.
#include <catch2/catch.hpp>

#include <algorithm>

#include "shard/autograd/autograd.h"
#include "shard/call/item.h"
#include "shard/program/capture/function.h"
#include "shard/program/io/json.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace capture_test {

using namespace shard;
using namespace shard::test;

namespace {

std::string capture_error(const program::Function& function, const Tensors& inputs,
                          ErrorCode code = ErrorCode::capture) {
  try {
    capture(function, inputs);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("29: a captured function does what the function does, with other values") {
  const auto function = [](const Tensors& in) -> Tensors { return {add(multiply(in[0], in[1]), in[0]), exp(in[1])}; };
  const CapturedFunction captured = capture(function, {vec({0, 0}), vec({0, 0})});
  for (const double a : {1.0, 2.0, 3.0}) {
    const Tensors in = {vec({a, 2}), vec({3, a})};
    const Tensors out = CapturedFunction(captured)(in), expected = function(in);
    REQUIRE(out.size() == 2);
    CHECK(values(out[0]) == values(expected[0]));
    CHECK(values(out[1]) == values(expected[1]));
  }
  CHECK(captured.stats().hits == 3);
  CHECK(captured.stats().misses == 1);
}

TEST_CASE("29: a program prints its values with their types, buffers and states") {
  Tensor p = vec({1, 2});
  CapturedFunction captured = capture(
      [&](const Tensors& in) -> Tensors {
        Tensor view = reshape(p, {2, 1});
        add_(view, in[0]);
        return {multiply(p, p), view};
      },
      {Tensor::from_data(Values{1, 1}, {2, 1})});
  CHECK(to_text(captured.trace({Tensor::from_data(Values{1, 1}, {2, 1})}).program) ==
        "program(\n"
        "    input input_0 %1: f64[2, 1]\n"
        "    parameter p0 %2: f64[2])\n"
        "  %3: f64[2, 1] in %2 = reshape(x: %2, shape=[2, 1])\n"
        "  %4: f64[2, 1] in %2 written = add_(x: %3, y: %1)\n"
        "  %5: f64[2] = multiply(x: %2@%4, y: %2@%4)\n"
        "  return output_0 %5\n"
        "  return output_1 %4\n");
}

TEST_CASE("33: capture changes nothing outside: no value, version, gradient, history or random number") {
  Tensor p = vec({1, 2}), w = leaf({3, 4});
  const RandomKey before = call::thread_generator().state();
  capture(
      [&](const Tensors& in) -> Tensors {
        add_(p, in[0]);
        total(multiply(multiply(w, in[0]), uniform({2}, DType::float64))).backward();
        return {p};
      },
      {vec({5, 6})});
  CHECK(values(p) == Values{1, 2});
  CHECK(p.version() == 0);
  CHECK_FALSE(w.grad().defined());
  CHECK(w.requires_grad());
  CHECK(w.is_leaf());
  CHECK(values(w) == Values{3, 4});
  CHECK(call::thread_generator().state().offset == before.offset);
}

TEST_CASE("33: a tensor reached by closure is a parameter, and never a constant") {
  Tensor p = vec({1, 2});
  CapturedFunction captured = capture([&](const Tensors& in) -> Tensors { return {add(p, in[0])}; }, {vec({0, 0})});
  CHECK(values(captured({vec({1, 1})})[0]) == Values{2, 3});
  scale_(p, Scalar(0), Scalar(10), true);
  CHECK(values(captured({vec({1, 1})})[0]) == Values{11, 11});
}

TEST_CASE("31: writes reach parameters and inputs, through views of views too, and count as versions") {
  Tensor p = vec({1, 2, 3, 4});
  CapturedFunction captured = capture(
      [&](const Tensors& in) -> Tensors {
        Tensor view = reshape(reshape(p, {2, 2}), {4, 1});
        add_(view, in[0]);
        Tensor x = in[0];
        scale_(x, Scalar(2), Scalar(0), true);
        return {view, in[0]};
      },
      {Tensor::from_data(Values(4, 0), {4, 1})});
  for (int run = 1; run <= 3; ++run) {
    const Tensor x = Tensor::from_data(Values{1, 1, 1, 1}, {4, 1});
    const Tensors out = captured({x});
    CHECK(values(p) == Values{1.0 + run, 2.0 + run, 3.0 + run, 4.0 + run});
    CHECK(p.version() == static_cast<uint64_t>(run));
    CHECK(values(x) == Values(4, 2));
    CHECK(x.version() == 1);
    // 30: an output that is a parameter, through views, shares its buffer; one that is an input is that handle.
    CHECK(out[0].shares_buffer_with(p));
    CHECK(out[0].dims() == Dims{4, 1});
    CHECK(out[1].impl() == x.impl());
  }
}

TEST_CASE("29: what depends on values cannot be captured, and the error names the op") {
  CHECK_THAT(
      capture_error([](const Tensors& in) -> Tensors { return item(total(in[0])).to<double>() > 0 ? in : Tensors{}; },
                    {vec({1})}),
      Catch::Contains("[item] cannot be captured") && Catch::Contains("Return the tensor"));
  CHECK_THAT(capture_error([](const Tensors& in) -> Tensors { return {vec(values(in[0]))}; }, {vec({1})}),
             Catch::Contains("[to_vector] cannot be captured"));
  CHECK_THAT(capture_error([](const Tensors& in) -> Tensors { return {nonzero(in[0])}; }, {vec({1})}),
             Catch::Contains("[nonzero] cannot be captured") && Catch::Contains("comes from data"));
  Tensor p = vec({1, 2});
  CHECK_THAT(capture_error(
                 [&](const Tensors&) -> Tensors {
                   return {reshape_(p, {2, 1})};
                 },
                 {}),
             Catch::Contains("changes the shape, dtype, layout or buffer"));
  CHECK(p.dims() == Dims{2});
  Tensor view = reshape(p, {2});
  CHECK_THAT(capture_error([&](const Tensors& in) -> Tensors { return {multiply_(view, in[0])}; }, {leaf({1, 2})}),
             Catch::Contains("requires a gradient"));
  CHECK_FALSE(p.requires_grad());
}

TEST_CASE("33: programs are found by shapes, dtypes and shared buffers, and are bounded in number") {
  int traced = 0;
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        ++traced;
        Tensor x = in[0];
        add_(x, in[1]);
        return {multiply(in[0], in[1])};
      },
      {.capacity = 2});
  const auto run = [&](Tensor x, const Tensor& y) { return values(captured({x, y})[0]); };
  CHECK(run(vec({1, 2}), vec({3, 4})) == Values{12, 24});
  CHECK(run(vec({1, 2}), vec({3, 4})) == Values{12, 24});
  CHECK(traced == 1);
  const Tensor same = vec({1, 2});
  CHECK(run(same, same) == Values{4, 16});
  CHECK(traced == 2);
  CHECK(run(vec({1}), vec({3})) == Values{12});
  CHECK(traced == 3);
  CHECK(captured.stats().evictions == 1);
  CHECK(captured.stats().entries == 2);
}

TEST_CASE("33: random ops draw in each run what eager calls would") {
  const auto function = [](const Tensors& in) -> Tensors {
    return {multiply(in[0], uniform({3}, DType::float64)), gaussian({2}, 0, 1, 0, DType::float64)};
  };
  call::thread_generator().set_seed(7);
  CapturedFunction captured = capture(function, {vec({1, 1, 1})});
  std::vector<Values> replayed, eager;
  for (int run = 0; run < 3; ++run) {
    for (const Tensor& out : captured({vec({1, 1, 1})})) replayed.push_back(values(out));
  }
  call::thread_generator().set_seed(7);
  for (int run = 0; run < 3; ++run) {
    for (const Tensor& out : function({vec({1, 1, 1})})) eager.push_back(values(out));
  }
  CHECK(replayed == eager);
}

TEST_CASE("30: batch_norm's running mean and variance over 5 training steps are eager's after each") {
  const auto make = [] { return Tensors{vec({0, 0}), vec({1, 1}), leaf({1, 2}), leaf({0.5, 0})}; };
  const Tensors a = make(), b = make();
  const auto step = [](const Tensors& state) {
    return [state](const Tensors& in) -> Tensors {
      auto [out, mean, variance, saved_mean, saved_variance] =
          batch_norm(in[0], state[0], state[1], state[2], state[3]);
      return {out, mean, variance};
    };
  };
  CapturedFunction captured(step(a), {});
  const auto eager = step(b);
  for (int run = 0; run < 5; ++run) {
    const Tensor x = add(iota<double>({3, 2, 2}), full({3, 2, 2}, Scalar(run), DType::float64));
    const Tensors out = captured({x}), expected = eager({x});
    for (size_t i = 0; i < 3; ++i) CHECK(values(out[i]) == values(expected[i]));
    CHECK(out[1].shares_buffer_with(a[0]));
    CHECK(out[2].shares_buffer_with(a[1]));
    CHECK(values(a[0]) == values(b[0]));
    CHECK(values(a[1]) == values(b[1]));
    CHECK(a[0].version() == b[0].version());
    total(multiply(out[0], out[0])).backward();
    total(multiply(expected[0], expected[0])).backward();
    CHECK(values(a[2].grad()) == values(b[2].grad()));
    CHECK(values(a[3].grad()) == values(b[3].grad()));
  }
  CHECK(captured.stats().misses == 1);
}

TEST_CASE("33: parameters without a name in the scope take none that the scope has") {
  const Tensor z = vec({1, 1}), w = leaf({2, 2}), y = vec({3, 3});
  program::Scope scope;
  scope.set("p0", z);
  scope.set("w.grad", y);
  const auto function = [&](const Tensors& in) -> Tensors {
    w.set_grad(add(w.grad(), in[0]));
    return {multiply(multiply(w, in[0]).detach(), y), add(z, in[0])};
  };
  w.set_grad(vec({0, 0}));
  CapturedFunction captured(function, {.scope = &scope});
  std::vector<std::string> names;
  for (const program::Named& each : captured.trace({vec({1, 2})}).program.parameters) names.push_back(each.name);
  std::sort(names.begin(), names.end());
  CHECK(std::unique(names.begin(), names.end()) == names.end());
  program::Scope all = scope;
  const program::Trace& trace = captured.trace({vec({1, 2})});
  for (size_t i = 0; i < trace.parameters.size(); ++i) {
    const std::string& name = trace.program.parameters[i].name;
    if (trace.parameters[i].leaf.defined()) continue;
    CHECK((!scope.has(name) || scope.get(name).impl() == trace.parameters[i].tensor.impl()));
    all.set(name, trace.parameters[i].tensor);
  }
  CapturedFunction loaded(program::from_json(program::to_json(trace), all));
  CHECK(values(loaded({vec({1, 2})})[0]) == Values{6, 12});
  CHECK(values(loaded({vec({1, 2})})[1]) == Values{2, 3});
}

TEST_CASE("29: a file has the elements of constants, and the scope need not") {
  const CapturedFunction captured = capture(
      [](const Tensors& in) -> Tensors {
        return {add(in[0], vec({-0.0, 1e-300}))};
      },
      {vec({1, 2})});
  const std::string text = program::to_json(CapturedFunction(captured).trace({vec({1, 2})}));
  CapturedFunction loaded(program::from_json(text, {}));
  CHECK(values(loaded({vec({0, 0})})[0]) == Values{0, 1e-300});
  CHECK(program::to_json(loaded.trace({vec({1, 2})})) == text);
}

}  // namespace capture_test
