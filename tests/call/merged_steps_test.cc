// Optimiser steps of lists of parameters: those of each parameter in its own layout, and what they refuse.
#include "support/merged_steps.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>

#include "support/mesh_run.h"

namespace merged_steps_test {

using namespace shard;
using namespace shard::test;

namespace {

using Numbers = std::vector<double>;

Tensor made(const Numbers& numbers) { return Tensor::from_data(numbers, {static_cast<int64_t>(numbers.size())}); }
Numbers numbers_of(const Tensor& x) { return cast(full_tensor(x).to(kCpu), DType::float64).to_vector<double>(); }

/// Two parameters, of which the first is sharded. Its gradient is not, and that of the second one is pending. Numbers
/// are one for both, or one each.
StepLists lists_on(const ProcessMesh* mesh, Device device, DType dtype, bool shares_numbers) {
  const bool narrow = size_of(dtype) == 2;
  const DType wide = narrow ? DType::float32 : dtype;
  const auto placed = [&](const Numbers& x, const char* layout, DType type) {
    return distribute(cast(made(x), type).to(device), DistSpec::parse(mesh, layout));
  };
  const auto both = [&](const Numbers& x, const Numbers& y, DType type) {
    return std::vector<Tensor>{placed(x, "dp", type), placed(y, "-", type)};
  };
  const auto numbers = [&](const Numbers& x, const Numbers& y) {
    std::vector<Tensor> list = {placed(x, "-", wide)};
    if (!shares_numbers) list.push_back(placed(y, "-", wide));
    return list;
  };
  StepLists l;
  l.params = both({1.3, -2.7, 3.1}, {4.9, 5.3}, dtype);
  l.grads = {placed({6.1, 7.7, -8.3}, "-", dtype),
             reshard(placed({9.1, 1.9}, "-", dtype), DistSpec::parse(mesh, "- | sum(dp)"))};
  l.first = both({0.7, 1.1, 0.3}, {1.7, 0.9}, wide);
  l.second = both({0.2, 0.6, 1.9}, {0.1, 0.8}, wide);
  l.third = both({-0.7, 1.2, 0.5}, {0.4, -0.3}, wide);
  l.rates = numbers({0.1}, {0.3});
  l.numbers = numbers({0.75}, {0.5});
  l.pairs = numbers({0.25, 1.5}, {0.5, 1.25});
  for (auto* powers : {&l.powers1, &l.powers2}) *powers = {placed({0.75}, "-", wide), placed({0.5}, "-", wide)};
  if (narrow) l.masters = both({1.3, -2.7, 3.1}, {4.9, 5.3}, wide);
  return l;
}

}  // namespace

TEST_CASE("steps of lists of parameters have the bits of the step of each in its own layout") {
  const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"dp"});
  std::vector<Device> devices = {kCpu};
  if (const int cuda = find_backend("cuda"); cuda >= 0) devices.push_back({static_cast<uint8_t>(cuda), 0});
  for (const Device device : devices) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      World::local(2)->run([&](Rank&) {
        for (const MergedStep& step : merged_steps()) {
          for (const bool shared : {true, false}) {
            StepLists all = lists_on(mesh, device, dtype, shared), each = lists_on(mesh, device, dtype, shared);
            const std::vector<Tensor> before = lists_on(mesh, device, dtype, shared).written();
            for (int k = 0; k < 2; ++k) {
              step.of_all(all);
              for (size_t i = 0; i < each.params.size(); ++i) step.of_one(each, i);
            }
            const std::vector<Tensor> ours = all.written(), theirs = each.written();
            for (size_t i = 0; i < theirs.size(); ++i) {
              const std::string what = fmt::format("tensor {} of {}, {}", i, step.name, to_string(dtype));
              check(spec_of(ours[i]) == spec_of(theirs[i]), "the layout of " + what);
              check(numbers_of(ours[i]) == numbers_of(theirs[i]), what);
            }
            for (size_t i = 0; i < 2; ++i)
              check(numbers_of(ours[i]) != numbers_of(before[i]), step.name + " changes its parameters");
          }
        }
      });
    }
  }
}

