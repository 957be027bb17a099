// The cases of a file: calls of placement rules, and their expected results. docs/sharding.md has
// the format.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace spmd_cases {

/// Thrown if the file does not have the format. The text names the case and key.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A tensor argument, as in the file. A size of -1 is unknown; mapping[d] is the mesh axis that
/// shards dim d, or -1.
struct TensorCase {
  std::vector<int64_t> shape;
  std::vector<int64_t> mapping;
  std::vector<int64_t> partial;  // mesh axes
};

struct Argument {
  enum class Kind { tensor, list, attribute };
  Kind kind = Kind::attribute;
  std::vector<TensorCase> tensors;  // one tensor, or those of the list
  nlohmann::json attribute;
};

/// The expectations at one position. Only members that are set are compared.
struct Expected {
  size_t slot = 0;
  std::optional<size_t> element;  // index in a tensor list
  std::optional<std::vector<int64_t>> mapping;
  std::optional<std::vector<int64_t>> partial;
  std::optional<bool> is_partial;
};

struct ExpectedSide {
  std::optional<size_t> count;
  std::vector<Expected> at;
};

struct Case {
  std::string id;
  std::string rule;
  bool backward = false;
  std::vector<int> mesh_shape;
  std::vector<int> processes;
  std::vector<Argument> args;
  bool error = false;  // the rule is expected to refuse the call
  ExpectedSide inputs;
  ExpectedSide outputs;
};

/// Throws BadInput.
std::vector<Case> read_cases(const std::string& text);

}  // namespace spmd_cases
