// What the test of the table of gradients knows of single ops beyond their YAML.
#pragma once

#include <cstddef>
#include <vector>

namespace shard::test {

/// Tensors of the cases of an op, or of one of them, by their place.
struct TensorsOfCase {
  const char* op;
  std::vector<size_t> places;
  const char* name = nullptr;
};
/// Inputs of a floating dtype for which the op has no gradient, and outputs without one.
extern const std::vector<TensorsOfCase> kConstantInputs, kConstantOutputs;
/// Cases whose gradient is by definition another than that of the value, in `places` inputs.
extern const std::vector<TensorsOfCase> kScaledGradients;
/// Inputs that must be positive.
extern const std::vector<TensorsOfCase> kPositiveInputs;

}  // namespace shard::test
