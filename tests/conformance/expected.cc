// The format of expected_*.txt: a line "op<tab>case", and after it for each row "draw kind checksum", then for each
// output its kind (f, i or b) with its dims, and its elements. An absent output is "-".
#include "conformance/expected.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace shard::testing {
namespace {

ExpectedTensor read_head(const std::string& word) {
  ExpectedTensor tensor;
  tensor.kind = word[0] == 'f' ? DTypeKind::floating : word[0] == 'i' ? DTypeKind::integer : DTypeKind::truth;
  std::istringstream dims(word.substr(2, word.size() - 3));
  for (std::string dim; std::getline(dims, dim, ',');) tensor.dims.push_back(std::stoll(dim));
  return tensor;
}

ExpectedRow read_outputs(std::istringstream& words) {
  ExpectedRow row;
  for (std::string word; words >> word;) {
    ExpectedTensor& tensor = row.outputs.emplace_back();
    if (word == "-") {
      tensor.defined = false;
      continue;
    }
    if (word.size() < 3 || word[1] != '[' || word.back() != ']')
      throw std::runtime_error("no output begins with " + word);
    tensor = read_head(word);
    for (int64_t i = 0; i < tensor.dims.numel(); ++i) {
      if (!(words >> word)) throw std::runtime_error("an output lacks elements");
      if (tensor.kind == DTypeKind::integer) tensor.integers.push_back(std::stoll(word));
      else tensor.values.push_back(std::strtod(word.c_str(), nullptr));
    }
  }
  return row;
}

void read_file(const std::string& path, ExpectedRows& rows) {
  std::ifstream file(path);
  std::string op, name;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.starts_with('#')) continue;
    try {
      if (const size_t tab = line.find('\t'); tab != std::string::npos) {
        op = line.substr(0, tab), name = line.substr(tab + 1);
        continue;
      }
      std::istringstream words(line);
      char draw = 0;
      std::string kind, checksum;
      words >> draw >> kind >> checksum;
      ExpectedRow row = read_outputs(words);
      row.checksum = static_cast<uint32_t>(std::stoul(checksum, nullptr, 16));
      rows[{op, name, draw, kind}] = row;
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", path, number, error.what()));
    }
  }
}

template <class To>
To value_at(const DenseTensor& tensor, int64_t i) {
  return visit_dtype(tensor.dtype(), [&]<class T>(TypeTag<T>) {
    return static_cast<To>(static_cast<Compute<T>>(tensor.data<T>()[i]));
  });
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

/// The largest finite number of a dtype, above which its results are infinite.
double highest(DType dtype) { return dtype == DType::float16 ? 65504 : std::numeric_limits<float>::max(); }

/// How far an element may be off: four units in the last place of its own value, which cover the final rounding, plus
/// sixteen roundings of the dtype that is computed in, at the size of the largest number among inputs and outputs, or
/// of 1. These cover the terms of sums that cancel; calls are small. Where
/// factors of sums are `rounded` to the dtype, each term may be off by one epsilon more.
double tolerance(DType dtype, double expected, double scale, bool rounded) {
  const double factors = rounded ? epsilon_of(dtype) : 0;
  return 4 * epsilon_of(dtype) * std::abs(expected) + (16 * epsilon_of(compute_dtype(dtype)) + factors) * scale;
}

bool is_close(DType dtype, double actual, double expected, double scale, bool rounded) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (actual == expected) return true;
  if (std::isinf(expected)) return false;
  if (std::isinf(actual)) return std::abs(expected) > highest(dtype) && (actual > 0) == (expected > 0);
  return std::abs(actual - expected) <= tolerance(dtype, expected, scale, rounded);
}

}  // namespace

ExpectedRows read_expected(const std::string& folder) {
  ExpectedRows rows;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("expected_") && name.ends_with(".txt")) read_file(entry.path(), rows);
  }
  return rows;
}

std::string difference(const DenseTensor& actual, const ExpectedTensor& expected, double largest_input, bool rounded) {
  if (traits_of(actual.dtype()).kind != expected.kind || actual.dims() != expected.dims) {
    return fmt::format("the result is {}, the reference has kind {} and dims [{}]", to_string(actual.meta()),
                       expected.kind == DTypeKind::floating  ? "float"
                       : expected.kind == DTypeKind::integer ? "integer"
                                                             : "bool",
                       fmt::join(expected.dims, ", "));
  }
  const double scale = std::max({1.0, largest_input, largest(expected.values)});
  const auto differs = [&](int64_t i, auto got, auto wanted) {
    return fmt::format("element {} of {} is {}, the reference has {}", i, to_string(actual.meta()), got, wanted);
  };
  for (int64_t i = 0; i < actual.numel(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (expected.kind == DTypeKind::integer) {
      const auto got = value_at<int64_t>(actual, i);
      if (got != expected.integers[at]) return differs(i, got, expected.integers[at]);
    } else {
      const auto got = value_at<double>(actual, i);
      if (!is_close(actual.dtype(), got, expected.values[at], scale, rounded))
        return differs(i, got, expected.values[at]);
    }
  }
  return "";
}

}  // namespace shard::testing
