// Differences between programs.
#include <catch2/catch.hpp>

#include "shard/program/capture/function.h"
#include "shard/program/ir/diff.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace diff_test {

using namespace shard;
using namespace shard::test;
using program::diff;

namespace {

program::Program program_of(const program::Function& function, const Tensors& inputs) {
  return CapturedFunction(function, {}).trace(inputs).program;
}

}  // namespace

TEST_CASE("34: programs that differ in the numbers of their values alone are equal") {
  const Tensor p = vec({1, 2}), q = vec({1, 2});
  // A parameter gets its number where it is first used.
  const auto late = program_of([&](const Tensors& in) -> Tensors { return {multiply(exp(in[0]), p)}; }, {vec({1, 2})});
  program::Program early;
  const program::Type type = late.value(1).type;
  early.parameters.push_back({"p0", early.add_value(type)});
  early.inputs.push_back({"input_0", early.add_value(type)});
  for (const program::Op& op : late.ops) {
    program::Op copy = op;
    copy.outputs.clear();
    for (program::Operand& input : copy.inputs)
      input.value = input.value == late.parameters[0].value ? 1 : input.value == 1 ? 2 : 3;
    const std::optional<program::Type> given = type;
    const program::ValueId none = 0;
    early.add_op(copy, {&given, 1}, {&none, 1}, {false});
  }
  early.outputs = {{"output_0", 4}};
  early.verify();
  CHECK(to_text(early) != to_text(late));
  CHECK(diff(late, early).empty());
  CHECK(diff(late, late).empty());
}

TEST_CASE("34: a diff has the ops that one program has alone, and not those after them") {
  const auto a =
      program_of([](const Tensors& in) -> Tensors { return {multiply(tanh(exp(in[0])), in[0])}; }, {vec({1, 2})});
  const auto b =
      program_of([](const Tensors& in) -> Tensors { return {multiply(tanh(relu(exp(in[0]))), in[0])}; }, {vec({1, 2})});
  CHECK(diff(a, b) ==
        "+ %b1: f64[2] = relu(x: %2)\n"
        "- %3: f64[2] = tanh(x: %2)\n"
        "+ %3: f64[2] = tanh(x: %b1)\n");
  CHECK(diff(b, a) ==
        "- %3: f64[2] = relu(x: %2)\n"
        "- %4: f64[2] = tanh(x: %3)\n"
        "+ %4: f64[2] = tanh(x: %2)\n");
}

TEST_CASE("34: a diff has attributes, types, operands, outputs and draws that differ") {
  const auto scaled = [](double by) {
    return [by](const Tensors& in) -> Tensors { return {scale(in[0], Scalar(by), Scalar(0), true)}; };
  };
  const auto a = program_of(scaled(2), {vec({1, 2})});
  CHECK_THAT(diff(a, program_of(scaled(3), {vec({1, 2})})),
             Catch::Contains("- %2: f64[2] = scale(x: %1, scale=2") &&
                 Catch::Contains("+ %b1: f64[2] = scale(x: %1, scale=3") &&
                 Catch::Contains("- return output_0 %2\n+ return output_0 %b1\n"));
  CHECK_THAT(diff(a, program_of(scaled(2), {iota<double>({3})})),
             Catch::Contains("- input input_0 %1: f64[2]\n+ input input_0 %1: f64[3]\n"));
  const auto order = [](bool swap) {
    return [swap](const Tensors& in) -> Tensors { return {swap ? subtract(in[1], in[0]) : subtract(in[0], in[1])}; };
  };
  CHECK(
      diff(program_of(order(false), {vec({1, 2}), vec({1, 2})}), program_of(order(true), {vec({1, 2}), vec({1, 2})})) ==
      "- %3: f64[2] = subtract(x: %1, y: %2)\n"
      "+ %3: f64[2] = subtract(x: %2, y: %1)\n");
  const auto drawn = [](int before) {
    return [before](const Tensors&) -> Tensors {
      for (int i = 0; i < before; ++i) uniform({2}, DType::float64);
      return {uniform({2}, DType::float64)};
    };
  };
  CHECK_THAT(diff(program_of(drawn(0), {}), program_of(drawn(1), {})),
             Catch::Contains("# draw 1\n") && Catch::Contains("+ draws: on meshes 0 after 0, plain 2 after 0"));
}

TEST_CASE("34: a diff has layouts and meshes") {
  run_ranks(4, [](Rank&) {
    const auto program = [](const char* layout, const char* axis) {
      const ProcessMesh* const mesh = ProcessMesh::make({2, 2}, {}, {axis, "b"});
      return program_of([](const Tensors& in) -> Tensors { return {exp(in[0])}; },
                        {distribute(iota<double>({4, 4}), DistSpec::parse(mesh, layout))});
    };
    const std::string text = diff(program("-, b", "a"), program("b, -", "a"));
    check_contains(text, "- input input_0 %1: f64[4, 4] [-, b]\n+ input input_0 %1: f64[4, 4] [b, -]\n");
    check_contains(text, "- %2: f64[4, 4] [-, b] = exp(x: %1)\n+ %b1: f64[4, 4] [b, -] = exp(x: %1)\n");
    check(diff(program("-, b", "a"), program("-, b", "c")) == "- mesh(a=2, b=2)\n+ mesh(c=2, b=2)\n", "the mesh");
  });
}

}  // namespace diff_test
