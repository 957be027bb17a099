// Gradients of ops of reduce.yaml against central differences, and on meshes against one rank.
#include <catch2/catch.hpp>

#include "gradients/central_difference.h"
#include "gradients/distributed.h"
#include "shard/shard.h"
#include "shard/testing/op_cases.h"

namespace shard::test::reduce_test {
namespace {

using In = const std::vector<Tensor>&;

struct ReductionCase {
  const char* name;
  testing::Function<Tensor, const Tensor&, const IntArray&, bool> forward;
  std::function<Tensor(const Tensor& x, const Tensor& out, const Tensor& g, const IntArray& axis, bool keepdim)>
      gradient;
};

const std::vector<ReductionCase>& reductions() {
  using T = const Tensor&;
  using A = const IntArray&;
  static const std::vector<ReductionCase> cases = {
      {"sum", sum, [](T x, T, T g, A axis, bool keep) { return sum_grad(x, g, axis, keep); }},
      {"mean", mean, [](T x, T, T g, A axis, bool keep) { return mean_grad(x, g, axis, keep); }},
      {"max", max, [](T x, T out, T g, A axis, bool keep) { return max_grad(x, out, g, axis, keep); }},
      {"min", min, [](T x, T out, T g, A axis, bool keep) { return min_grad(x, out, g, axis, keep); }},
      {"amax", amax, [](T x, T out, T g, A axis, bool keep) { return amax_grad(x, out, g, axis, keep); }},
      {"amin", amin, [](T x, T out, T g, A axis, bool keep) { return amin_grad(x, out, g, axis, keep); }},
      {"prod", prod, [](T x, T, T g, A axis, bool keep) { return prod_grad(x, g, axis, keep); }},
      {"frobenius_norm", [](T x, A axis, bool keep) { return frobenius_norm(x, axis, keep, false); },
       [](T x, T out, T g, A axis, bool keep) { return frobenius_norm_grad(x, out, g, axis, keep, false); }},
      {"frobenius_norm of all", [](T x, A axis, bool keep) { return frobenius_norm(x, axis, keep, true); },
       [](T x, T out, T g, A axis, bool keep) { return frobenius_norm_grad(x, out, g, axis, keep, true); }},
  };
  return cases;
}

const std::vector<IntArray>& all_axes() {
  static const std::vector<IntArray> axes = {{}, {0}, {1}, {-1}, {0, 2}, {-2, 0}, {0, 1, 2}};
  return axes;
}

TEST_CASE("gradients of reductions are those of central differences, for every choice of axes") {
  for (const ReductionCase& one : reductions()) {
    for (const IntArray& axis : all_axes()) {
      for (const bool keepdim : {false, true}) {
        INFO(one.name << " over " << to_string(axis) << (keepdim ? ", kept" : ""));
        CHECK(gradient_difference([&](In in) { return one.forward(in[0], axis, keepdim); },
                                  [&](In in, const Tensor& g) {
                                    return std::vector{
                                        one.gradient(in[0], one.forward(in[0], axis, keepdim), g, axis, keepdim)};
                                  },
                                  {distinct_values({2, 3, 4}, 3, 0.5, 1.5)}) == "");
      }
    }
    INFO(one.name << " of a number");
    CHECK(gradient_difference([&](In in) { return one.forward(in[0], {}, false); },
                              [&](In in, const Tensor& g) {
                                return std::vector{one.gradient(in[0], one.forward(in[0], {}, false), g, {}, false)};
                              },
                              {random_values({}, 3, 0.5, 1.5)}) == "");
  }
}

TEST_CASE("gradients of reductions are the same on a mesh, in every layout", "[slow_in_asan]") {
  for (const ReductionCase& one : reductions()) {
    for (const IntArray& axis : all_axes()) {
      for (const bool keepdim : {false, true}) {
        INFO(one.name << " over " << to_string(axis) << (keepdim ? ", kept" : ""));
        const Tensor x = random_values({4, 3, 2}, 3, 0.5, 1.5), out = one.forward(x, axis, keepdim);
        CHECK(mesh_difference([&](In in) { return std::vector{one.gradient(in[0], in[1], in[2], axis, keepdim)}; },
                              {x, out, random_values(out.dims(), 5)}) == "");
      }
    }
  }
}

TEST_CASE("the gradient of a sum or mean is cut as the argument is, and sends nothing") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"a"});
    const Tensor x = distribute(random_values({4, 6}, 2), DistSpec::parse(mesh, "a, -"));
    const Tensor g = distribute(random_values({6}, 3), DistSpec::parse(mesh, "-"));
    const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
    for (const Tensor& grad : {sum_grad(x, g, {0}, false), mean_grad(x, g, {0}, false)}) {
      check(spec_of(grad) == spec_of(x), "layout is " + spec_of(grad)->text());
    }
  });
}

