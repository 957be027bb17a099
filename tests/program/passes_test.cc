// Passes: what they change, what they must leave alone, and that programs do the same after them, bit for bit.
#include <catch2/catch.hpp>

#include <bit>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>

#include "api.h"
#include "autograd/autograd.h"
#include "program/function.h"
#include "support/tensors.h"

using namespace shard;
using namespace shard::test;
using program::Function;
using program::Kind;
using program::Program;

namespace {

using PassRun = Program (*)(const Program&);

Tensor constant(double value, const Dims& dims = {4}) { return full(dims, Scalar(value), DType::float64); }
Tensor doubled(const Tensor& x) { return scale(x, Scalar(2), Scalar(0), true); }

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The elements as bits: -0.0 is not 0.0, and a NaN is itself.
std::vector<uint64_t> bits(const Values& elements) {
  std::vector<uint64_t> result;
  for (const double value : elements) result.push_back(std::bit_cast<uint64_t>(value));
  return result;
}
std::vector<uint64_t> bits(const Tensor& x) { return bits(values(x)); }

Program traced(const Function& function, const Tensors& inputs) { return program::trace(function, inputs).program; }

/// What a pass makes of a function.
Program passed(PassRun pass, const Function& function, const Tensors& inputs) {
  const Program before = traced(function, inputs);
  before.verify();
  Program after = pass(before);
  after.verify();
  return after;
}

int count(const Program& program, std::string_view name) {
  int found = 0;
  for (const program::Op& op : program.ops) found += op.name() == name;
  return found;
}

/// Runs a function captured with and without passes and eagerly, a few times each, and compares outputs and what the inputs are then.
void check_same(const Function& function, const std::function<Tensors(int run)>& make) {
  CapturedFunction with(function, {}), without(function, {.passes = false});
  for (int run = 0; run < 3; ++run) {
    std::vector<std::vector<std::vector<uint64_t>>> found;
    for (int way = 0; way < 3; ++way) {
      call::thread_generator().set_seed(static_cast<uint64_t>(run));
      const Tensors in = make(run);
      const Tensors out = way == 0 ? function(in) : way == 1 ? without(in) : with(in);
      found.emplace_back();
      for (const Tensor& each : out) found.back().push_back(bits(each));
      for (const Tensor& each : in) found.back().push_back(bits(each));
    }
    CHECK(found[1] == found[0]);
    CHECK(found[2] == found[0]);
  }
}
void check_same(const Function& function) {
  check_same(function, [](int run) -> Tensors { return {vec({-0.0, 1.5 + run, -2, kInf}), vec({3, kNan, -kInf, 0.25 - run})}; });
}

}  // namespace

// --- dead code

