// Cases of the ops of shape.yaml.
#include "ops/shape.h"
#include "testing/op_cases.h"

namespace shard::testing {
namespace {


void add_reshapes(OpCases& cases) {
  const auto add = [&](const char* name, auto dims, auto shape) {
    cases.push_back({"reshape", name, kAnyDType, [=](Draw& draw) {
                       const Dims x = dims(draw);
                       const IntArray to = shape(x);
                       return CaseCall{{draw.input(x)}, [=](Tensors& t) { return Tensors{reshape(t[0], to)}; }};
                     }});
    cases.push_back({"reshape_", name, kAnyDType, [=](Draw& draw) {
                       const Dims x = dims(draw);
                       const IntArray to = shape(x);
                       return CaseCall{{draw.input(x)}, [=](Tensors& t) { return Tensors{reshape_(t[0], to)}; }};
                     }});
  };
  // In the new shape a 0 would keep the dim of x at that place.
  const auto two = [](Draw& draw) { return draw.dims_above_0(2); };
  const auto twice = [](Draw& draw) { return Dims{2 * draw.size_above_0(), draw.size_above_0()}; };
  const auto three = [](Draw& draw) { return draw.dims_above_0(3); };
  add("[a, b] to [b, a]", two, [](const Dims& x) { return IntArray{x[1], x[0]}; });
  add("[a, b, c] to [a * b, c]", three, [](const Dims& x) { return IntArray{x[0] * x[1], x[2]}; });
  add("[a, b, c] to [a, -1]", three, [](const Dims&) { return IntArray{0, -1}; });
  add("[2 * a, b] to [2, a, b]", twice,
      [](const Dims& x) { return IntArray{2, x[0] / 2, x[1]}; });
  add("[2 * a, b] to [a, 2 * b]", twice,
      [](const Dims& x) { return IntArray{x[0] / 2, 2 * x[1]}; });
}

void add_reinterpretations(OpCases& cases) {
  using Run = Tensors (*)(Tensors&);
  const auto add = [&](const char* op, const char* name, bool middle_1, Run run) {
    cases.push_back({op, name, kAnyDType, [=](Draw& draw) {
                       const Dims dims = middle_1 ? Dims{draw.size(), 1, draw.size()} : draw.dims(3);
                       return CaseCall{{draw.input(dims)}, run};
                     }});
  };
  add("flatten", "dims 1 and 2", false, [](Tensors& t) { return Tensors{flatten(t[0], 1, 2)}; });
  add("flatten", "all dims", false, [](Tensors& t) { return Tensors{flatten(t[0], 0, -1)}; });
  add("flatten_", "dims 0 and 1", false, [](Tensors& t) { return Tensors{flatten_(t[0], 0, 1)}; });
  add("squeeze", "axis 1", true, [](Tensors& t) { return Tensors{squeeze(t[0], {1})}; });
  add("squeeze_", "axis 1", true, [](Tensors& t) { return Tensors{squeeze_(t[0], {1})}; });
  add("unsqueeze", "axis 0", false, [](Tensors& t) { return Tensors{unsqueeze(t[0], {0})}; });
  add("unsqueeze", "axis 1 and -1", false, [](Tensors& t) { return Tensors{unsqueeze(t[0], {1, -1})}; });
  add("unsqueeze_", "axis 2", false, [](Tensors& t) { return Tensors{unsqueeze_(t[0], {2})}; });
}

void add_transposes(OpCases& cases) {
  const auto add = [&](const char* name, IntArray perm) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(static_cast<int>(perm.size())))}, run}; };
    };
    cases.push_back({"transpose", name, kAnyDType, make([=](Tensors& t) { return Tensors{transpose(t[0], perm)}; })});
    cases.push_back({"transpose_", name, kAnyDType, make([=](Tensors& t) { return Tensors{transpose_(t[0], perm)}; })});
  };
  add("of two dims", {1, 0});
  add("2, 0, 1", {2, 0, 1});
  add("0, -1, 1", {0, -1, 1});
}

