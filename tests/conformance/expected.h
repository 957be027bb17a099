// Reads the files expected_*.txt, which reference.py writes, and compares results with them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "shard/core/dense_tensor.h"

namespace shard::testing {

/// An output as reference.py computed it in float64, int64 or bool.
struct ExpectedTensor {
  DTypeKind kind = DTypeKind::floating;
  bool defined = true;
  Dims dims;
  std::vector<double> values;     // of floats and bools
  std::vector<int64_t> integers;  // of integers
};

struct ExpectedRow {
  uint32_t checksum = 0;
  std::vector<ExpectedTensor> outputs;
};

/// By op, case, draw and kind of dtype.
using ExpectedRows = std::map<std::tuple<std::string, std::string, char, std::string>, ExpectedRow>;

/// The rows of all files in `folder`. Throws std::runtime_error where one has no such format.
ExpectedRows read_expected(const std::string& folder);

/// What is wrong with an output, else "". Integers and bools are compared exactly, floats with the bound that
/// tolerance() states, for an op that has `rounded` factors of its sums to the dtype or for others.
std::string difference(const DenseTensor& actual, const ExpectedTensor& expected, double largest_input, bool rounded);

}  // namespace shard::testing