TEST_CASE(
    "steps under InplacePolicy::adopt begin with the values of parameters that adopt the layout of their states") {
  const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"dp"});
  World::local(2)->run([&](Rank& rank) {
    const auto lists = [&](const char* of_params, const char* of_states) {
      const auto both = [&](const char* layout, const Numbers& x, const Numbers& y) {
        std::vector<Tensor> tensors;
        for (const Numbers& numbers : {x, y}) {
          const Tensor plain = made(numbers);
          tensors.push_back(distribute(plain, DistSpec::parse(mesh, layout)));
        }
        return tensors;
      };
      StepLists l;
      l.params = both(of_params, {1.3, -2.7, 3.1}, {4.9, 5.3});
      l.grads = both(of_states, {6.1, 7.7, -8.3}, {9.1, 1.9});
      l.first = both(of_states, {0.7, 1.1, 0.3}, {1.7, 0.9});
      l.second = both(of_states, {0.2, 0.6, 1.9}, {0.1, 0.8});
      l.third = both(of_states, {-0.7, 1.2, 0.5}, {0.4, -0.3});
      l.rates = both("-", {0.125}, {0.25});
      l.numbers = both("-", {0.75}, {0.5});
      l.pairs = both("-", {0.25, 1.5}, {0.5, 1.25});
      l.powers1 = both("-", {0.75}, {0.5});
      l.powers2 = both("-", {0.75}, {0.5});
      return l;
    };
    const std::vector<MergedStep> steps = merged_steps();
    for (const MergedStep& step : steps) {
      for (const bool merged : {true, false}) {
        const auto run = [&](StepLists& l) {
          if (merged) return step.of_all(l);
          for (size_t i = 0; i < l.params.size(); ++i) step.of_one(l, i);
        };
        StepLists expected = lists("-", "-"), adopting = lists("-", "dp");
        run(expected);
        {
          const PolicyScope scope(rank, {.inplace = InplacePolicy::adopt});
          run(adopting);
        }
        if (&step != &steps.front())  // sgd_ has no states
          check(spec_of(adopting.params[0]) == DistSpec::parse(mesh, "dp"), "the parameter adopts its layout");
        const std::vector<Tensor> ours = adopting.written(), theirs = expected.written();
        for (size_t i = 0; i < theirs.size(); ++i) {
          const Numbers got = numbers_of(ours[i]), want = numbers_of(theirs[i]);
          for (size_t k = 0; k < want.size(); ++k) {
            check(std::abs(got[k] - want[k]) <= 1e-12 * std::abs(want[k]),
                  fmt::format("tensor {} of {}, {}", i, step.name, merged ? "merged" : "one by one"));
          }
        }
      }
    }
  });
}

TEST_CASE("merged_lamb_ adds up norms of parameters that different axes shard") {
  const ProcessMesh* mesh = ProcessMesh::make({3, 2}, {}, {"a", "b"});
  const Numbers values[] = {{1.3, -2.7, 3.1, 0.4}, {4.9, 5.3}, {0.7, -0.2, 1.9}};
  const auto step = [&](const auto& placed) {
    const auto list = [&](double factor, bool positive) {
      std::vector<Tensor> tensors;
      for (size_t i = 0; i < 3; ++i) {
        Numbers numbers = values[i];
        for (double& x : numbers) x = factor * (positive ? std::abs(x) : x);
        tensors.push_back(placed(numbers, i));
      }
      return tensors;
    };
    const auto powers = [&] { return std::vector<Tensor>{placed({0.75}, 3), placed({0.75}, 3), placed({0.75}, 3)}; };
    std::vector<Tensor> params = list(1, false), first = list(0.5, false), second = list(0.25, true),
                        powers1 = powers(), powers2 = powers(), none;
    merged_lamb_(params, list(-0.3, false), {placed({0.125}, 3)}, first, second, powers1, powers2, none, {}, 0.1f, 0.5f,
                 0.75f);
    return params;
  };
  const std::vector<Tensor> expected = step([](const Numbers& x, size_t) { return made(x); });
  World::local(6)->run([&](Rank&) {
    const char* const layouts[] = {"a", "b", "-", "-"};
    const std::vector<Tensor> got =
        step([&](const Numbers& x, size_t i) { return distribute(made(x), DistSpec::parse(mesh, layouts[i])); });
    for (size_t i = 0; i < expected.size(); ++i) {
      const Numbers ours = numbers_of(got[i]), want = expected[i].to_vector<double>();
      for (size_t k = 0; k < want.size(); ++k)
        check(std::abs(ours[k] - want[k]) <= 1e-12 * std::abs(want[k]), fmt::format("parameter {}", i));
    }
  });
}

