// Passes: what they change, what they must not change, and that programs do the same after them, bit for bit.
#include <catch2/catch.hpp>

#include <chrono>
#include <cmath>
#include <iostream>

#include "shard/autograd/autograd.h"
#include "shard/shard.h"
#include "support/passes.h"

namespace passes_test {

using namespace shard;
using namespace shard::test;
using program::Kind;

// --- dead code elimination

TEST_CASE("passes: results that nobody uses are not computed, whole chains of them") {
  const Function function = [](const Tensors& in) -> Tensors {
    const Tensor unused = exp(add(in[0], in[1]));
    const Tensor view = reshape(unused, {2, 2});
    return {multiply(in[0], in[1])};
  };
  const Program program = passed(&program::dce, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
  CHECK(to_text(program) ==
        "program(\n"
        "    input input_0 %1: f64[4]\n"
        "    input input_1 %2: f64[4])\n"
        "  %3: f64[4] = multiply(x: %1, y: %2)\n"
        "  return output_0 %3\n");
  check_same(function);
}

TEST_CASE("passes: writes into buffers of the program that nobody reads afterwards are dropped, others stay") {
  const Function function = [](const Tensors& in) -> Tensors {
    Tensor a = exp(in[0]);
    const Tensor sum = add(a, in[1]);
    relu_(a);  // nothing reads it
    Tensor b = exp(in[1]);
    Tensor view = reshape(b, {2, 2});
    relu_(view);  // read through b
    return {sum, doubled(b)};
  };
  const Program program = passed(&program::dce, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
  CHECK(count(program, "relu_") == 1);
  CHECK(count(program, "reshape") == 1);
  check_same(function);
}

TEST_CASE("passes: writes that reach an input, a parameter or an output are kept, through views too") {
  Tensor p = vec({1, 2, 3, 4});
  const Function function = [&](const Tensors& in) -> Tensors {
    Tensor view = reshape(reshape(p, {2, 2}), {4});
    add_(view, in[0]);
    Tensor x = in[1];
    Tensor other = reshape(x, {4, 1});
    scale_(other, Scalar(2), Scalar(0), true);
    Tensor out = exp(in[0]);
    Tensor of_out = reshape(out, {2, 2});
    relu_(of_out);
    return {out};
  };
  const Program program = passed(&program::dce, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
  CHECK(count(program, "add_") == 1);
  CHECK(count(program, "scale_") == 1);
  CHECK(count(program, "relu_") == 1);
  CapturedFunction captured(function, {});
  const Tensor x = vec({1, 1, 1, 1});
  captured({vec({1, 1, 1, 1}), x});
  CHECK(values(p) == Values{2, 3, 4, 5});
  CHECK(values(x) == Values{2, 2, 2, 2});
}

TEST_CASE("passes: a random op that nobody reads is dropped, and the others draw what they drew") {
  const Function function = [](const Tensors& in) -> Tensors {
    const Tensor unused = uniform({4}, DType::float64);
    return {multiply(in[0], uniform({4}, DType::float64)), uniform({4}, DType::float64)};
  };
  CHECK(count(passed(&program::dce, function, {vec({1, 2, 3, 4})}), "uniform") == 2);
  check_same(function);
}

// --- common subexpression elimination

TEST_CASE("passes: equal ops are done once, with what is computed from them") {
  const Function function = [](const Tensors& in) -> Tensors {
    const auto branch = [&] { return tanh(reshape(exp(add(in[0], in[1])), {2, 2})); };
    return {multiply(branch(), branch())};
  };
  const Program program = passed(&program::cse, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
  CHECK(program.ops.size() == 5);
  CHECK(count(program, "multiply") == 1);
  check_same(function);
}

TEST_CASE("passes: equal ops across a write of what they read are not the same") {
  Tensor p = vec({1, 2, 3, 4});
  const Function function = [&](const Tensors& in) -> Tensors {
    const Tensor before = exp(p);
    Tensor view = reshape(p, {2, 2});
    scale_(view, Scalar(0.5), Scalar(0), true);
    return {add(before, exp(p)), in[0]};
  };
  CHECK(count(passed(&program::cse, function, {vec({1})}), "exp") == 2);
  CapturedFunction captured(function, {});
  CHECK(values(captured({vec({1})})[0])[1] == std::exp(2.0) + std::exp(1.0));
}

TEST_CASE("passes: equal results that are written, or that are both outputs, stay two buffers") {
  const Tensors in = {vec({1, 2, 3, 4})};
  const Function two_outputs = [](const Tensors& in) -> Tensors { return {exp(in[0]), exp(in[0])}; };
  CHECK(count(passed(&program::cse, two_outputs, in), "exp") == 2);
  CapturedFunction captured(two_outputs, {});
  Tensors out = captured(in);
  scale_(out[0], Scalar(0), Scalar(0), true);
  CHECK(values(out[1])[0] == std::exp(1.0));

  const Function first_written = [](const Tensors& in) -> Tensors {
    Tensor a = tanh(in[0]);
    scale_(a, Scalar(2), Scalar(0), true);
    const Tensor b = tanh(in[0]), c = tanh(in[0]);
    return {add(a, multiply(b, c))};
  };
  CHECK(count(passed(&program::cse, first_written, in), "tanh") == 2);
  check_same(first_written);

  const Function second_written = [](const Tensors& in) -> Tensors {
    const Tensor a = tanh(in[0]);
    Tensor b = tanh(in[0]);
    scale_(b, Scalar(2), Scalar(0), true);
    return {add(a, b)};
  };
  CHECK(count(passed(&program::cse, second_written, in), "tanh") == 2);
  check_same(second_written);

  const Function one_output = [](const Tensors& in) -> Tensors { return {doubled(exp(in[0])), exp(in[0])}; };
  CHECK(count(passed(&program::cse, one_output, in), "exp") == 1);
  check_same(one_output);

  const Function third_output = [](const Tensors& in) -> Tensors {
    return {doubled(exp(in[0])), exp(in[0]), exp(in[0])};
  };
  CHECK(count(passed(&program::cse, third_output, in), "exp") == 2);
}

TEST_CASE("passes: views of one tensor are one view, unless they are outputs") {
  const Tensors in = {vec({1, 2, 3, 4})};
  const Function inner = [](const Tensors& in) -> Tensors {
    Tensor x = exp(in[0]);
    Tensor a = reshape(x, {2, 2});
    const Tensor b = reshape(x, {2, 2});
    relu_(a);
    return {add(a, b)};
  };
  CHECK(count(passed(&program::cse, inner, in), "reshape") == 1);
  check_same(inner);
  const Function outputs = [](const Tensors& in) -> Tensors {
    const Tensor x = exp(in[0]);
    return {reshape(x, {2, 2}), reshape(x, {2, 2})};
  };
  CHECK(count(passed(&program::cse, outputs, in), "reshape") == 2);
  CapturedFunction captured(outputs, {});
  const Tensors out = captured(in);
  CHECK(out[0].shares_buffer_with(out[1]));
}

TEST_CASE("passes: ops with other attributes, and random ones, are not the same") {
  const Tensors in = {vec({-0.0, 2, 3, 4})};
  const Function zeros = [](const Tensors& in) -> Tensors {
    return {divide(constant(1), add(scale(in[0], Scalar(1), Scalar(0.0), true), constant(0))),
            scale(in[0], Scalar(1), Scalar(-0.0), true)};
  };
  CHECK(count(passed(&program::cse, zeros, in), "scale") == 2);
  check_same(zeros);
  const Function random = [](const Tensors&) -> Tensors {
    return {subtract(uniform({4}, DType::float64), uniform({4}, DType::float64))};
  };
  CHECK(count(passed(&program::cse, random, {}), "uniform") == 2);
}

TEST_CASE("passes: what backward reads and what the caller gets stay two buffers") {
  const Tensor x = vec({1, 2}).set_requires_grad(true), w = vec({3, 4}).set_requires_grad(true);
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        return {add(in[0], in[0]), multiply(add(in[0], in[0]), w)};
      },
      {});
  Tensors out = captured({x});
  {
    const NoGrad off;
    scale_(out[0], Scalar(0), Scalar(0), true);
  }
  sum(out[1], {}, false).backward();
  CHECK(values(w.grad()) == Values{2, 4});
}

// --- constant folding

TEST_CASE("passes: ops on constants become constants, also larger ones") {
  const Function function = [](const Tensors& in) -> Tensors {
    const Tensor c = multiply(constant(3), scale(constant(0.5), Scalar(4), Scalar(-8), true));  // -18
    return {add(in[0], expand(reshape(slice(c, {0}, {0}, {1}), {1}), {4})),
            cast(cast(c, DType::int32), DType::float64)};
  };
  const Program folded = passed(&program::constant_folding, function, {vec({1, 2, 3, 4})});
  const Program program = program::dce(folded);
  CHECK(to_text(program) ==
        "program(\n"
        "    input input_0 %1: f64[4])\n"
        "  %2: f64[4] = full(shape=[4], value=-18, dtype=float64, place=cpu)\n"
        "  %3: f64[4] = add(x: %1, y: %2)\n"
        "  %4: f64[4] = full(shape=[4], value=-18, dtype=float64, place=cpu)\n"
        "  return output_0 %3\n"
        "  return output_1 %4\n");
  check_same(function);
}

TEST_CASE("passes: constants keep -0.0 and infinities, and NaNs are left to the op") {
  const Function function = [](const Tensors& in) -> Tensors {
    return {multiply(constant(-1), constant(0)),
            divide(constant(1), constant(-0.0)),
            subtract(constant(kInf), constant(kInf)),
            add(in[0], full_like(in[0], Scalar(-0.0))),
            cast(full({2}, Scalar(0.1), DType::float32), DType::float64),
            doubled(full_like(in[1], Scalar(kInf)))};
  };
  const Program program = passed(&program::constant_folding, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
  CHECK(count(program, "multiply") == 0);
  CHECK(count(program, "divide") == 0);
  CHECK(count(program, "subtract") == 1);
  CHECK(count(program, "full_like") == 0);
  CHECK(count(program, "cast") == 0);
  check_same(function);
}

TEST_CASE("passes: a constant that is written is none afterwards, and functions that are not exactly rounded stay") {
  const Tensors in = {vec({1, 2, 3, 4})};
  const Function written = [](const Tensors& in) -> Tensors {
    Tensor c = constant(1);
    const Tensor before = multiply(in[0], c);
    Tensor view = reshape(c, {2, 2});
    scale_(view, Scalar(3), Scalar(0), true);
    return {before, multiply(in[0], c), doubled(c), exp(constant(1))};
  };
  const Program program = passed(&program::constant_folding, written, in);
  CHECK(count(program, "multiply") == 2);  // the first is an output, which must not be the input's buffer
  CHECK(count(program, "scale") == 1);
  CHECK(count(program, "exp") == 1);
  check_same(written);
  const Function throws = [](const Tensors&) -> Tensors {
    return {divide(full({2}, Scalar(1), DType::int32), full({2}, Scalar(0), DType::int32))};
  };
  CHECK(count(passed(&program::constant_folding, throws, {}), "divide") == 1);
}

TEST_CASE("passes: ops that change nothing vanish, and x + 0.0 is not one of them") {
  const Function function = [](const Tensors& in) -> Tensors {
    const Tensor x = divide(in[0], constant(2)), y = divide(in[1], constant(2));
    Tensors same;
    for (const Tensor& each : {x, y}) {
      const Tensor a = multiply(divide(multiply(constant(1, {1}), each), constant(1, {})), constant(1));
      const Tensor b = assign(subtract(add(a, constant(-0.0)), constant(0.0)));
      same.push_back(square(cast(expand(b, {4}), DType::float64)));
      // 1 / x distinguishes the zeros.
      same.push_back(divide(constant(1), add(each, constant(0.0))));
      same.push_back(divide(constant(1), subtract(constant(0.0), each)));
      same.push_back(divide(constant(1), each));
    }
    return same;
  };
  const Program program =
      program::dce(passed(&program::constant_folding, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})}));
  CHECK(count(program, "multiply") == 0);
  CHECK(count(program, "assign") == 0);
  CHECK(count(program, "cast") == 0);
  CHECK(count(program, "expand") == 0);
  CHECK(count(program, "add") == 2);
  CHECK(count(program, "subtract") == 2);
  CHECK(count(program, "divide") == 8);
  check_same(function);
  // Integers have one zero.
  const Function whole = [](const Tensors& in) -> Tensors {
    return {exp(cast(add(cast(in[0], DType::int64), full({4}, Scalar(0), DType::int64)), DType::float64))};
  };
  CHECK(count(passed(&program::constant_folding, whole, {vec({1, 2, 3, 4})}), "add") == 0);
}

TEST_CASE("passes: a copy stays where one of the two buffers is written, or is the caller's") {
  Tensor p = vec({1, 2, 3, 4});
  const Tensors in = {vec({1, 2, 3, 4})};
  const Function source_written = [&](const Tensors& in) -> Tensors {
    const Tensor before = assign(p);
    add_(p, in[0]);
    return {multiply(before, p)};
  };
  CHECK(count(passed(&program::constant_folding, source_written, in), "assign") == 1);
  const Function copy_written = [](const Tensors& in) -> Tensors {
    const Tensor x = exp(in[0]);
    Tensor copy = assign(x);
    relu_(copy);
    return {multiply(x, copy)};
  };
  CHECK(count(passed(&program::constant_folding, copy_written, in), "assign") == 1);
  check_same(copy_written);
  const Function returned = [&](const Tensors& in) -> Tensors { return {assign(in[0]), assign(p)}; };
  CHECK(count(passed(&program::constant_folding, returned, in), "assign") == 2);
  const Function both_returned = [](const Tensors& in) -> Tensors {
    const Tensor x = exp(in[0]);
    return {x, assign(x)};
  };
  CHECK(count(passed(&program::constant_folding, both_returned, in), "assign") == 1);
  const Function one_returned = [](const Tensors& in) -> Tensors { return {assign(exp(in[0]))}; };
  CHECK(count(passed(&program::constant_folding, one_returned, in), "assign") == 0);
  check_same(one_returned);
  // A write before the copy does no harm.
  const Function written_before = [](const Tensors& in) -> Tensors {
    Tensor x = exp(in[0]);
    relu_(x);
    return {square(assign(x))};
  };
  CHECK(count(passed(&program::constant_folding, written_before, in), "assign") == 0);
  check_same(written_before);
}

// --- in-place

TEST_CASE("passes: an elementwise op writes over an argument that is read there last") {
  const Function function = [](const Tensors& in) -> Tensors { return {add(square(relu(exp(in[0]))), in[1])}; };
  const Program program = passed(&program::donate_buffers, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
  CHECK(to_text(program) ==
        "program(\n"
        "    input input_0 %1: f64[4]\n"
        "    input input_1 %2: f64[4])\n"
        "  %3: f64[4] = exp(x: %1)\n"
        "  %4: f64[4] in %3 written = relu_(x: %3)\n"
        "  %5: f64[4] in %3 written = square_(x: %4@%4)\n"
        "  %6: f64[4] in %3 written = add_(x: %5@%5, y: %2)\n"
        "  return output_0 %6\n");
  check_same(function);
}

TEST_CASE(
    "passes: nothing is written over that is read later, the caller's, of another type, or read otherwise by the op") {
  Tensor p = vec({1, 2, 3, 4});
  const Tensors in = {vec({1, 2, 3, 4}), vec({4, 3, 2, 1})};
  const auto in_place = [&](const Function& function) {
    const Program program = passed(&program::donate_buffers, function, in);
    check_same(function);
    return std::count_if(program.ops.begin(), program.ops.end(), [](const program::Op& op) { return op.inplace; });
  };
  CHECK(in_place([&](const Tensors& in) -> Tensors { return {relu(in[0]), relu(p)}; }) == 0);
  CHECK(in_place([](const Tensors& in) -> Tensors {
          const Tensor x = exp(in[0]);
          return {x, relu(x)};
        }) == 0);
  CHECK(in_place([](const Tensors& in) -> Tensors {
          const Tensor x = exp(in[0]), view = reshape(x, {2, 2}), y = relu(x);
          return {matmul(view, view), y};
        }) == 0);
  CHECK(in_place([](const Tensors& in) -> Tensors {
          return {cast(cast(doubled(in[0]), DType::int32), DType::float64), sum(tanh(in[1]), {}, false)};
        }) == 0);
  CHECK(in_place([](const Tensors& in) -> Tensors {
          const Tensor x = exp(in[0]);
          return {add(x, reshape(reshape(x, {2, 2}), {4}))};
        }) == 0);
  CHECK(in_place([](const Tensors& in) -> Tensors {
          const Tensor x = sum(in[0], {}, true);  // would grow
          return {add(x, in[1])};
        }) == 0);
  CHECK(in_place([](const Tensors& in) -> Tensors {
          const Tensor x = exp(in[0]);
          return {add(x, x)};
        }) == 1);
  CHECK(in_place([](const Tensors& in) -> Tensors { return {cumsum(exp(in[0]))}; }) == 0);
}

TEST_CASE("passes: programs that write in place take less memory, and outputs of a run are not written by the next") {
  const auto chain = [](const Tensors& in) -> Tensors {
    Tensor x = exp(in[0]);
    for (int i = 0; i < 5; ++i) x = tanh(x);
    return {sum(x, {}, false), relu(exp(in[0]))};
  };
  CapturedFunction with(chain, {}), without(chain, {.passes = false});
  const Tensor x = iota<double>({1000});
  const Tensors first = with({vec({1, 2})});
  const auto kept = bits(first[1]);
  with({vec({5, 6})});
  CHECK(bits(first[1]) == kept);
  with({x}), without({x});
  CHECK(with.memory({x}).block < without.memory({x}).block);
  CHECK(with.memory({x}).outputs == without.memory({x}).outputs);
}

// --- all passes

TEST_CASE("passes: each is shown what it did, can be left out, and a wrong name is an error") {
  const Function function = [](const Tensors& in) -> Tensors { return {add(exp(in[0]), exp(in[0]))}; };
  std::vector<std::string> seen;
  const Tensors in = {vec({1, 2})};
  CapturedFunction captured(function,
                            {.observer = [&](std::string_view pass, const Program& before, const Program& after) {
                              seen.push_back(std::string(pass) + " " + std::to_string(before.ops.size()) + " " +
                                             std::to_string(after.ops.size()));
                            }});
  captured(in);
  CHECK(seen == std::vector<std::string>{"constant_folding 3 3", "cse 3 2", "dce 2 2", "hoist_reshards 2 2",
                                         "place_reshards 2 2", "dce 2 2", "schedule 2 2", "rematerialize 2 2",
                                         "dce 2 2", "combine_collectives 2 2", "donate_buffers 2 2", "fuse_loops 2 2"});
  const Program program = traced(function, in);
  CHECK(program::run_passes(program).ops.size() == 2);
  CHECK(program::run_passes(program, {.skip = {"cse"}}).ops.size() == 3);
  const auto wrong_name = Catch::Contains(
      "unknown pass 'fold' to skip; the passes are constant_folding, cse, dce, hoist_reshards, place_reshards, "
      "schedule, rematerialize, combine_collectives, donate_buffers, fuse_loops");
  CHECK_THROWS_WITH(program::run_passes(program, {.skip = {"fold"}}), wrong_name);
  CHECK_THROWS_WITH(CapturedFunction(function, {.skip = {"fold"}})(in), wrong_name);
}

TEST_CASE("passes: a captured function leaves out those that its options skip, of its gradient too") {
  const Function function = [](const Tensors& in) -> Tensors { return {add(exp(in[0]), exp(in[0]))}; };
  std::vector<std::string> seen;
  CapturedFunction captured(
      function, {.skip = {"dce", "cse"}, .observer = [&](std::string_view pass, const Program&, const Program& after) {
                   seen.push_back(std::string(pass) + " " + std::to_string(after.ops.size()));
                 }});
  const Tensor x = leaf({1, 2}), expected = function({x})[0];
  const Tensor out = captured({x})[0];
  CHECK(bits(out) == bits(expected));
  const std::vector<std::string> forward = {"constant_folding 3", "hoist_reshards 3", "place_reshards 3",
                                            "schedule 3",         "rematerialize 3",  "combine_collectives 3",
                                            "donate_buffers 3",   "fuse_loops 3"};
  REQUIRE(seen.size() == 2 * forward.size());
  CHECK(std::equal(forward.begin(), forward.end(), seen.begin()));
  total(out).backward();
  const Tensor gradient = x.grad();
  x.set_grad({});
  total(expected).backward();
  CHECK(bits(gradient) == bits(x.grad()));
}

TEST_CASE("passes: programs of 10000 ops, and the time that passes take") {
  for (const int n : {1250, 2500, 5000, 10000}) {
    Program program = traced(
        [&](const Tensors& in) -> Tensors {
          Tensor x = in[0], y = in[0];
          for (int i = 0; i < n / 5; ++i) {
            const Tensor a = tanh(x), b = tanh(x);  // common
            y = add(multiply(a, constant(1)), b);
            x = y;
          }
          return {x};
        },
        {vec({1, 2, 3, 4})});
    std::cout << n << " ops:";
    for (const program::Pass& pass : program::standard_passes()) {
      const auto start = std::chrono::steady_clock::now();
      program = pass.run(program);
      const auto middle = std::chrono::steady_clock::now();
      program.verify();
      const auto ms = [](auto time) { return std::chrono::duration<double, std::milli>(time).count(); };
      std::cout << "  " << pass.name << " " << ms(middle - start) << " ms (verify "
                << ms(std::chrono::steady_clock::now() - middle) << ")";
    }
    std::cout << "\n";
    CHECK(program.ops.size() == static_cast<size_t>(2 * n / 5));  // a tanh and an addition of each round
  }
}

}  // namespace passes_test
