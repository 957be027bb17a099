// Elementwise functions of one tensor and their gradients against values that reference/elementwise.py computed in 60
// digits: at whole and other numbers, large and tiny, at zeros of both signs, infinities and NaN.
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"
#include "support/source_dir.h"

namespace shard::testing::reference_test {
namespace {

struct Point {
  double x, value;
  std::optional<double> slope;
};
/// Tolerances are in ulp of the expected value, or of `floor` where that is larger.
struct Tolerance {
  double ulps, floor;
};
struct Reference {
  Tolerance value, slope;
  std::vector<Point> points;
};

double number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

const std::map<std::string, Reference>& references() {
  static const std::map<std::string, Reference> all = [] {
    std::map<std::string, Reference> found;
    std::ifstream file(test::source_dir() + "/tests/kernels/reference/elementwise.txt");
    Reference* at = nullptr;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with('#')) continue;
      std::istringstream words(line.starts_with("op: ") ? line.substr(line.find(';') + 1) : line);
      if (line.starts_with("op: ")) {
        at = &found[line.substr(4, line.find(';') - 4)];
        words >> at->value.ulps >> at->value.floor >> at->slope.ulps >> at->slope.floor;
      } else {
        std::string x, value, slope;
        words >> x >> value >> slope;
        at->points.push_back({number(x), number(value), std::nullopt});
        if (slope != "-") at->points.back().slope = number(slope);
      }
    }
    return found;
  }();
  return all;
}

/// An op, with or without a call site parameter, or a call of one with numbers.
struct Call : std::function<Tensor(const Tensor&)> {
  using function::function;
  Call(Tensor (*op)(const Tensor&, CallSite)) : function([op](const Tensor& x) { return op(x, CallSite()); }) {}
};

/// The calls, by their names in the file.
const std::map<std::string, Call>& functions() {
  using In = const Tensor&;
  static const std::map<std::string, Call> all = {
      {"exp", exp},
      {"log", log},
      {"sin", sin},
      {"cos", cos},
      {"tanh", tanh},
      {"pow 2.5", [](In x) { return pow(x, 2.5); }},
      {"pow 3", [](In x) { return pow(x, 3); }},
      {"erf", erf},
      {"erfinv", erfinv},
      {"expm1", expm1},
      {"log1p", log1p},
      {"log2", log2},
      {"log10", log10},
      {"tan", tan},
      {"asin", asin},
      {"acos", acos},
      {"atan", atan},
      {"sinh", sinh},
      {"cosh", cosh},
      {"asinh", asinh},
      {"acosh", acosh},
      {"atanh", atanh},
      {"reciprocal", reciprocal},
      {"logit 0.25", [](In x) { return logit(x, 0.25f); }},
      {"floor", floor},
      {"ceil", ceil},
      {"round", round},
      {"trunc", trunc},
      {"sign", sign},
      {"lgamma", lgamma},
      {"digamma", digamma},
      {"polygamma 2", [](In x) { return polygamma(x, 2); }},
      {"i0", i0},
      {"i0e", i0e},
      {"i1", i1},
      {"i1e", i1e},
      {"leaky_relu 0.25", [](In x) { return leaky_relu(x, 0.25f); }},
      {"elu 0.5", [](In x) { return elu(x, 0.5f); }},
      {"celu 0.5", [](In x) { return celu(x, 0.5f); }},
      {"selu", [](In x) { return selu(x); }},
      {"relu6", relu6},
      {"hardtanh -1 2", [](In x) { return hardtanh(x, -1, 2); }},
      {"hardsigmoid", [](In x) { return hardsigmoid(x); }},
      {"hardswish", hardswish},
      {"hardshrink", [](In x) { return hardshrink(x); }},
      {"softshrink", [](In x) { return softshrink(x); }},
      {"thresholded_relu", [](In x) { return thresholded_relu(x); }},
      {"softplus 2 30", [](In x) { return softplus(x, 2, 30); }},
      {"softsign", softsign},
      {"logsigmoid", logsigmoid},
      {"mish 20", [](In x) { return mish(x, 20); }},
      {"swish", swish},
      {"tanh_shrink", tanh_shrink},
      {"stanh", [](In x) { return stanh(x); }},
  };
  return all;
}

/// `value` rounded to dtype.
double rounded(double value, DType dtype) { return values(tensor({value}, {1}, dtype))[0]; }