void add_expands(OpCases& cases) {
  cases.push_back({"expand", "[a, 1] to [a, b]", kAnyDType, [](Draw& draw) {
                     const Dims to = draw.dims(2);
                     return CaseCall{{draw.input({to[0], 1})}, [=](Tensors& t) { return Tensors{expand(t[0], {-1, to[1]})}; }};
                   }});
  cases.push_back({"expand", "[a] to [2, a]", kAnyDType, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(1))}, [](Tensors& t) { return Tensors{expand(t[0], {2, -1})}; }};
                   }});
}

void add_joins(OpCases& cases) {
  for (const int axis : {0, -1}) {
    const std::string name = axis == 0 ? "axis 0" : "axis -1";
    cases.push_back({"concat", "two, " + name, kAnyDType, [=](Draw& draw) {
                       Dims a = draw.dims(2), b = a;
                       b[axis == 0 ? 0 : 1] = draw.size();
                       return CaseCall{{draw.input(a), draw.input(b)}, [=](Tensors& t) { return Tensors{concat(t, axis)}; }};
                     }});
    cases.push_back({"stack", "two, " + name, kAnyDType, [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims(2));
                       return CaseCall{{x, x}, [=](Tensors& t) { return Tensors{stack(t, axis)}; }};
                     }});
  }
  cases.push_back({"concat", "three of one dim", kNumbers, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(1)), draw.input(draw.dims(1)), draw.input(draw.dims(1))},
                                     [](Tensors& t) { return Tensors{concat(t, 0)}; }};
                   }});
  cases.push_back({"stack", "three, axis 1", kNumbers, [](Draw& draw) {
                     const CaseInput x = draw.input(draw.dims(1));
                     return CaseCall{{x, x, x}, [](Tensors& t) { return Tensors{stack(t, 1)}; }};
                   }});
}

void add_cuts(OpCases& cases) {
  for (const int axis : {0, 1}) {
    const std::string name = axis == 0 ? "axis 0" : "axis 1";
    cases.push_back({"split", "1 and the rest, " + name, kAnyDType, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(2))}, [=](Tensors& t) { return split(t[0], {1, -1}, axis); }};
                     }});
    cases.push_back({"slice", "from 1, " + name, kAnyDType, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(2))}, [=](Tensors& t) { return Tensors{slice(t[0], {axis}, {1}, {100})}; }};
                     }});
  }
  cases.push_back({"slice", "the last, dropped", kAnyDType, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims_above_0(2))}, [](Tensors& t) { return Tensors{slice(t[0], {0}, {-1}, {100}, {}, {0})}; }};
                   }});
  cases.push_back({"slice", "all of axis 0", kAnyDType, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2))}, [](Tensors& t) { return Tensors{slice(t[0], {0}, {0}, {100})}; }};
                   }});
}

void add_gathers(OpCases& cases) {
  const auto add = [&](const std::string& name, int axis, int index_rank) {
    cases.push_back({"gather", name, kNumbers, [=](Draw& draw) {
                       const Dims x = draw.dims_above_0(2);
                       return CaseCall{{draw.input(x), draw.input(draw.dims(index_rank)).of(DType::int64).between(-x[axis], x[axis] - 1)},
                                       [=](Tensors& t) { return Tensors{gather(t[0], t[1], axis)}; }};
                     }});
  };
  add("axis 0", 0, 1);
  add("axis 1", 1, 1);
  add("axis 0, one row", 0, 0);
}

}  // namespace

void add_shape_cases(OpCases& cases) {
  add_reshapes(cases);
  add_reinterpretations(cases);
  add_transposes(cases);
  add_expands(cases);
  add_joins(cases);
  add_cuts(cases);
  add_gathers(cases);
}

}  // namespace shard::testing