TEST_CASE("passes: results that nobody uses are not computed, whole chains of them") {
  const Function function = [](const Tensors& in) -> Tensors {
    const Tensor unused = exp(add(in[0], in[1]));
    const Tensor view = reshape(unused, {2, 2});
    return {multiply(in[0], in[1])};
  };
  const Program program = passed(&program::remove_dead_code, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
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
    relu_(a);  // nobody reads it
    Tensor b = exp(in[1]);
    Tensor view = reshape(b, {2, 2});
    relu_(view);  // read through b
    return {sum, doubled(b)};
  };
  const Program program = passed(&program::remove_dead_code, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
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
  const Program program = passed(&program::remove_dead_code, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
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
  CHECK(count(passed(&program::remove_dead_code, function, {vec({1, 2, 3, 4})}), "uniform") == 2);
  check_same(function);
}

// --- common subexpressions

TEST_CASE("passes: equal ops are done once, with what is computed from them") {
  const Function function = [](const Tensors& in) -> Tensors {
    const auto branch = [&] { return tanh(reshape(exp(add(in[0], in[1])), {2, 2})); };
    return {multiply(branch(), branch())};
  };
  const Program program = passed(&program::share_common, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
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
  CHECK(count(passed(&program::share_common, function, {vec({1})}), "exp") == 2);
  CapturedFunction captured(function, {});
  CHECK(values(captured({vec({1})})[0])[1] == std::exp(2.0) + std::exp(1.0));
}

TEST_CASE("passes: equal results that are written, or that are both outputs, stay two buffers") {
  const Tensors in = {vec({1, 2, 3, 4})};
  const Function two_outputs = [](const Tensors& in) -> Tensors { return {exp(in[0]), exp(in[0])}; };
  CHECK(count(passed(&program::share_common, two_outputs, in), "exp") == 2);
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
  CHECK(count(passed(&program::share_common, first_written, in), "tanh") == 2);
  check_same(first_written);

  const Function second_written = [](const Tensors& in) -> Tensors {
    const Tensor a = tanh(in[0]);
    Tensor b = tanh(in[0]);
    scale_(b, Scalar(2), Scalar(0), true);
    return {add(a, b)};
  };
  CHECK(count(passed(&program::share_common, second_written, in), "tanh") == 2);
  check_same(second_written);

  const Function one_output = [](const Tensors& in) -> Tensors { return {doubled(exp(in[0])), exp(in[0])}; };
  CHECK(count(passed(&program::share_common, one_output, in), "exp") == 1);
  check_same(one_output);

  const Function third_output = [](const Tensors& in) -> Tensors { return {doubled(exp(in[0])), exp(in[0]), exp(in[0])}; };
  CHECK(count(passed(&program::share_common, third_output, in), "exp") == 2);
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
  CHECK(count(passed(&program::share_common, inner, in), "reshape") == 1);
  check_same(inner);
  const Function outputs = [](const Tensors& in) -> Tensors {
    const Tensor x = exp(in[0]);
    return {reshape(x, {2, 2}), reshape(x, {2, 2})};
  };
  CHECK(count(passed(&program::share_common, outputs, in), "reshape") == 2);
  CapturedFunction captured(outputs, {});
  const Tensors out = captured(in);
  CHECK(out[0].shares_buffer_with(out[1]));
}

TEST_CASE("passes: ops with other attributes, and random ones, are not the same") {
  const Tensors in = {vec({-0.0, 2, 3, 4})};
  const Function zeros = [](const Tensors& in) -> Tensors {
    return {divide(constant(1), add(scale(in[0], Scalar(1), Scalar(0.0), true), constant(0))), scale(in[0], Scalar(1), Scalar(-0.0), true)};
  };
  CHECK(count(passed(&program::share_common, zeros, in), "scale") == 2);
  check_same(zeros);
  const Function random = [](const Tensors&) -> Tensors { return {subtract(uniform({4}, DType::float64), uniform({4}, DType::float64))}; };
  CHECK(count(passed(&program::share_common, random, {}), "uniform") == 2);
}

TEST_CASE("passes: what backward reads and what the caller gets stay two buffers") {
  const Tensor x = vec({1, 2}).set_requires_grad(true), w = vec({3, 4}).set_requires_grad(true);
  CapturedFunction captured([&](const Tensors& in) -> Tensors { return {add(in[0], in[0]), multiply(add(in[0], in[0]), w)}; }, {});
  Tensors out = captured({x});
  {
    const NoGrad off;
    scale_(out[0], Scalar(0), Scalar(0), true);
  }
  sum(out[1], {}, false).backward();
  CHECK(values(w.grad()) == Values{2, 4});
}

// --- constants

TEST_CASE("passes: ops on constants become constants, also larger ones") {
  const Function function = [](const Tensors& in) -> Tensors {
    const Tensor c = multiply(constant(3), scale(constant(0.5), Scalar(4), Scalar(-8), true));  // -18
    return {add(in[0], expand(reshape(slice(c, {0}, {0}, {1}), {1}), {4})), cast(cast(c, DType::int32), DType::float64)};
  };
  const Program folded = passed(&program::fold_constants, function, {vec({1, 2, 3, 4})});
  const Program program = program::remove_dead_code(folded);
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
  const Program program = passed(&program::fold_constants, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
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
  const Program program = passed(&program::fold_constants, written, in);
  CHECK(count(program, "multiply") == 2);  // the first is an output: it must not be the input's buffer
  CHECK(count(program, "scale") == 1);
  CHECK(count(program, "exp") == 1);
  check_same(written);
  const Function throws = [](const Tensors&) -> Tensors { return {divide(full({2}, Scalar(1), DType::int32), full({2}, Scalar(0), DType::int32))}; };
  CHECK(count(passed(&program::fold_constants, throws, {}), "divide") == 1);
}

TEST_CASE("passes: ops that change nothing vanish, and x + 0.0 is not one of them") {
  const Function function = [](const Tensors& in) -> Tensors {
    const Tensor x = divide(in[0], constant(2)), y = divide(in[1], constant(2));
    Tensors same;
    for (const Tensor& each : {x, y}) {
      const Tensor a = multiply(divide(multiply(constant(1, {1}), each), constant(1, {})), constant(1));
      const Tensor b = assign(subtract(add(a, constant(-0.0)), constant(0.0)));
      same.push_back(square(cast(expand(b, {4}), DType::float64)));
      // 1 / x tells the zeros apart.
      same.push_back(divide(constant(1), add(each, constant(0.0))));
      same.push_back(divide(constant(1), subtract(constant(0.0), each)));
      same.push_back(divide(constant(1), each));
    }
    return same;
  };
  const Program program = program::remove_dead_code(passed(&program::fold_constants, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})}));
  CHECK(count(program, "multiply") == 0);
  CHECK(count(program, "assign") == 0);
  CHECK(count(program, "cast") == 0);
  CHECK(count(program, "expand") == 0);
  CHECK(count(program, "add") == 2);
  CHECK(count(program, "subtract") == 2);
  CHECK(count(program, "divide") == 8);
  check_same(function);
  // Whole numbers have one zero.
  const Function whole = [](const Tensors& in) -> Tensors {
    return {exp(cast(add(cast(in[0], DType::int64), full({4}, Scalar(0), DType::int64)), DType::float64))};
  };
  CHECK(count(passed(&program::fold_constants, whole, {vec({1, 2, 3, 4})}), "add") == 0);
}

TEST_CASE("passes: a copy stays where one of the two buffers is written, or is the caller's") {
  Tensor p = vec({1, 2, 3, 4});
  const Tensors in = {vec({1, 2, 3, 4})};
  const Function source_written = [&](const Tensors& in) -> Tensors {
    const Tensor before = assign(p);
    add_(p, in[0]);
    return {multiply(before, p)};
  };
  CHECK(count(passed(&program::fold_constants, source_written, in), "assign") == 1);
  const Function copy_written = [](const Tensors& in) -> Tensors {
    const Tensor x = exp(in[0]);
    Tensor copy = assign(x);
    relu_(copy);
    return {multiply(x, copy)};
  };
  CHECK(count(passed(&program::fold_constants, copy_written, in), "assign") == 1);
  check_same(copy_written);
  const Function returned = [&](const Tensors& in) -> Tensors { return {assign(in[0]), assign(p)}; };
  CHECK(count(passed(&program::fold_constants, returned, in), "assign") == 2);
  const Function both_returned = [](const Tensors& in) -> Tensors {
    const Tensor x = exp(in[0]);
    return {x, assign(x)};
  };
  CHECK(count(passed(&program::fold_constants, both_returned, in), "assign") == 1);
  const Function one_returned = [](const Tensors& in) -> Tensors { return {assign(exp(in[0]))}; };
  CHECK(count(passed(&program::fold_constants, one_returned, in), "assign") == 0);
  check_same(one_returned);
  // A write before the copy does no harm.
  const Function written_before = [](const Tensors& in) -> Tensors {
    Tensor x = exp(in[0]);
    relu_(x);
    return {square(assign(x))};
  };
  CHECK(count(passed(&program::fold_constants, written_before, in), "assign") == 0);
  check_same(written_before);
}

// --- in-place

TEST_CASE("passes: an elementwise op writes over an argument that is read there last") {
  const Function function = [](const Tensors& in) -> Tensors { return {add(square(relu(exp(in[0]))), in[1])}; };
  const Program program = passed(&program::write_in_place, function, {vec({1, 2, 3, 4}), vec({1, 2, 3, 4})});
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

TEST_CASE("passes: nothing is written over that is read later, the caller's, of another type, or read otherwise by the op") {
  Tensor p = vec({1, 2, 3, 4});
  const Tensors in = {vec({1, 2, 3, 4}), vec({4, 3, 2, 1})};
  const auto in_place = [&](const Function& function) {
    const Program program = passed(&program::write_in_place, function, in);
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
  CHECK(in_place([](const Tensors& in) -> Tensors { return {cast(cast(doubled(in[0]), DType::int32), DType::float64), sum(tanh(in[1]), {}, false)}; }) == 0);
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

// --- reshards

namespace {

Tensor moved(const Tensor& x, const char* layout) { return reshard(x, DistSpec::parse(spec_of(x)->mesh(), layout)); }

/// On each of 4 and 5 ranks (one outside the mesh), gives `found` the program after reshard placement and dead code, and compares captured runs
/// with eager ones.
void with_placed(const Function& function, const std::function<Tensors(int run)>& make, const std::function<void(const Program&)>& found) {
  for (const int ranks : {4, 5}) {
    run_ranks(ranks, [&](Rank& rank) {
      Program program = program::place_reshards(traced(function, make(0)));
      program.verify();
      program = program::remove_dead_code(program);
      program.verify();
      found(program);
      CapturedFunction with(function, {}), without(function, {.passes = false});
      for (int run = 0; run < 2; ++run) {
        Tensors in[3], out[3];
        for (int way = 0; way < 3; ++way) {
          rank.generator.set_seed(static_cast<uint64_t>(run));
          in[way] = make(run);
          out[way] = way == 0 ? function(in[0]) : way == 1 ? without(in[1]) : with(in[2]);
        }
        for (int way = 1; way < 3; ++way) {
          for (size_t i = 0; i < out[0].size(); ++i) {
            check(!out[0][i].is_dist() || spec_of(out[way][i]) == spec_of(out[0][i]), "layout of output " + std::to_string(i));
            check(bits(whole(out[way][i])) == bits(whole(out[0][i])), "output " + std::to_string(i) + " of way " + std::to_string(way));
          }
          for (size_t i = 0; i < in[0].size(); ++i) check(bits(whole(in[way][i])) == bits(whole(in[0][i])), "input " + std::to_string(i));
        }
      }
    });
  }
}

std::function<void(const Program&)> reshards_are(int expected, std::string part = {}) {
  return [=](const Program& program) {
    check(count(program, "reshard") == expected, std::to_string(expected) + " reshards in " + to_text(program));
    if (!part.empty()) check_contains(to_text(program), part);
  };
}

}  // namespace

TEST_CASE("passes: a move through another layout that nothing else reads becomes one move") {
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(in[0], "-, -"), "b, -"))}; },
              [](int run) -> Tensors { return {on("a, b", {5, 3}, run)}; }, reshards_are(1));
  // An all-reduce and a slice become a reduce-scatter.
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(matmul(scale(in[0], Scalar(0.1), Scalar(0), true), in[1]), "a, -"), "a, b"))}; },
              [](int run) -> Tensors { return {on("a, b", {5, 6}, run), on("b, -", {6, 3})}; }, [](const Program& program) {
                reshards_are(1)(program);
                for (const program::Op& op : program.ops) {
                  if (op.kind != Kind::reshard) continue;
                  const program::Type& from = program.value(op.inputs[0].value).type;
                  check_contains(plan_reshard(from.meta, from.spec, op.layout)->describe(), "reduce_scatter");
                }
              });
}

