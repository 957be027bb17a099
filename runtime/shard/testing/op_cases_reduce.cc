// Cases of the ops of reduce.yaml.
#include <limits>

#include "shard/ops/math.h"
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

using ReductionOp = Function<Tensor, const Tensor&, const IntArray&, bool>;

/// On three dims, along each combination of axes. Ops without a value over no elements get at least
/// one element.
void add_reduction(OpCases& cases, const std::string& op, const std::vector<DType>& dtypes, const ReductionOp& f,
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

using ArgMax = Tensor (*)(const Tensor&, const Scalar&, bool, bool, DType);

void add_argmaxes(OpCases& cases, const std::string& op, ArgMax f) {
  const auto add = [&](const char* name, int axis, bool keepdims, bool flatten, DType dtype) {
    cases.push_back({op, name, kNumbers, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(2))},
                                       [=](Tensors& t) { return Tensors{f(t[0], axis, keepdims, flatten, dtype)}; }};
                     }});
  };
  add("axis 0", 0, false, false, DType::int64);
  add("axis -1, keepdims", -1, true, false, DType::int32);
  add("flatten", 0, false, true, DType::int64);
  add("flatten, keepdims", 0, true, true, DType::int64);
}

/// x times the number of elements that are reduced together: integers whose mean is one, so that sums in any order are equal.
Tensor with_whole_mean(const Tensor& x, const IntArray& axis) {
  int64_t count = axis.empty() ? x.dims().numel() : 1;
  for (const int64_t d : axis) count *= x.dims()[static_cast<int>(d < 0 ? d + x.dims().rank() : d)];
  return scale(x, count);
}

/// Norms, moments, medians and other reductions, whose numbers are such that sums over shards are exact.
void add_statistics(OpCases& cases) {
  for (const Axes& axes : all_axes()) {
    cases.push_back({"logsumexp", axes.name, kFloats, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(3)).between(0, 0)}, [=](Tensors& t) {
                                         return Tensors{logsumexp(t[0], axes.axis, axes.keepdim, false)};
                                       }};
                     }});
  }
  // Of numbers so far apart that only the largest count: shards have different ones.
  cases.push_back({"logsumexp", "axis 1, of distant numbers", kFloats, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims_above_0(3))}, [](Tensors& t) {
                                       return Tensors{logsumexp(scale(t[0], 1000), {1}, false, false)};
                                     }};
                   }});
  const auto add = [&](const char* op, const std::string& name, const std::function<Tensor(const Tensor&)>& run) {
    cases.push_back({op, name, kFloats, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(2)).between(-1, 1)},
                                       [=](Tensors& t) { return Tensors{run(t[0])}; }};
                     }});
  };
  add("logsumexp", "reduce_all", [](const Tensor& x) { return logsumexp(scale(x, 0), {0}, false, true); });
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float order : {0.0f, 1.0f, 2.0f, 3.0f, infinity, -infinity}) {
    const std::string name = "of order " + std::to_string(order);
    add("p_norm", name, [=](const Tensor& x) { return p_norm(x, order, 0); });
    add("p_norm", name + ", as a vector, keepdim",
        [=](const Tensor& x) { return p_norm(x, order, -1, 0, true, true); });
  }
  for (const int axis : {0, -1}) {
    cases.push_back({"norm", "axis " + std::to_string(axis), kFloats,
                     [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(2))}, [=](Tensors& t) {
                                         const auto [out, size] = norm(t[0], axis, 0.5f);
                                         return Tensors{out, size};
                                       }};
                     },
                     16, "squares of contributions are rounded"});
  }
  add("l1_norm", "of two dims", [](const Tensor& x) { return l1_norm(x); });
  cases.push_back(
      {"mean_all", "of two dims", kFloats,
       [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims_above_0(2))}, [](Tensors& t) { return Tensors{mean_all(t[0])}; }};
       },
       16, "each rank divides its own sum, and quotients are rounded"});
  for (const Axes& axes : all_axes()) {
    for (const bool unbiased : {false, true}) {
      const std::string name = std::string(axes.name) + (unbiased ? ", unbiased" : "");
      const auto add_spread = [&](const char* op, auto f) {
        cases.push_back({op, name, kFloats,
                         [=](Draw& draw) {
                           return CaseCall{
                               {draw.input(draw.dims_above_0(3))}, [=](Tensors& t) {
                                 return Tensors{f(with_whole_mean(t[0], axes.axis), axes.axis, unbiased, axes.keepdim)};
                               }};
                         },
                         16, "sums of squares about a mean are rounded"});
      };
      add_spread("var", [](auto&&... arguments) { return var(arguments...); });
      add_spread("std", [](auto&&... arguments) { return std_op(arguments...); });
    }
    for (const char* mode : {"avg", "min"}) {
      cases.push_back({"median", std::string(axes.name) + ", " + mode, kNumbers, [=](Draw& draw) {
                         return CaseCall{{draw.input(draw.dims_above_0(3))}, [=](Tensors& t) {
                                           return Tensors{median(t[0], axes.axis, axes.keepdim, mode)};
                                         }};
                       }});
    }
  }
  const auto add_reduce_as = [&](const char* name, bool lead, bool rows) {
    cases.push_back({"reduce_as", name, kNumbers, [=](Draw& draw) {
                       const Dims dims = draw.dims(2);
                       const Dims target = lead ? Dims{dims[1]} : Dims{rows ? dims[0] : 1, dims[1]};
                       return CaseCall{{draw.input(dims), draw.input(target)},
                                       [](Tensors& t) { return Tensors{reduce_as(t[0], t[1])}; }};
                     }});
  };
  add_reduce_as("[m, n] as [n]", true, false);
  add_reduce_as("[m, n] as [1, n]", false, false);
  add_reduce_as("[m, n] as [m, n]", false, true);
}

void add_vector_norms(OpCases& cases) {
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

void add_nanmedian(OpCases& cases) {
  const auto add = [&](const std::string& name, const IntArray& axis, bool keepdim, const std::string& mode) {
    cases.push_back({"nanmedian", name, kNumbers, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(3))}, [=](Tensors& t) {
                                         const auto [out, medians] = nanmedian(t[0], axis, keepdim, mode);
                                         return Tensors{out, medians};
                                       }};
                     }});
  };
  add("all axes, keepdim, avg", {}, true, "avg");
  add("all axes, min", {}, false, "min");
  add("axis 1, avg", {1}, false, "avg");
  add("axes -1 and 0, avg", {-1, 0}, false, "avg");
  add("axis 0, keepdim, min", {0}, true, "min");
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
  add_argmaxes(cases, "argmax", argmax);
  add_argmaxes(cases, "argmin", argmin);
  add_statistics(cases);
  add_vector_norms(cases);
  add_nanmedian(cases);
}

}  // namespace shard::testing