TEST_CASE("of a reduction of nothing the gradient has no elements") {
  const Tensor x = random_values({0, 3}, 1), g = random_values({3}, 2);
  CHECK(sum_grad(x, g, {0}, false).dims() == Dims{0, 3});
  CHECK(mean_grad(x, g, {0}, false).dims() == Dims{0, 3});
  CHECK(prod_grad(x, g, {0}, false).dims() == Dims{0, 3});
  CHECK(sum_grad(random_values({2, 0, 3}, 1), random_values({0, 3}, 2), {0}, false).dims() == Dims{2, 0, 3});
}

TEST_CASE("equal elements each have the gradient of max and min, and share that of amax and amin") {
  const Tensor x = Tensor::from_data(std::vector<double>{1, 3, 3, 2, 2, 2}, {2, 3}),
               g = Tensor::from_data(std::vector<double>{6, 9}, {2});
  CHECK(max_grad(x, max(x, {1}), g, {1}, false).to_vector<double>() == std::vector<double>{0, 6, 6, 9, 9, 9});
  CHECK(min_grad(x, min(x, {1}), g, {1}, false).to_vector<double>() == std::vector<double>{6, 0, 0, 9, 9, 9});
  CHECK(amax_grad(x, amax(x, {1}), g, {1}, false).to_vector<double>() == std::vector<double>{0, 3, 3, 3, 3, 3});
  CHECK(amin_grad(x, amin(x, {1}), g, {1}, false).to_vector<double>() == std::vector<double>{6, 0, 0, 3, 3, 3});
}

TEST_CASE("the gradient of a product is right beside no, one and two zeros") {
  const Tensor x = Tensor::from_data(std::vector<double>{2, 3, 4, 0, 3, 4, 0, 5, 0}, {3, 3}),
               g = Tensor::from_data(std::vector<double>{1, 10, 100}, {3});
  CHECK(prod_grad(x, g, {1}, false).to_vector<double>() == std::vector<double>{12, 8, 6, 120, 0, 0, 0, 0, 0});
  CHECK(gradient_difference([](In in) { return prod(in[0], {1}); },
                            [](In in, const Tensor& out) { return std::vector{prod_grad(in[0], out, {1}, false)}; },
                            {x}) == "");
}

TEST_CASE("the gradient of a norm is 0 where the norm is") {
  const Tensor x = Tensor::from_data(std::vector<double>{0, 0, 3, 4}, {2, 2}),
               g = Tensor::from_data(std::vector<double>{7, 10}, {2});
  CHECK(frobenius_norm_grad(x, frobenius_norm(x, {1}, false, false), g, {1}, false, false).to_vector<double>() ==
        std::vector<double>{0, 0, 6, 8});
}

TEST_CASE("gradients of squared_l2_norm") {
  for (const Dims& dims : {Dims{3, 4}, Dims{}, Dims{1}}) {
    CHECK(gradient_difference([](In in) { return squared_l2_norm(in[0]); },
                              [](In in, const Tensor& g) { return std::vector{squared_l2_norm_grad(in[0], g)}; },
                              {random_values(dims, 3)}) == "");
  }
  CHECK(mesh_difference([](In in) { return std::vector{squared_l2_norm_grad(in[0], in[1])}; },
                        {random_values({4, 3}, 3), random_values({1}, 5)}) == "");
}

}  // namespace
}  // namespace shard::test::reduce_test