TEST_CASE("passes: a move back to a layout that the value had is none") {
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(in[0], "-, -"), "a, b"))}; }, [](int run) -> Tensors { return {on("a, b", {5, 3}, run)}; },
              reshards_are(0));
  // The middle layout is read too, and its move stays.
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(in[0], "-, -"), "a, b")), softmax(moved(in[0], "-, -"), 1)}; },
              [](int run) -> Tensors { return {on("a, b", {5, 3}, run)}; }, reshards_are(1));
  // The caller would get the buffer of the input.
  with_placed([](const Tensors& in) -> Tensors { return {moved(moved(in[0], "-, -"), "a, b")}; }, [](int run) -> Tensors { return {on("a, b", {5, 3}, run)}; },
              reshards_are(2));
}

TEST_CASE("passes: a value is moved from where it is nearest, and once to each layout") {
  // From the replicated one it is a slice.
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(in[0], "-, -")), tanh(moved(in[0], "b, -")), exp(moved(in[0], "-, -"))}; },
              [](int run) -> Tensors { return {on("a, -", {50, 3}, run)}; }, [](const Program& program) {
                reshards_are(2)(program);
                int from_input = 0;
                for (const program::Op& op : program.ops) from_input += op.kind == Kind::reshard && op.inputs[0].value == program.inputs[0].value;
                check(from_input == 1, to_text(program));
              });
}

