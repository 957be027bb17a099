// Cases of the ops of dynamic.yaml, and of those of random.yaml that take tensors.
#include <cmath>

#include "shard/ops/dynamic.h"
#include "shard/ops/random.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

void add_counting(OpCases& cases) {
  const auto add_runs = [&](const char* op, const std::string& name, const auto& run) {
    cases.push_back({op, name, kAnyDType, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(2)).between(0, 1)}, [=](Tensors& t) {
                                         const auto [out, index, counts] = run(t[0]);
                                         return Tensors{out, index, counts};
                                       }};
                     }});
  };
  add_runs("unique_consecutive", "elements",
           [](const Tensor& x) { return unique_consecutive(x, true, true, {}, DType::int64); });
  add_runs("unique_consecutive", "columns",
           [](const Tensor& x) { return unique_consecutive(x, true, true, {1}, DType::int32); });
  add_runs("unique_consecutive_rows", "rows alone", [](const Tensor& x) { return unique_consecutive_rows(x); });
  add_runs("unique_consecutive_rows", "with index and counts",
           [](const Tensor& x) { return unique_consecutive_rows(x, true, true, DType::int32); });
  // Not int32: the checker also runs ops on contributions, and that to a minimum may be its largest number.
  cases.push_back({"bincount", "at least 4", {DType::int64}, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(1)).between(0, 6)},
                                     [](Tensors& t) { return Tensors{bincount(t[0], {}, 4)}; }};
                   }});
  cases.push_back({"bincount", "weights", {DType::float32, DType::float64, DType::int32}, [](Draw& draw) {
                     const CaseInput weights = draw.input(draw.dims(1));
                     return CaseCall{{weights.of(DType::int64).between(0, 4), weights},
                                     [](Tensors& t) { return Tensors{bincount(t[0], t[1])}; }};
                   }});
}

}  // namespace

void add_dynamic_cases(OpCases& cases) {
  for (const int rank : {0, 1, 2, 3}) {
    const std::string name = "of " + std::to_string(rank) + " dims";
    cases.push_back({"nonzero", name, kAnyDType, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(rank)).between(-1, 1)},
                                       [](Tensors& t) { return Tensors{nonzero(t[0])}; }};
                     }});
    cases.push_back({"masked_select", name, kAnyDType, [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims(rank));
                       return CaseCall{{x, x.of(DType::boolean).between(0, 1)},
                                       [](Tensors& t) { return Tensors{masked_select(t[0], t[1])}; }};
                     }});
  }
  cases.push_back(
      {"unique", "values", kAnyDType, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(2))}, [](Tensors& t) { return Tensors{std::get<0>(unique(t[0]))}; }};
       }});
  cases.push_back({"unique", "with indices, inverse and counts", kAnyDType, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2))}, [](Tensors& t) {
                                       auto [out, indices, inverse, counts] =
                                           unique(t[0], true, true, true, DType::int32);
                                       return Tensors{out, indices, inverse, counts};
                                     }};
                   }});
  add_counting(cases);
}

void add_random_cases(OpCases& cases) {
  // Each distributed call draws another key; where all probabilities are 0 or 1 that has no effect.
  cases.push_back(
      {"bernoulli", "of 0 and 1", kFloats, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(2)).between(0, 1)}, [](Tensors& t) { return Tensors{bernoulli(t[0])}; }};
       }});
  // For the same reason these parameters leave one possible result.
  cases.push_back(
      {"poisson", "of mean 0", kFloats, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(2)).between(0, 0)}, [](Tensors& t) { return Tensors{poisson(t[0])}; }};
       }});
  const auto seeded = [&](const char* op, auto run) {
    cases.push_back(
        {op, "a fixed seed", kFloats, [=](Draw& draw) {
           return CaseCall{{draw.input(draw.dims_above_0(2))}, [=](Tensors& t) { return Tensors{run(t[0])}; }};
         }});
  };
  seeded("uniform_inplace", [](Tensor& x) { return uniform_inplace(x, -1, 1, 7, 1, 0, 3); });
  seeded("uniform_inplace_", [](Tensor& x) { return uniform_inplace_(x, -1, 1, 7, 1, 0, 3); });
  seeded("gaussian_inplace", [](Tensor& x) { return gaussian_inplace(x, 1, 2, 7); });
  seeded("gaussian_inplace_", [](Tensor& x) { return gaussian_inplace_(x, 1, 2, 7); });
  cases.push_back(
      {"exponential_", "of an infinite rate", kFloats, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(2))}, [](Tensors& t) { return Tensors{exponential_(t[0], HUGE_VALF)}; }};
       }});
  cases.push_back({"standard_gamma", "of shape 0", kFloats, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2)).between(0, 0)},
                                     [](Tensors& t) { return Tensors{standard_gamma(t[0])}; }};
                   }});
  cases.push_back({"binomial", "of certain successes", kFloats, [](Draw& draw) {
                     const CaseInput count = draw.input(draw.dims(2));
                     return CaseCall{{count.between(0, 9), count.between(0, 1)},
                                     [](Tensors& t) { return Tensors{binomial(t[0], t[1])}; }};
                   }});
  cases.push_back({"dirichlet", "of one category", kFloats, [](Draw& draw) {
                     return CaseCall{{draw.input({draw.size(), draw.size(), 1}).between(1, 3)},
                                     [](Tensors& t) { return Tensors{dirichlet(t[0])}; }};
                   }});
  for (const bool replacement : {false, true}) {
    cases.push_back(
        {"multinomial", replacement ? "one category, again" : "one category, once", kFloats, [=](Draw& draw) {
           return CaseCall{{draw.input({draw.size(), 1}).between(1, 3)},
                           [=](Tensors& t) { return Tensors{multinomial(t[0], replacement ? 3 : 1, replacement)}; }};
         }});
  }
  for (const bool least : {false, true}) {
    cases.push_back(
        {"top_p_sampling", least ? "the likeliest, with a threshold" : "the likeliest", kFloats, [=](Draw& draw) {
           const int64_t rows = draw.size();
           const CaseInput x = draw.input({rows, draw.size_above_0()}).between(1, 3);
           std::vector<CaseInput> inputs = {x, draw.input({rows, 1}).between(0, 1)};  // at most the likeliest one
           if (least) inputs.push_back(draw.input({rows}).between(1, 4));
           return CaseCall{inputs, [=](Tensors& t) {
                             const auto [out, ids] = top_p_sampling(t[0], t[1], least ? t[2] : Tensor());
                             return Tensors{out, ids};
                           }};
         }});
  }
}

}  // namespace shard::testing
