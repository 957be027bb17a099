// Optimisers against their formulas, with a non-default value for every attribute.
#include <catch2/catch.hpp>

#include <cmath>

#include "shard/shard.h"

using namespace shard;

namespace {

using Numbers = std::vector<double>;

Tensor made(const Numbers& numbers) { return Tensor::from_data(numbers, {static_cast<int64_t>(numbers.size())}); }

}  // namespace

TEST_CASE("adamw_ scales step and weight decay by lr_ratio") {
  const double rate = 0.1, beta1 = 0.8, beta2 = 0.95, epsilon = 1e-3;
  const float ratio = 0.25f, decay = 0.5f;
  Numbers value = {1, -2}, first = {0.5, 0.25}, second = {0.125, 1};
  const Numbers grad = {3, -0.5};
  Tensor param = made(value), moment1 = made(first), moment2 = made(second), power1 = made({beta1}),
         power2 = made({beta2}), none;
  double p1 = beta1, p2 = beta2;
  for (int step = 0; step < 3; ++step) {
    adamw_(param, made(grad), made({rate}), moment1, moment2, power1, power2, none, none, beta1, beta2, epsilon, ratio,
           decay, true);
    const double scaled = rate * static_cast<double>(ratio);
    for (size_t i = 0; i < value.size(); ++i) {
      first[i] = beta1 * first[i] + (1 - beta1) * grad[i];
      second[i] = beta2 * second[i] + (1 - beta2) * grad[i] * grad[i];
      value[i] *= 1 - scaled * static_cast<double>(decay);
      value[i] -= scaled / (1 - p1) * first[i] / (std::sqrt(second[i]) / std::sqrt(1 - p2) + epsilon);
    }
    p1 *= beta1;
    p2 *= beta2;
    for (size_t i = 0; i < value.size(); ++i) {
      CHECK(param.to_vector<double>()[i] == Approx(value[i]).epsilon(1e-12));
      CHECK(moment1.to_vector<double>()[i] == Approx(first[i]).epsilon(1e-12));
      CHECK(moment2.to_vector<double>()[i] == Approx(second[i]).epsilon(1e-12));
    }
    CHECK(power1.to_vector<double>()[0] == Approx(p1).epsilon(1e-12));
    CHECK(power2.to_vector<double>()[0] == Approx(p2).epsilon(1e-12));
  }
}