TEST_CASE("passes: a layout that is read besides is not paid for twice") {
  const auto one_from_input = [](const Program& program) {
    reshards_are(2)(program);
    int from_input = 0;
    for (const program::Op& op : program.ops) from_input += op.kind == Kind::reshard && op.inputs[0].value == program.inputs[0].value;
    check(from_input == 1, to_text(program));
  };
  const auto make = [](int run) -> Tensors { return {on("a, -", {50, 3}, run)}; };
  with_placed([](const Tensors& in) -> Tensors {
    const Tensor middle = moved(in[0], "-, -");
    return {doubled(middle), tanh(moved(middle, "b, -"))};
  }, make, one_from_input);
  with_placed([](const Tensors& in) -> Tensors {
    const Tensor middle = moved(in[0], "-, -"), same = moved(in[0], "-, -");
    return {doubled(same), tanh(moved(middle, "b, -"))};
  }, make, one_from_input);
}

TEST_CASE("passes: moves across a write of the source or of the moved value stay") {
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor x = in[0];
        const Tensor before = moved(x, "-, -");
        scale_(x, Scalar(2), Scalar(1), true);
        return {add(moved(before, "a, b"), x), doubled(moved(x, "-, -"))};
      },
      [](int run) -> Tensors { return {on("a, b", {5, 3}, run)}; }, reshards_are(3));
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor middle = moved(in[0], "-, -");
        relu_(middle);
        return {doubled(moved(middle, "a, b")), doubled(moved(in[0], "-, -"))};
      },
      [](int run) -> Tensors { return {on("a, b", {5, 3}, -4.0 + run)}; }, reshards_are(3));
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor middle = moved(in[0], "-, -");
        relu_(middle);
        return {doubled(middle), doubled(moved(in[0], "b, -"))};
      },
      [](int run) -> Tensors { return {on("a, -", {50, 3}, -70.0 + run)}; }, reshards_are(2));
  // The source is written after the move back: that is no longer the source.
  with_placed(
      [](const Tensors& in) -> Tensors {
        Tensor x = in[0];
        const Tensor back = moved(moved(x, "-, -"), "a, b");
        scale_(x, Scalar(2), Scalar(1), true);
        return {doubled(back)};
      },
      [](int run) -> Tensors { return {on("a, b", {5, 3}, run)}; }, reshards_are(2));
}

