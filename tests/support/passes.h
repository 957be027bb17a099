// Helpers for tests of passes: programs before and after a pass, and captured runs with and without
// passes, compared bit for bit.
#pragma once

#include <catch2/catch.hpp>

#include <bit>
#include <limits>

#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace shard::test {

using program::Function;
using program::Program;

using PassRun = Program (*)(const Program&);

inline Tensor constant(double value, const Dims& dims = {4}) { return full(dims, Scalar(value), DType::float64); }
inline Tensor doubled(const Tensor& x) { return scale(x, Scalar(2), Scalar(0), true); }

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The elements as bits: -0.0 differs from 0.0, and a NaN equals itself.
inline std::vector<uint64_t> bits(const Values& elements) {
  std::vector<uint64_t> result;
  for (const double value : elements) result.push_back(std::bit_cast<uint64_t>(value));
  return result;
}
inline std::vector<uint64_t> bits(const Tensor& x) { return bits(values(x)); }

inline Program traced(const Function& function, const Tensors& inputs) {
  return program::trace(function, inputs).program;
}

/// The program of a function after a pass.
inline Program passed(PassRun pass, const Function& function, const Tensors& inputs) {
  const Program before = traced(function, inputs);
  before.verify();
  Program after = pass(before);
  after.verify();
  return after;
}

inline int count(const Program& program, std::string_view name) {
  int found = 0;
  for (const program::Op& op : program.ops) found += op.name() == name;
  return found;
}

/// Runs a function captured with and without passes and eagerly, a few times each, and compares
/// outputs and the inputs after the run.
inline void check_same(const Function& function, const std::function<Tensors(int run)>& make) {
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
inline void check_same(const Function& function) {
  check_same(function, [](int run) -> Tensors {
    return {vec({-0.0, 1.5 + run, -2, kInf}), vec({3, kNan, -kInf, 0.25 - run})};
  });
}

}  // namespace shard::test