TEST_CASE("merged_lamb_ skips the parameters whose flags say so") {
  const auto flag = [](bool skips) { return Tensor::from_data(std::vector<bool>{skips}, {1}); };
  const auto step = [&](const std::vector<Tensor>& skip) {
    std::vector<Tensor> params = {made({1, 2}), made({3})}, first = {made({1, 1}), made({1})},
                        second = {made({1, 1}), made({1})}, powers1 = {made({0.5}), made({0.5})},
                        powers2 = {made({0.5}), made({0.5})}, none;
    merged_lamb_(params, {made({4, 5}), made({6})}, {made({0.1})}, first, second, powers1, powers2, none, skip, 0.1f,
                 0.5f, 0.5f);
    return std::pair{params[0].to_vector<double>() != Numbers{1, 2} && powers1[0].to_vector<double>()[0] == 0.25,
                     params[1].to_vector<double>() != Numbers{3} && powers1[1].to_vector<double>()[0] == 0.25};
  };
  CHECK(step({}) == std::pair{true, true});
  CHECK(step({flag(false)}) == std::pair{true, true});
  CHECK(step({flag(true)}) == std::pair{false, false});
  CHECK(step({flag(true), flag(false)}) == std::pair{false, true});
  CHECK(step({flag(false), flag(true)}) == std::pair{true, false});
}

TEST_CASE("steps of lists name the list that does not fit") {
  const Tensor number = made({0.5});
  std::vector<Tensor> params = {made({1, 2}), made({3})}, states = {made({0, 0}), made({0})},
                      others = {made({0, 0}), made({0})}, few = {made({0, 0})}, none;
  CHECK_THROWS_WITH(merged_sgd_(none, {number}, none, none), Catch::Contains("param is empty"));
  CHECK_THROWS_WITH(merged_sgd_(params, {number}, few, none), Catch::Contains("grad has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_sgd_(params, {number, number, number}, params, none),
                    Catch::Contains("learning_rate has 3 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_sgd_(params, {number}, params, few),
                    Catch::Contains("master_param has 1 entries, but param has 2"));
  std::vector<Tensor> mixed = {made({1}), cast(made({1}), DType::float32)};
  CHECK_THROWS_WITH(merged_sgd_(mixed, {number}, mixed, none), Catch::Contains("another tensor of param"));
  CHECK_THROWS_WITH(merged_rmsprop_(params, few, params, states, {number}, none, none),
                    Catch::Contains("mean_square has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_rmsprop_(params, states, params, others, {number}, none, none, 1e-3f, 0.5f, 0.5f, true),
                    Catch::Contains("mean_grad has 0 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_rmsprop_(params, states, params, others, {number}, few, none),
                    Catch::Contains("mean_grad has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_adagrad_(params, params, few, {number}, none),
                    Catch::Contains("moment has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_adadelta_(params, params, states, few, {number}, none, 0.5f, 0.5f, false),
                    Catch::Contains("avg_squared_update has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_adamax_(params, params, {number}, states, few, {number}, none),
                    Catch::Contains("inf_norm has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_adamax_(params, params, {number}, states, others, {}, none),
                    Catch::Contains("beta1_pow has 0 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_asgd_(params, params, {number}, states, few, {number}, none),
                    Catch::Contains("y has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_rprop_(params, params, states, few, none, {number}, {number}),
                    Catch::Contains("learning_rate has 1 entries, but param has 2"));
  CHECK_THROWS_WITH(merged_rprop_(params, params, states, others, none, {number}, {number}),
                    Catch::Contains("learning_rate_range is"));
  std::vector<Tensor> powers = {made({0.5}), made({0.5})}, one_power = {made({0.5})};
  CHECK_THROWS_WITH(merged_lamb_(params, params, {number}, states, others, powers, one_power, none, {}, 0.1f),
                    Catch::Contains("beta2_pow has 1 entries, but param has 2"));
  const Tensor flag = Tensor::from_data(std::vector<bool>{false}, {1});
  CHECK_THROWS_WITH(
      merged_lamb_(params, params, {number}, states, others, powers, powers, none, {flag, flag, flag}, 0.1f),
      Catch::Contains("skip_update has 3 entries, but param has 2"));
  // Nothing is written by a call that is refused.
  CHECK(params[0].to_vector<double>() == Numbers{1, 2});
}

}  // namespace merged_steps_test