TEST_CASE("passes: ways of moving that could round otherwise, and capped ones, stay") {
  const auto two_sums = [](const Tensors& in) -> Tensors { return {doubled(moved(moved(sum(in[0], {0, 1}, false), "- | sum(b)"), "-"))}; };
  with_placed(two_sums, [](int run) -> Tensors { return {on("a, b, -", {5, 3, 2}, run)}; }, reshards_are(2));
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(sum(in[0], {0, 1}, false), "-"), "b"))}; },
              [](int run) -> Tensors { return {on("a, b, -", {5, 3, 4}, run)}; }, reshards_are(2));
  // A sum of -0.0 and nothing is 0.0.
  with_placed([](const Tensors& in) -> Tensors { return {square(moved(moved(in[0], "a, - | sum(b)"), "a, b"))}; },
              [](int run) -> Tensors { return {on("a, b", {5, 3}, run)}; }, reshards_are(2));
  const ProcessMesh* const capped = mesh22({.memory_cap = 1 << 20});
  with_placed([](const Tensors& in) -> Tensors { return {doubled(moved(moved(in[0], "-, -"), "b, -"))}; },
              [=](int run) -> Tensors { return {on("a, b", {5, 3}, run, capped)}; }, reshards_are(2));
}

TEST_CASE("passes: small moves with equal steps share their collectives, and large ones do not") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor x = in[0], y = in[1];
    const Tensor a = moved(doubled(x), "-, -"), b = moved(tanh(y), "-, -");
    const Tensor c = moved(x, "-, -");  // whose source is written before others are ready
    scale_(x, Scalar(3), Scalar(0), true);
    const Tensor d = moved(exp(y), "-, -");
    return {add(a, b), c, matmul(d, moved(matmul(d, a), "-, -"))};
  };
  const auto make = [](Dims dims) { return [=](int run) -> Tensors { return {on("a, -", dims, 1e-3 * run), on("a, -", dims, -1)}; }; };
  const auto order = [](const Program& program) {
    std::string text;
    for (const program::Op& op : program.ops) text += op.kind == Kind::reshard ? "R" : ".";
    return text;
  };
  with_placed(function, make({3, 3}), [&](const Program& program) {
    const Program batched = program::batch_reshards(program);
    batched.verify();
    check_contains(to_text(batched), "%7: f64[3, 3] [-, -] = reshard(%1, layout=[-, -]) with the one before");
    Program wrong = batched;
    wrong.ops[5].joins = true;  // an op after a move
    check_contains(error_of([&] { wrong.verify(); }, ErrorCode::internal), fmt::format("op 5 ({}) cannot run with the one before it", wrong.ops[5].name()));
    const Program twice = program::run_passes(program::run_passes(program));
    check(order(twice) == order(program::run_passes(program)), "passes find nothing more to do");
    check(order(program).starts_with(".R.RR..R") && order(batched).starts_with("..RRR..R"), order(program) + " " + order(batched));
  });
  with_placed(function, make({300, 300}), [&](const Program& program) { check(order(program::batch_reshards(program)) == order(program), "large ones stay"); });
  run_ranks(4, [&](Rank& rank) {
    CapturedFunction with(function, {}), without(function, {.passes = false});
    const Tensors in = make({3, 3})(0);
    int64_t calls[2];
    for (const bool passes : {false, true}) {
      const Tensors warm = (passes ? with : without)(in);
      rank.trace.clear();
      const Tensors out = (passes ? with : without)(in);
      calls[passes] = static_cast<int64_t>(rank.trace.events().size());
    }
    check(calls[0] == 4 && calls[1] == 2, "collectives: " + std::to_string(calls[0]) + " and " + std::to_string(calls[1]));
  });
}

