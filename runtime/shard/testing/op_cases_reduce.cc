// Cases of the ops of reduce.yaml.
#include "shard/ops/reduce.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

struct Axes {
  const char* name;
  IntArray axis;
  bool keepdim;
};

const std::vector<Axes>& all_axes() {
  static const std::vector<Axes> axes = {{"axis {}", {}, false},
                                         {"axis {}, keepdim", {}, true},
                                         {"axis 0", {0}, false},
                                         {"axis 1, keepdim", {1}, true},
                                         {"axis -1 and 0", {-1, 0}, false}};
  return axes;
}

using Reduction = Function<Tensor, const Tensor&, const IntArray&, bool>;

/// On three dims, along each combination of axes. Ops without a value over no elements get at least
/// one element.
void add_reduction(OpCases& cases, const std::string& op, const std::vector<DType>& dtypes, const Reduction& f,
                   bool of_nothing, int64_t low = -3, int64_t high = 3, double ulps = 0, const char* inexact = "") {
  for (const Axes& axes : all_axes()) {
    cases.push_back({op, axes.name, dtypes,
                     [=](Draw& draw) {
                       const Dims dims = of_nothing ? draw.dims(3) : draw.dims_above_0(3);
                       return CaseCall{{draw.input(dims).between(low, high)},
                                       [=](Tensors& t) { return Tensors{f(t[0], axes.axis, axes.keepdim)}; }};
                     },
                     ulps, inexact});
  }
}

void add_argmaxes(OpCases& cases) {
  const auto add = [&](const char* name, int axis, bool keepdims, bool flatten, DType dtype) {
    cases.push_back({"argmax", name, kNumbers, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(2))}, [=](Tensors& t) {
                                         return Tensors{argmax(t[0], axis, keepdims, flatten, dtype)};
                                       }};
                     }});
  };
  add("axis 0", 0, false, false, DType::int64);
  add("axis -1, keepdims", -1, true, false, DType::int32);
  add("flatten", 0, false, true, DType::int64);
  add("flatten, keepdims", 0, true, true, DType::int64);
}

void add_norms(OpCases& cases) {
  for (const Axes& axes : all_axes()) {
    cases.push_back({"frobenius_norm", axes.name, kFloats, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(3))}, [=](Tensors& t) {
                                         return Tensors{frobenius_norm(t[0], axes.axis, axes.keepdim, false)};
                                       }};
                     }});
  }
  cases.push_back({"frobenius_norm", "reduce_all", kFloats, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2))},
                                     [](Tensors& t) { return Tensors{frobenius_norm(t[0], {0}, false, true)}; }};
                   }});
  cases.push_back(
      {"squared_l2_norm", "of three dims", kFloats, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(3))}, [](Tensors& t) { return Tensors{squared_l2_norm(t[0])}; }};
       }});
  cases.push_back({"numel", "of three dims", kAnyDType, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(3))}, [](Tensors& t) { return Tensors{numel(t[0])}; }};
                   }});
}

}  // namespace

void add_reduce_cases(OpCases& cases) {
  // Sums keep the dtype of floats and int64; int32, uint8 and bool become int64.
  const std::vector<DType> summed = {DType::float32, DType::int64, DType::int32, DType::uint8, DType::boolean};
  add_reduction(cases, "sum", summed, sum, true);
  add_reduction(cases, "mean", kFloats, mean, false, -3, 3, 16,
                "each rank divides its own sum, and quotients are rounded");
  add_reduction(cases, "max", kAnyDType, max, false);
  add_reduction(cases, "min", kAnyDType, min, false);
  // Products of 1, -1 and 0 are never rounded.
  add_reduction(cases, "prod", {DType::float32, DType::uint8, DType::boolean}, prod, true, -1, 1);
  add_reduction(cases, "prod", {DType::int64, DType::int32}, prod, true);
  for (OpCase& one : cases) {
    if (one.op == "prod" && one.dtypes.front() == DType::int64) one.name += " of integers";
  }
  add_reduction(cases, "all", kAnyDType, shard::all, true, -1, 1);
  add_reduction(cases, "any", kAnyDType, shard::any, true, -1, 1);
  add_reduction(cases, "amax", kAnyDType, amax, false);
  add_reduction(cases, "amin", kAnyDType, amin, false);
  add_argmaxes(cases);
  add_norms(cases);
}

}  // namespace shard::testing
