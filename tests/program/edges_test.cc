// Edge cases of captures: tensors that escape, gradients that are arguments, hooks, failing runs.
#include <catch2/catch.hpp>

#include <atomic>
#include <thread>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace edges_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("33: a tensor that outlives its capture is found out by the next one, and does no harm") {
  Tensor state;
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        if (!state.defined()) state = full_like(in[0], Scalar(1));
        return {add(in[0], state)};
      },
      {});
  CHECK(values(captured({vec({1, 2})})[0]) == Values{2, 3});
  CHECK(values(captured({vec({3, 4})})[0]) == Values{4, 5});
  CHECK_THROWS_WITH(captured({vec({1, 2, 3})}), Catch::Contains("was made while another program was captured"));
  CHECK_THROWS_WITH(values(state), Catch::Contains("was made while a function was captured, so it has no value"));
  CHECK_THROWS_WITH(add(state, state), Catch::Contains("was made while a function was captured"));
  state = Tensor();
  CHECK(values(captured({vec({1, 2, 3})})[0]) == Values{2, 3, 4});
}

TEST_CASE("32: a gradient that a captured function sets to an argument is that handle") {
  const Tensor w = leaf({1, 2}), buffer = vec({0, 0});
  CapturedFunction set([&](const Tensors& in) -> Tensors { return w.set_grad(in[0]), Tensors{}; }, {});
  const Tensor given = vec({3, 4});
  set({given});
  CHECK(w.grad().impl() == given.impl());
  CapturedFunction added(
      [&](const Tensors& in) -> Tensors {
        w.set_grad(buffer);
        total(multiply(w, in[0])).backward();
        return {};
      },
      {});
  added({vec({5, 6})});
  CHECK(w.grad().impl() == buffer.impl());
  CHECK(values(buffer) == Values{5, 6});
}

TEST_CASE("32: backward inside of a captured function does not end at an input that was computed") {
  const Tensor w = leaf({1, 2});
  CapturedFunction captured(
      [](const Tensors& in) -> Tensors { return total(multiply(in[0], in[0])).backward(), Tensors{}; }, {});
  CHECK_THROWS_WITH(captured({multiply(w, w)}),
                    Catch::Contains("[backward] cannot be captured: it continues into the computation of"));
  const Tensor own = leaf({3, 4});
  captured({own});
  CHECK(values(own.grad()) == Values{6, 8});
  CHECK_THROWS_WITH(captured({multiply(w, w)}), Catch::Contains("[backward] cannot be captured"));
}

TEST_CASE("33: hooks of leaves are part of what is captured, and another hook is another capture") {
  const Tensor w = leaf({1, 2});
  CapturedFunction step([&](const Tensors& in) -> Tensors { return total(multiply(w, in[0])).backward(), Tensors{}; },
                        {});
  const auto gradient = [&](const Tensor& x) {
    w.set_grad({});
    step({x});
    return values(w.grad());
  };
  CHECK(gradient(vec({10, 20})) == Values{10, 20});
  const uint64_t hook = add_hook(w, [](const Tensor& g) { return scale(g, Scalar(0.5), Scalar(0), true); });
  CHECK(gradient(vec({10, 20})) == Values{5, 10});
  remove_hook(w, hook);
  CHECK(gradient(vec({10, 20})) == Values{10, 20});
  const Tensor x = leaf({4, 6});
  add_hook(x, [](const Tensor& g) { return scale(g, Scalar(3), Scalar(0), true); });
  gradient(x);
  CHECK(values(x.grad()) == Values{3, 6});
}

TEST_CASE("32: a leaf that is an input and a parameter gets both gradients") {
  const Tensor w = leaf({1, 2});
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors { return total(multiply(w, in[0])).backward(), Tensors{}; }, {});
  captured({w});
  CHECK(values(w.grad()) == Values{2, 4});
  captured({w});
  CHECK(values(w.grad()) == Values{4, 8});
}

TEST_CASE("32: gradients go through a view whose history came by its base") {
  const Tensor w = leaf({1, 2}), x = leaf({3, 4});
  Tensor base = vec({0, 0});
  const Tensor view = reshape(base, {2});
  add_(base, w);
  CapturedFunction captured([&](const Tensors& in) -> Tensors { return {total(multiply(in[0], view))}; }, {});
  captured({x})[0].backward();
  CHECK(values(x.grad()) == Values{1, 2});
  CHECK(values(w.grad()) == Values{3, 4});
}