TEST_CASE("passes: reductions that share a collective have the bits of those alone") {
  const auto tenth = [](const Tensor& x) { return scale(x, Scalar(0.1), Scalar(0), true); };
  const auto function = [=](const Tensors& in) -> Tensors {
    const Tensor x = tenth(in[0]), w = tenth(in[1]), v = tenth(in[2]);
    const Tensor a = matmul(x, w), b = matmul(x, v), c = matmul(x, w), d = sum(x, {1}, false);
    return {multiply(relu(a), sum(relu(b), {1}, true)), moved(c, "a, b"), moved(b, "a, b"), relu(d)};
  };
  with_placed(function, [](int run) -> Tensors { return {on("a, b", {5, 7}, run - 10), on("b, -", {7, 3}, -8), on("b, -", {7, 5}, 2)}; }, [](const Program& program) {
    const auto lines = to_text(program::batch_reshards(program));
    check(count(program, "reshard") >= 4, lines);
  });
}

TEST_CASE("passes: what goes on and off a mesh is left alone, because ranks may do different things with plain tensors") {
  run_ranks(4, [](Rank& rank) {
    const DistSpec* const rows = DistSpec::parse(mesh22(), "a, -");
    // Rank 0 has two values to tell, the others two equal placeholders; and rank 0 alone uses what it gets back.
    const auto function = [&](const Tensors& in) -> Tensors {
      const Tensor empty = full({4, 2}, Scalar(0), DType::float64);
      const Tensor a = distribute(rank.id() == 0 ? in[0] : empty, rows, from_rank(0)), b = distribute(rank.id() == 0 ? doubled(in[0]) : empty, rows, from_rank(0));
      Tensor whole = full(multiply(a, b)), again = full(multiply(a, b));
      if (rank.id() != 0) return {a};
      relu_(again);
      return {a, whole, again};
    };
    CapturedFunction captured(function, {});
    const Tensor x = iota<double>({4, 2}, -3);
    const Tensors out = captured({x});
    if (rank.id() != 0) return;
    check(bits(out[1]) == bits(multiply(x, doubled(x))), "the product");
    check(bits(out[2]) == bits(out[1]), "which is not negative");
  });
}

