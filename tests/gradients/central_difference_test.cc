// The comparison with central differences distinguishes right gradients from wrong ones.
#include "gradients/central_difference.h"

#include <catch2/catch.hpp>

#include "shard/shard.h"

namespace shard::test::central_difference_test {
namespace {

Tensor product(const std::vector<Tensor>& in) { return multiply(in[0], in[1]); }

TEST_CASE("central differences accept a right gradient and tell where a wrong one is off") {
  const std::vector<Tensor> inputs = {random_values({2, 3}, 1), random_values({2, 3}, 2)};
  CHECK(gradient_difference(
            product,
            [](const auto& in, const Tensor& g) {
              return std::vector{multiply(g, in[1]), multiply(g, in[0])};
            },
            inputs)
            .empty());
  const auto off = [](double factor) {
    return [=](const auto& in, const Tensor& g) {
      return std::vector{multiply(g, in[1]), multiply(g, scale(in[0], factor))};
    };
  };
  CHECK_THAT(gradient_difference(product, off(1 + 1e-6), inputs), Catch::Contains("the gradient of input 1 is"));
  CHECK_THAT(gradient_difference(product, off(NAN), inputs), Catch::Contains("at element 0"));
}

TEST_CASE("central differences check the shape of a gradient, and leave out inputs without one") {
  const std::vector<Tensor> inputs = {random_values({2, 3}, 1), random_values({3}, 2)};
  CHECK_THAT(gradient_difference(
                 product,
                 [](const auto& in, const Tensor& g) {
                   return std::vector{Tensor(), multiply(g, in[0])};
                 },
                 inputs),
             Catch::Contains("the gradient of input 1 is f64[2, 3], but the input is f64[3]"));
  CHECK(gradient_difference(
            product,
            [](const auto& in, const Tensor& g) {
              return std::vector{multiply(g, in[1]), Tensor()};
            },
            inputs)
            .empty());
  CHECK_THAT(gradient_difference(
                 product, [](const auto&, const Tensor& g) { return std::vector{g}; }, inputs),
             Catch::Contains("1 gradients for 2 inputs"));
}

}  // namespace
}  // namespace shard::test::central_difference_test