/// The distance of numbers of dtype near `size`.
double ulp_at(double size, DType dtype) {
  const bool half = dtype == DType::float16;
  const int lowest = dtype == DType::float64 ? -1022 : half ? -14 : -126;
  const int digits = dtype == DType::float64 ? 53 : dtype == DType::float32 ? 24 : half ? 11 : 8;
  return std::ldexp(1.0, std::max(size == 0 ? lowest : std::ilogb(size), lowest) - digits + 1);
}

std::string difference(double got, double exact, DType dtype, Tolerance tolerance) {
  const double expected = rounded(exact, dtype);
  if (got == expected || (std::isnan(got) && std::isnan(expected))) return "";
  if (std::isfinite(got) && std::isfinite(expected)) {
    const double ulps = std::abs(got - exact) / ulp_at(std::max(std::abs(exact), tolerance.floor), dtype);
    if (ulps <= tolerance.ulps) return "";
    return fmt::format("{}, expected {}, {} ulp", got, exact, ulps);
  }
  return fmt::format("{}, expected {}", got, expected);
}

/// The points whose x is a number of dtype.
std::vector<Point> points_of(const Reference& reference, DType dtype) {
  std::vector<Point> found;
  for (const Point& point : reference.points) {
    if (std::isnan(point.x) || rounded(point.x, dtype) == point.x) found.push_back(point);
  }
  return found;
}

std::vector<double> doubles(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

Tensor tensor_of(const std::vector<Point>& points, DType dtype) {
  std::vector<double> xs;
  for (const Point& point : points) xs.push_back(point.x);
  return cast(Tensor::from_data(xs, {static_cast<int64_t>(xs.size())}), dtype);
}

/// 16-bit floats are computed in float32 and rounded: twice in a gradient that reads the rounded output.
Tolerance narrowed(Tolerance tolerance, DType dtype, double ulps) {
  return compute_dtype(dtype) == dtype ? tolerance : Tolerance{std::min(tolerance.ulps, ulps), tolerance.floor};
}

TEST_CASE("every op of the reference file has a call, and every call has values") {
  std::set<std::string> names, calls;
  for (const auto& [name, reference] : references()) names.insert(name);
  for (const auto& [name, function] : functions()) calls.insert(name);
  CHECK(names == calls);
}

TEST_CASE("values are within some ulp of those in 60 digits, at every number and in every float dtype") {
  for (const auto& [name, reference] : references()) {
    for (const DType dtype : kFloatDTypes) {
      const std::vector<Point> points = points_of(reference, dtype);
      const std::vector<double> got = doubles(functions().at(name)(tensor_of(points, dtype)));
      for (size_t i = 0; i < points.size(); ++i) {
        INFO(name << " of " << points[i].x << " in " << to_string(dtype));
        CHECK(difference(got[i], points[i].value, dtype, narrowed(reference.value, dtype, 1)) == "");
        if (points[i].value == 0 && got[i] == 0) CHECK(std::signbit(got[i]) == std::signbit(points[i].value));
      }
    }
  }
}

TEST_CASE("gradients are within some ulp of the derivatives in 60 digits, in every float dtype") {
  for (const auto& [name, reference] : references()) {
    for (const DType dtype : kFloatDTypes) {
      const std::vector<Point> points = points_of(reference, dtype);
      Tensor x = tensor_of(points, dtype);
      x.set_requires_grad(true);
      const Tensor out = functions().at(name)(x);
      const std::vector<double> got = doubles(grad({out}, {x}, {full_like(out.detach(), 1)})[0]);
      for (size_t i = 0; i < points.size(); ++i) {
        if (!points[i].slope) continue;
        INFO(name << "' of " << points[i].x << " in " << to_string(dtype));
        CHECK(difference(got[i], *points[i].slope, dtype, narrowed(reference.slope, dtype, 4)) == "");
      }
    }
  }
}

TEST_CASE("an element of every function has the same bits in a vector, in the rest of a row and alone") {
  for (const auto& [name, function] : functions()) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      const Tensor x = tensor_of(points_of(references().at(name), dtype), dtype);
      const std::vector<double> whole = doubles(function(x));
      for (int64_t i = 0; i < x.numel(); ++i) {
        INFO(name << " of element " << i << " in " << to_string(dtype));
        const double alone = doubles(function(assign(slice(x, {0}, {i}, {i + 1}))))[0];
        CHECK(std::bit_cast<uint64_t>(alone) == std::bit_cast<uint64_t>(whole[static_cast<size_t>(i)]));
      }
    }
  }
}

}  // namespace
}  // namespace shard::testing::reference_test