TEST_CASE("passes: a constant that is pending is not known, because its reduction may round") {
  run_ranks(3, [](Rank&) {
    const DistSpec* const pending = DistSpec::parse(ProcessMesh::make({3}), "- | avg(a)");
    const auto function = [&](const Tensors&) -> Tensors { return {moved(full({2}, Scalar(0.1), pending, DType::float64), "-")}; };
    check(count(program::fold_constants(traced(function, {})), "reshard") == 1, "the reduction stays");
    CapturedFunction captured(function, {});
    check(bits(whole(captured({})[0])) == bits(whole(function({})[0])), "the value");
  });
}

TEST_CASE("passes: programs on meshes do after all passes what eager calls do, for uneven pieces") {
  with_placed(
      [](const Tensors& in) -> Tensors {
        const Tensor y = matmul(in[0], in[1]), z = matmul(in[0], in[1]);
        Tensor p = relu(multiply(add(y, in[2]), full({5, 3}, Scalar(1), DistSpec::parse(mesh22(), "-, a"), DType::float64)));
        softmax_(p, 0);
        const Tensor masked = multiply(dropout(p, {}, Scalar(0.5)), full({5, 3}, Scalar(0.5), DistSpec::parse(mesh22(), "-, a | sum(b)"), DType::float64));
        return {tanh(z), softmax(p, 1), masked, sum(masked, {0}, false), reshape(tanh(p), {15})};
      },
      [](int run) -> Tensors { return {on("a, b", {5, 14}, run), on("b, -", {14, 3}, 2 * run), on("-, a", {5, 3})}; }, [](const Program&) {});
}

// --- all of them

TEST_CASE("passes: each is shown what it did, can be left out, and a wrong name is an error") {
  const Function function = [](const Tensors& in) -> Tensors { return {add(exp(in[0]), exp(in[0]))}; };
  std::vector<std::string> seen;
  const Tensors in = {vec({1, 2})};
  CapturedFunction captured(function, {.observer = [&](std::string_view pass, const Program& before, const Program& after) {
                              seen.push_back(std::string(pass) + " " + std::to_string(before.ops.size()) + " " + std::to_string(after.ops.size()));
                            }});
  captured(in);
  CHECK(seen == std::vector<std::string>{"constants 3 3", "common 3 2", "dead_code 2 2", "hoist 2 2", "reshards 2 2", "dead_code 2 2", "order 2 2", "recompute 2 2", "dead_code 2 2", "batches 2 2", "inplace 2 2", "loops 2 2"});
  const Program program = traced(function, in);
  CHECK(program::run_passes(program).ops.size() == 2);
  CHECK(program::run_passes(program, {.skip = {"common"}}).ops.size() == 3);
  const auto wrong_name = Catch::Contains("there is no pass 'fold' to skip; there are constants, common, dead_code, hoist, reshards, order, recompute, batches, inplace, loops");
  CHECK_THROWS_WITH(program::run_passes(program, {.skip = {"fold"}}), wrong_name);
  CHECK_THROWS_WITH(CapturedFunction(function, {.skip = {"fold"}})(in), wrong_name);
}

TEST_CASE("passes: a captured function leaves out those that its options skip, of its gradient too") {
  const Function function = [](const Tensors& in) -> Tensors { return {add(exp(in[0]), exp(in[0]))}; };
  std::vector<std::string> seen;
  CapturedFunction captured(function, {.skip = {"dead_code", "common"}, .observer = [&](std::string_view pass, const Program&, const Program& after) {
                              seen.push_back(std::string(pass) + " " + std::to_string(after.ops.size()));
                            }});
  const Tensor x = leaf({1, 2}), expected = function({x})[0];
  const Tensor out = captured({x})[0];
  CHECK(bits(out) == bits(expected));
  const std::vector<std::string> forward = {"constants 3", "hoist 3", "reshards 3", "order 3", "recompute 3", "batches 3", "inplace 3", "loops 3"};
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
      std::cout << "  " << pass.name << " " << ms(middle - start) << " ms (verify " << ms(std::chrono::steady_clock::now() - middle) << ")";
    }
    std::cout << "\n";
    CHECK(program.ops.size() == static_cast<size_t>(2 * n / 5));  // a tanh and an addition of each round
  }
}