TEST_CASE("32: backward holds none of its call's tensors afterwards") {
  const Tensor w = leaf({1, 2});
  CapturedFunction captured([&](const Tensors& in) -> Tensors { return {multiply(in[0], w)}; }, {});
  for (int run = 0; run < 3; ++run) {
    const Tensor x = leaf({1, 2});
    const auto held = [&] { return x.impl()->value.storage()->use_count(); };
    Tensor out = total(captured({x})[0]);
    const uint32_t with_graph = held();  // the step of the call holds its input for backward
    out.backward();
    CHECK(held() < with_graph);
  }
}

TEST_CASE("4: a run that fails counts the writes and draws of the ops that ran alone") {
  Tensor before = vec({1, 1}), after = vec({1, 1});
  const Tensor table = vec({1, 2, 3});
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        scale_(before, Scalar(2), Scalar(0), true);
        const Tensor picked = gather(table, in[0]);
        scale_(after, Scalar(2), Scalar(0), true);
        return {picked, uniform({2}, DType::float64)};
      },
      {});
  captured({Tensor::from_data(std::vector<int64_t>{0, 2}, {2})});
  const RandomKey key = call::thread_generator().state();
  CHECK_THROWS_AS(captured({Tensor::from_data(std::vector<int64_t>{0, 9}, {2})}), Error);
  CHECK(values(before) == Values{4, 4});
  CHECK(before.version() == 2);
  CHECK(values(after) == Values{2, 2});
  CHECK(after.version() == 1);
  CHECK(call::thread_generator().state().offset == key.offset);
}

TEST_CASE("31: a view whose source got another buffer has parted from it as in an eager call, of plain tensors too") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor x = exp(in[0]), view = reshape(x, {3, 2});
    transpose_(x, {1, 0});
    return {x, view};
  };
  const Tensors in = {iota<double>({2, 3})};
  CapturedFunction captured(function, {});
  for (int run = 0; run < 2; ++run) {
    const Tensors expected = function(in), out = captured(in);
    for (size_t i = 0; i < 2; ++i) CHECK(values(out[i]) == values(expected[i]));
    for (Tensor view : {expected[1], out[1]})
      CHECK_THROWS_WITH(
          square_(view),
          Catch::Contains(
              "it is a view or alias of a tensor f64[2, 3] whose buffer [transpose_] has replaced (now f64[3, 2])"));
  }
}

TEST_CASE("31: a captured function cannot part a tensor from outside from what shares its buffer") {
  const Tensor p = iota<double>({2, 3});
  const program::Function function = [&](const Tensors&) -> Tensors {
    Tensor same = p.detach();
    transpose_(same, {1, 0});
    return {assign(same)};
  };
  CHECK_THROWS_WITH(CapturedFunction(function, {})({}),
                    Catch::Contains("[transpose_] in the captured function replaces a buffer that a tensor") &&
                        Catch::Contains("from outside (f64[2, 3]) shares"));
  CHECK(p.get().value.storage()->detachment() == nullptr);
  run_ranks(2, [](Rank&) {
    const Tensor p = on("-, a", {4, 4}, 0, ProcessMesh::make({2}, {}, {"a"}));
    CapturedFunction captured(
        [&](const Tensors&) -> Tensors {
          Tensor same = p.detach();
          reshape_(same, {16});  // which needs a reshard
          return {};
        },
        {});
    check_contains(error_of([&] { captured({}); }, ErrorCode::capture),
                   "[reshape_] in the captured function replaces a buffer");
  });
}

TEST_CASE(
    "30: detach() of a parameter is not that parameter: neither as an output, nor as a gradient, nor once it is "
    "written with a history") {
  const Tensor p = leaf({1, 2}), q = leaf({3, 4}), w = leaf({0, 0});
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        Tensor written = p.detach();
        const Tensor before = p.detach();
        multiply_(written, q);
        w.set_grad(in[0].detach());
        return {before, written, in[0].detach(), p};
      },
      {});
  for (int run = 0; run < 2; ++run) {
    const Values old = values(p);
    const Tensor x = leaf({5, 6});
    q.set_grad({});
    const Tensors out = captured({x});
    CHECK(out[3].impl() == p.impl());
    for (size_t i = 0; i < 3; ++i) {
      CHECK(out[i].impl() != p.impl());
      CHECK(out[i].impl() != x.impl());
      CHECK(out[i].get().value.storage() == (i < 2 ? p : x).get().value.storage());
    }
    CHECK(w.grad().impl() != x.impl());
    CHECK(!w.grad().requires_grad());
    CHECK(p.is_leaf());
    CHECK(!out[2].requires_grad());
    total(out[1]).backward();
    CHECK(values(q.grad()) == old);
    CHECK(!p.grad().defined());
  }
}

