// Cases of the ops of sort.yaml, and of the running functions of reduce.yaml.
#include "shard/ops/api.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

/// A tensor and its indices, as an op returns them.
Tensors both(std::tuple<Tensor, Tensor> results) { return {std::get<0>(results), std::get<1>(results)}; }

/// Along an axis of two dims that is not empty.
void add_along(OpCases& cases, const std::string& op, const std::string& name, const std::vector<DType>& dtypes,
               const std::function<Tensors(Tensors&)>& run, int64_t low = -3, int64_t high = 3) {
  cases.push_back({op, name, dtypes, [=](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims_above_0(2)).between(low, high)}, run};
                   }});
}

void add_selections(OpCases& cases) {
  const auto add = [&](const char* op, const char* name, const std::function<Tensors(Tensors&)>& run) {
    add_along(cases, op, name, kAnyDType, run);
  };
  add("topk", "the largest along axis 0", [](Tensors& t) { return both(topk(t[0], 1, 0)); });
  add("topk", "the smallest along axis -1", [](Tensors& t) { return both(topk(t[0], 1, -1, false)); });
  cases.push_back({"topk", "three along axis 1", kNumbers, [](Draw& draw) {
                     return CaseCall{{draw.input({draw.size(), draw.between(3, 5)})},
                                     [](Tensors& t) { return both(topk(t[0], 3, 1)); }};
                   }});
  add("argsort", "axis 0", [](Tensors& t) { return both(argsort(t[0], 0)); });
  add("argsort", "axis -1, descending", [](Tensors& t) { return both(argsort(t[0], -1, true)); });
  add("kthvalue", "the first along axis 0", [](Tensors& t) { return both(kthvalue(t[0], 1, 0)); });
  cases.push_back({"kthvalue", "the second along axis -1, keepdim", kNumbers, [](Draw& draw) {
                     return CaseCall{{draw.input({draw.size(), draw.between(2, 5)})},
                                     [](Tensors& t) { return both(kthvalue(t[0], 2, -1, true)); }};
                   }});
  add("mode", "axis 0", [](Tensors& t) { return both(mode(t[0], 0)); });
  add("mode", "axis -1, keepdim", [](Tensors& t) { return both(mode(t[0], -1, true)); });
}

void add_counts(OpCases& cases) {
  cases.push_back({"searchsorted", "one sequence", kNumbers, [](Draw& draw) {
                     const CaseInput sequence = draw.input({draw.size()}).between(1, 1);
                     return CaseCall{{sequence, draw.input(draw.dims(2))},
                                     [](Tensors& t) { return Tensors{searchsorted(t[0], t[1])}; }};
                   }});
  cases.push_back({"searchsorted", "a sequence for each row, right, int32", kNumbers, [](Draw& draw) {
                     const int64_t rows = draw.size();
                     return CaseCall{{draw.input({rows, draw.size()}).between(1, 1), draw.input({rows, draw.size()})},
                                     [](Tensors& t) { return Tensors{searchsorted(t[0], t[1], true, true)}; }};
                   }});
  const auto add_histogram = [&](const char* name, int min, int max) {
    cases.push_back({"histogram", name, kNumbers, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(2))},
                                       [=](Tensors& t) { return Tensors{histogram(t[0], 4, min, max)}; }};
                     }});
  };
  add_histogram("from -2 to 2", -2, 2);
  add_histogram("from the smallest to the largest", 0, 0);
}

void add_running(OpCases& cases) {
  // Products of 1, -1 and 0 are never rounded.
  for (const int axis : {0, -1}) {
    const std::string name = "axis " + std::to_string(axis);
    add_along(
        cases, "cumprod", name, kNumbers, [=](Tensors& t) { return Tensors{cumprod(t[0], axis)}; }, -1, 1);
    add_along(
        cases, "cumprod_", name, kNumbers, [=](Tensors& t) { return Tensors{cumprod_(t[0], axis)}; }, -1, 1);
    cases.push_back({"cumprod_grad", name, kFloats, [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims(2)).between(-1, 1);
                       return CaseCall{{x, x.between(-3, 3)}, [=](Tensors& t) {
                                         return Tensors{cumprod_grad(t[0], cumprod(t[0], axis), t[1], axis)};
                                       }};
                     }});
    add_along(cases, "cummax", name, kAnyDType, [=](Tensors& t) { return both(cummax(t[0], axis)); });
    add_along(cases, "cummin", name, kAnyDType, [=](Tensors& t) { return both(cummin(t[0], axis, DType::int32)); });
  }
  const auto add = [&](const char* name, const std::function<Tensor(const Tensor&)>& run) {
    add_along(cases, "logcumsumexp", name, kFloats, [=](Tensors& t) { return Tensors{run(t[0])}; });
    cases.back().ulps = 16;
    cases.back().inexact = "sums are combined over ranks in another order";
  };
  add("axis 0", [](const Tensor& x) { return logcumsumexp(x, 0); });
  add("axis -1, reverse", [](const Tensor& x) { return logcumsumexp(x, -1, false, false, true); });
  add("exp, exclusive", [](const Tensor& x) { return exp(logcumsumexp(x, 1, false, true)); });
  add("flatten", [](const Tensor& x) { return logcumsumexp(x, 0, true); });
}

}  // namespace

void add_sort_cases(OpCases& cases) {
  add_selections(cases);
  add_counts(cases);
  add_running(cases);
}

}  // namespace shard::testing
