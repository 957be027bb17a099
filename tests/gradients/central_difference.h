// Compares a gradient function with central differences of its forward function, in float64.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "shard/core/tensor.h"

namespace shard::test {

/// The function to be differentiated: from its inputs to one float64 output.
using ForwardFunction = std::function<Tensor(const std::vector<Tensor>& inputs)>;
/// From the inputs and the gradient of the output to the gradient of each input; undefined for an input without
/// one.
using GradientFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, const Tensor& out_grad)>;

/// Plain float64 numbers, drawn evenly from low to high; the same seed gives the same ones.
inline Tensor random_values(const Dims& dims, unsigned seed, double low = -1, double high = 1) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> draw(low, high);
  std::vector<double> values(static_cast<size_t>(dims.numel()));
  for (double& value : values) value = draw(random);
  return Tensor::from_data(values, dims);
}

/// Plain float64 numbers from low to high, equally spaced and shuffled: for functions with kinks where two are
/// equal, or at known points between them.
inline Tensor distinct_values(const Dims& dims, unsigned seed, double low = -1, double high = 1) {
  std::vector<double> values(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = low + (high - low) * (static_cast<double>(i) + 0.5) / static_cast<double>(values.size());
  std::shuffle(values.begin(), values.end(), std::mt19937_64(seed));
  return Tensor::from_data(values, dims);
}

/// What a gradient may be off by, in units of the largest derivative of its input (or of 1).
///
/// With the step h = 1/1024 the formula below is off by h^4 / 30 times the fifth derivative, some 3e-14 of it, and
/// by rounding: 1.5 roundings of the sum (1e-16 of its terms) divided by h, about 1e-12 for sums of the size of 10.
/// So 1e-8 leaves fifth derivatives up to 3e5 room, and a wrong sign, factor or term is off by far more.
inline constexpr double kGradientTolerance = 1e-8;
inline constexpr double kDifferenceStep = 1.0 / 1024;  // a power of two: x + h is exact but for the last bits

/// Empty when `gradient` computes d/dx sum(w * forward(x)), w random, for each element x of each input for which it
/// returns a tensor; else the element that differs. Points where `forward` has no derivative must be 2/1024 away
/// from every element.
inline std::string gradient_difference(const ForwardFunction& forward, const GradientFunction& gradient,
                                       const std::vector<Tensor>& inputs, double tolerance = kGradientTolerance,
                                       double step = kDifferenceStep) {
  const Tensor weight = random_values(forward(inputs).dims(), 4711);
  const std::vector<double> weights = weight.to_vector<double>();
  const auto weighted_sum = [&](const std::vector<Tensor>& at) {
    const std::vector<double> out = forward(at).to_vector<double>();
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += weights[i] * out[i];
    return sum;
  };
  const std::vector<Tensor> gradients = gradient(inputs, weight);
  if (gradients.size() != inputs.size())
    return fmt::format("there are {} gradients for {} inputs", gradients.size(), inputs.size());
  for (size_t input = 0; input < inputs.size(); ++input) {
    if (!gradients[input].defined()) continue;
    const Tensor& x = inputs[input];
    if (!(gradients[input].meta() == x.meta())) {
      return fmt::format("the gradient of input {} is {}, but the input is {}", input,
                         to_string(gradients[input].meta()), to_string(x.meta()));
    }
    const std::vector<double> point = x.to_vector<double>(), actual = gradients[input].to_vector<double>();
    std::vector<double> expected(point.size());
    double largest = 1;
    for (size_t i = 0; i < point.size(); ++i) {
      const auto moved = [&](double by) {
        std::vector<double> values = point;
        values[i] += by;
        std::vector<Tensor> at = inputs;
        at[input] = Tensor::from_data(values, x.dims());
        return weighted_sum(at);
      };
      expected[i] = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step);
      largest = std::max(largest, std::abs(expected[i]));
    }
    for (size_t i = 0; i < point.size(); ++i) {
      if (std::abs(actual[i] - expected[i]) <= tolerance * largest) continue;  // not for NaN
      return fmt::format("the gradient of input {} is {} at element {}, but differences say {}", input, actual[i], i,
                         expected[i]);
    }
  }
  return "";
}

}  // namespace shard::test