TEST_CASE("29: a tensor that the function makes from elements is a constant: each run has a copy of it") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor sum = vec({0, 0});
    const Tensor weights = vec({1, 2});
    add_(sum, in[0]);
    return {sum, multiply(weights, in[0]), vec({5, 6})};
  };
  for (const bool passes : {true, false}) {
    CapturedFunction captured(function, {.passes = passes});
    Tensors kept;
    for (int run = 1; run <= 3; ++run) {
      const Tensors in = {vec({1.0 * run, 2})}, out = captured(in), expected = function(in);
      for (size_t i = 0; i < out.size(); ++i) CHECK(values(out[i]) == values(expected[i]));
      for (const Tensor& other : kept) CHECK(!out[2].shares_buffer_with(other));
      add_(kept.emplace_back(out[2]), vec({1, 1}));  // the caller's own
      kept.push_back(out[0]);
    }
    CHECK(captured.stats().misses == 1);
  }
}

TEST_CASE("32: a leaf that the function makes from elements has its gradient inside, and is captured once") {
  const auto function = [](const Tensors& in) -> Tensors {
    const Tensor w = leaf({3, 4});
    total(multiply(multiply(w, w), in[0])).backward();
    return {w.grad()};
  };
  CapturedFunction captured(function, {});
  for (int run = 1; run <= 3; ++run) CHECK(values(captured({vec({1.0 * run, 2})})[0]) == Values{6.0 * run, 16});
  CHECK(captured.stats().misses == 1);
}

TEST_CASE("29: a tensor that the function makes from elements and keeps is read there, and must not be changed") {
  Tensor mask, sum;
  CapturedFunction reads(
      [&](const Tensors& in) -> Tensors {
        if (!mask.defined()) mask = vec({0, 1});
        return {multiply(in[0], mask)};
      },
      {});
  CHECK(values(reads({vec({3, 4})})[0]) == Values{0, 4});
  CHECK(values(mask) == Values{0, 1});
  CHECK(values(multiply(mask, mask)) == Values{0, 1});
  CapturedFunction writes(
      [&](const Tensors& in) -> Tensors {
        if (!sum.defined()) sum = vec({0, 0});
        return {add_(sum, in[0])};
      },
      {});
  CHECK_THROWS_WITH(writes({vec({3, 4})}),
                    Catch::Contains("stores a tensor that it creates from data and then changes (f64[2])"));
  CHECK(values(sum) == Values{0, 0});
  CHECK(values(writes({vec({3, 4})})[0]) == Values{3, 4});  // now it comes from outside
  CHECK(values(writes({vec({3, 4})})[0]) == Values{6, 8});
}

TEST_CASE(
    "33: what a captured function tells tensors about their gradients does not leak out, and must be as before when it "
    "ends") {
  const Tensor w = vec({1, 2}), x = vec({3, 4});
  const auto function = [&](bool back, bool fails) {
    return [&, back, fails](const Tensors& in) -> Tensors {
      w.set_requires_grad(true);
      in[0].detach().set_requires_grad(true);
      const Tensor out = multiply(in[0], w);
      if (fails) values(out);
      if (back) w.set_requires_grad(false);
      return {out.detach()};
    };
  };
  CHECK_THROWS_AS(CapturedFunction(function(false, true), {})({x}), Error);
  CHECK(!w.requires_grad());
  CHECK_THROWS_WITH(CapturedFunction(function(false, false), {})({x}),
                    Catch::Contains("changes whether a tensor from outside (f64[2]) requires a gradient"));
  CHECK(!w.requires_grad());
  CHECK(values(CapturedFunction(function(true, false), {})({x})[0]) == Values{3, 8});
  CHECK(!w.requires_grad());
}

TEST_CASE("33: an undefined input is undefined inside, in programs and in their files") {
  const auto function = [](const Tensors& in) -> Tensors {
    if (!in[0].defined()) return {exp(in[1]), in[0]};
    return {add(in[0], in[1]), in[0]};
  };
  CapturedFunction captured(function, {});
  for (int run = 0; run < 2; ++run) {
    const Tensors out = captured({Tensor(), vec({0, 0})});
    CHECK(values(out[0]) == Values{1, 1});
    CHECK(!out[1].defined());
    CHECK(values(captured({vec({1, 2}), vec({3, 4})})[0]) == Values{4, 6});
  }
  CHECK(captured.stats().misses == 2);
  const Tensor x = leaf({0, 0});
  captured({Tensor(), x})[0].backward(vec({1, 2}));
  CHECK(values(x.grad()) == Values{1, 2});
  CapturedFunction uses([](const Tensors& in) -> Tensors { return {exp(in[0])}; }, {});
  CHECK_THROWS_WITH(uses({Tensor()}), Catch::Contains("[exp] argument 'x' is an undefined tensor"));
}

