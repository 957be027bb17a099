// Which values share bytes, and when those change.
#include <catch2/catch.hpp>

#include "shard/program/capture/split.h"
#include "shard/program/ir/alias.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace alias_test {

using namespace shard;
using namespace shard::test;
using namespace shard::program;

namespace {

/// "%2: %3 = view of %2, %4 writes %3"
std::string text(const InplaceChain& chain) {
  std::string all = "%" + std::to_string(chain.root) + ":";
  for (const ChainLink& link : chain.links)
    all += " %" + std::to_string(link.value) + (link.written ? " writes %" : " views %") + std::to_string(link.source);
  return all;
}

std::vector<std::string> chains(const Program& program) {
  std::vector<std::string> texts;
  for (const InplaceChain& chain : inplace_chains(program)) texts.push_back(text(chain));
  return texts;
}

}  // namespace

TEST_CASE("30: chains are trees: a source may have several views and several writers") {
  Tensor p = vec({1, 2, 3, 4});
  const Trace traced = trace(
      [&](const Tensors& in) -> Tensors {
        Tensor a = reshape(p, {2, 2}), b = reshape(p, {4, 1});  // %3 and %4 view %2
        relu_(a);                                               // %5 writes %3
        const Tensor reader = exp(p);                           // %6
        scale_(b, Scalar(2), Scalar(0), true);                  // %7 writes %4
        Tensor c = reshape(a, {1, 4});                          // %8 views %5
        Tensor own = exp(in[0]);                                // %9
        add_(own, own);                                         // %10 writes %9
        return {reader, c, own};
      },
      {vec({1, 1})});
  CHECK(chains(traced.program) ==
        std::vector<std::string>{"%2: %3 views %2 %4 views %2 %5 writes %3 %7 writes %4 %8 views %5",
                                 "%9: %10 writes %9"});
  CHECK(source_of(traced.program, 8) == 2);
  CHECK(source_of(traced.program, 2) == 2);
  CHECK(source_of(traced.program, 1) == 1);
  CHECK(source_of(traced.program, 10) == 0);
  CHECK(source_of(traced.program, 6) == 0);
}

TEST_CASE("31: whether the bytes of a value are those that it had is told by the writes of its tree") {
  Tensor p = vec({1, 2}), q = vec({3, 4});
  const Trace traced = trace(
      [&](const Tensors&) -> Tensors {
        const Tensor view = reshape(p, {2, 1});  // op 0
        const Tensor a = exp(view);              // op 1
        add_(p, q);                              // op 2 writes p
        const Tensor b = exp(view);              // op 3
        return {a, b, exp(q)};                   // op 4
      },
      {});
  const AliasTrees trees(traced.program);
  const ValueId view = traced.program.ops[0].outputs[0], a = traced.program.ops[1].outputs[0];
  CHECK(trees.unchanged(view, 0, 2));
  CHECK_FALSE(trees.unchanged(view, 2, 3));
  CHECK_FALSE(trees.unchanged(view, 0, 5));
  CHECK(trees.unchanged(view, 3, 5));
  CHECK(trees.unchanged(traced.program.parameters[1].value, 0, 5));
  CHECK(trees.unchanged(a, 2, 5));
  REQUIRE(trees.last_write(view, 5) != nullptr);
  CHECK(trees.last_write(view, 5)->op == 2);
  CHECK(trees.last_write(view, 2) == nullptr);
  CHECK(trees.of(view).entry);
  CHECK_FALSE(trees.of(view).output);
  CHECK(trees.of(a).output);
  CHECK_FALSE(trees.of(a).entry);
}

TEST_CASE("33: inputs and parameters that share a buffer are members of one tree") {
  Tensor x = vec({1, 2});
  Tensor view = reshape(x, {2, 1});
  const Trace traced = trace(
      [&](const Tensors& in) -> Tensors {
        Tensor target = in[0];
        add_(target, target);
        return {exp(view), exp(in[1])};
      },
      {x, view});
  const Program& program = traced.program;
  CHECK(program.value(program.inputs[1].value).source == program.inputs[0].value);
  CHECK(program.value(program.parameters[0].value).source == program.inputs[0].value);
  CHECK(program.ops[1].inputs[0].state == program.ops[0].outputs[0]);
  CHECK(program.ops[2].inputs[0].state == program.ops[0].outputs[0]);
}

TEST_CASE("29: a program that is not consistent is refused with all that is wrong") {
  const auto traced = [] {
    return trace(
               [](const Tensors& in) -> Tensors {
                 Tensor y = exp(in[0]);
                 relu_(y);
                 return {add(y, in[0])};
               },
               {vec({1, 2})})
        .program;
  };
  traced().verify();
  const auto problem = [&](const std::function<void(Program&)>& change) -> std::string {
    Program program = traced();
    change(program);
    try {
      program.verify();
    } catch (const Error& error) { return error.what(); }
    return "none";
  };
  CHECK_THAT(problem([](Program& p) { p.ops[2].inputs[0].state = 0; }),
             Catch::Contains("op 2 (add) reads %3 in the state after %0, but the last write before it is %3"));
  CHECK_THAT(problem([](Program& p) { std::swap(p.ops[1], p.ops[2]); }),
             Catch::Contains("reads %3 before it is made") && Catch::Contains("(3 problems)"));
  CHECK_THAT(problem([](Program& p) { p.value(4).type.meta.dims = {3}; }),
             Catch::Contains("%4 of op 2 (add) is f64[3], but the op computes f64[2]"));
  CHECK_THAT(problem([](Program& p) { p.value(3).source = 1; }), Catch::Contains("which is not one of its inputs"));
  CHECK_THAT(problem([](Program& p) { p.outputs[0].value = 9; }),
             Catch::Contains("output 'output_0' is %9, which no op computes"));
}

}  // namespace alias_test