TEST_CASE("32: a captured function inside of recompute, where it is captured or has been before") {
  const Tensor w = leaf({3, 4});
  for (const bool before : {false, true}) {
    CapturedFunction captured([&](const Tensors& in) -> Tensors { return {multiply(exp(in[0]), w)}; }, {});
    const Tensor x = leaf({1, 2}), y = leaf({1, 2});
    w.set_grad({});
    if (before) captured({x});
    const Tensor out = recompute(
        [&](const Tensors& in) -> Tensors {
          return {multiply(captured(in)[0], captured({multiply(in[0], in[0])})[0])};
        },
        {x})[0];
    const Tensor expected = multiply(multiply(exp(y), w), multiply(exp(multiply(y, y)), w));
    CHECK(values(out) == values(expected));
    total(out).backward();
    const Values found = values(w.grad());
    w.set_grad({});
    total(expected).backward();
    CHECK(found == values(w.grad()));
    CHECK(values(x.grad()) == values(y.grad()));
  }
}

TEST_CASE("33: a captured function is in one thread at a time: another one is refused, and waits for its turn") {
  const Tensor p = vec({1, 2});
  CapturedFunction captured([&](const Tensors& in) -> Tensors { return {add(exp(in[0]), p)}; }, {});
  const Values expected = values(captured({vec({0, 0})})[0]);
  std::atomic<int> right = 0, wrong = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int run = 0; run < 500; ++run) {
        try {
          ++(values(captured({vec({0, 0})})[0]) == expected ? right : wrong);
        } catch (const Error& error) {
          ++(error.code() == ErrorCode::capture ? refused : wrong);
          CapturedFunction own([&](const Tensors& in) -> Tensors { return {exp(in[0])}; }, {});
          own({vec({0, 0})});
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(right + refused == 2000);
  CHECK(right > 0);
  std::thread([&] { captured({vec({0, 0})}); }).join();
  CHECK(values(captured({vec({0, 0})})[0]) == expected);
  // While one thread is running, another one is always refused.
  std::string message;
  CapturedFunction* self = nullptr;
  CapturedFunction outer(
      [&](const Tensors& in) -> Tensors {
        std::thread([&] {
          try {
            (*self)(in);
          } catch (const Error& error) { message = error.what(); }
        }).join();
        return in;
      },
      {});
  self = &outer;
  outer({vec({0, 0})});
  CHECK_THAT(message, Catch::Contains("another thread is in a call or a backward pass of this captured function"));
}

TEST_CASE("29: there is no capture of no function") {
  CHECK_THROWS_WITH(capture({}, {}), Catch::Contains("there is no function to capture"));
  CHECK_THROWS_WITH(program::trace({}, {}), Catch::Contains("there is no function to capture"));
}

TEST_CASE("32: a leaf is not written inside, and a computed input is") {
  const Tensor x = leaf({1, 2});
  CapturedFunction captured(
      [](const Tensors& in) -> Tensors {
        Tensor written = in[0];
        return {scale_(written, Scalar(2), Scalar(0), true)};
      },
      {});
  CHECK_THROWS_WITH(captured({x}), Catch::Contains("a leaf that requires a gradient"));
  const Tensor computed = multiply(x, x);
  CHECK(captured({computed})[0].impl() == computed.impl());
  total(computed).backward();
  CHECK(values(x.grad()) == Values{4, 8});
}

TEST_CASE("32: a backward pass that cannot be captured leaves no parameters and random draws of it in the program") {
  const Tensor outside = vec({1, 2}), x = leaf({3, 4});
  CustomFunction wrong;
  wrong.name = "wrong";
  wrong.forward = [](const Tensors& in) { return Tensors{multiply(in[0], in[0])}; };
  wrong.backward = [&](const Tensors&, const Tensors&, const Tensors& grads) {
    const Tensor gradient = multiply(grads[0], add(outside, uniform({2}, DType::float64)));
    return Tensors{gradient, gradient};
  };
  CapturedFunction captured([&](const Tensors& in) { return shard::apply(wrong, in); }, {});
  const program::Trace& trace = captured.trace({x});
  CHECK(trace.gradient->error.find("2 gradients for 1 inputs") != std::string::npos);
  CHECK(trace.program.parameters.empty());
  CHECK(trace.parameters.empty());
  CHECK(trace.program.plain_draws == 0);
  const RandomKey before = call::thread_generator().state();
  const Tensor out = captured({x})[0];
  CHECK(values(out.detach()) == Values{9, 16});
  CHECK(call::thread_generator().state().offset == before.offset);
  CHECK_THROWS_WITH(total(out).backward(), Catch::Contains("2 gradients for 1 inputs"));
}

}  // namespace edges_test
