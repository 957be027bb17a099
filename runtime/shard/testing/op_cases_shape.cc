// Cases of the ops of shape.yaml.
#include "shard/core/slice_range.h"
#include "shard/ops/shape.h"
#include "shard/testing/op_cases.h"

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
  // In the new shape a 0 would keep the dim of x at that position.
  const auto two = [](Draw& draw) { return draw.dims_above_0(2); };
  const auto twice = [](Draw& draw) { return Dims{2 * draw.size_above_0(), draw.size_above_0()}; };
  const auto three = [](Draw& draw) { return draw.dims_above_0(3); };
  add("[a, b] to [b, a]", two, [](const Dims& x) { return IntArray{x[1], x[0]}; });
  add("[a, b, c] to [a * b, c]", three, [](const Dims& x) { return IntArray{x[0] * x[1], x[2]}; });
  add("[a, b, c] to [a, -1]", three, [](const Dims&) { return IntArray{0, -1}; });
  add("[2 * a, b] to [2, a, b]", twice, [](const Dims& x) { return IntArray{2, x[0] / 2, x[1]}; });
  add("[2 * a, b] to [a, 2 * b]", twice, [](const Dims& x) { return IntArray{x[0] / 2, 2 * x[1]}; });
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
  add("flatten", "dims 0 and 1", false, [](Tensors& t) { return Tensors{flatten(t[0], 0, 1)}; });
  add("flatten_", "dims 0 and 1", false, [](Tensors& t) { return Tensors{flatten_(t[0], 0, 1)}; });
  add("squeeze", "axis 1", true, [](Tensors& t) { return Tensors{squeeze(t[0], {1})}; });
  add("squeeze_", "axis 1", true, [](Tensors& t) { return Tensors{squeeze_(t[0], {1})}; });
  add("unsqueeze", "axis 0", false, [](Tensors& t) { return Tensors{unsqueeze(t[0], {0})}; });
  add("unsqueeze", "axis 1 and -1", false, [](Tensors& t) { return Tensors{unsqueeze(t[0], {1, -1})}; });
  add("unsqueeze", "axis 2", false, [](Tensors& t) { return Tensors{unsqueeze(t[0], {2})}; });
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
  cases.push_back(
      {"expand", "[a, 1] to [a, b]", kAnyDType, [](Draw& draw) {
         const Dims to = draw.dims(2);
         return CaseCall{{draw.input({to[0], 1})}, [=](Tensors& t) { return Tensors{expand(t[0], {-1, to[1]})}; }};
       }});
  cases.push_back(
      {"expand", "[a] to [2, a]", kAnyDType, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(1))}, [](Tensors& t) { return Tensors{expand(t[0], {2, -1})}; }};
       }});
}

void add_repeated_dims(OpCases& cases) {
  const auto add_tile = [&](const char* name, const IntArray& times) {
    cases.push_back(
        {"tile", name, kAnyDType, [=](Draw& draw) {
           return CaseCall{{draw.input(draw.dims(2))}, [=](Tensors& t) { return Tensors{tile(t[0], times)}; }};
         }});
  };
  add_tile("2 by 1", {2, 1});
  add_tile("3 along the last", {3});
  add_tile("2 by 1 by 2", {2, 1, 2});
  add_tile("none", {1, 1});
  const auto add_expand_as = [&](const char* name, auto x, bool with_y) {
    cases.push_back({"expand_as", name, kAnyDType, [=](Draw& draw) {
                       const Dims to = draw.dims(2);
                       std::vector<CaseInput> inputs = {draw.input(x(to))};
                       if (with_y) inputs.push_back(draw.input(to));
                       return CaseCall{inputs, [=](Tensors& t) {
                                         return Tensors{with_y ? expand_as(t[0], t[1]) : expand_as(t[0], {}, to)};
                                       }};
                     }});
  };
  add_expand_as(
      "[a, 1] and [a, b]",
      [](const Dims& to) {
        return Dims{to[0], 1};
      },
      true);
  add_expand_as(
      "[b] and [a, b]", [](const Dims& to) { return Dims{to[1]}; }, true);
  add_expand_as(
      "[1, b] to [a, b]",
      [](const Dims& to) {
        return Dims{1, to[1]};
      },
      false);
}

void add_triangles(OpCases& cases) {
  for (const int diagonal : {0, 1, -2}) {
    const auto make = [=](auto run) {
      return [=](Draw& draw) { return CaseCall{{draw.input(draw.dims(diagonal == 1 ? 3 : 2))}, run}; };
    };
    const std::string name = "diagonal " + std::to_string(diagonal);
    cases.push_back({"tril", name, kAnyDType, make([=](Tensors& t) { return Tensors{tril(t[0], diagonal)}; })});
    cases.push_back({"tril_", name, kAnyDType, make([=](Tensors& t) { return Tensors{tril_(t[0], diagonal)}; })});
    cases.push_back({"triu", name, kAnyDType, make([=](Tensors& t) { return Tensors{triu(t[0], diagonal)}; })});
    cases.push_back({"triu_", name, kAnyDType, make([=](Tensors& t) { return Tensors{triu_(t[0], diagonal)}; })});
  }
}

void add_joins(OpCases& cases) {
  for (const int axis : {0, -1}) {
    const std::string name = axis == 0 ? "axis 0" : "axis -1";
    cases.push_back(
        {"concat", "two, " + name, kAnyDType, [=](Draw& draw) {
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
    cases.push_back(
        {"split", "1 and the rest, " + name, kAnyDType, [=](Draw& draw) {
           return CaseCall{{draw.input(draw.dims_above_0(2))}, [=](Tensors& t) { return split(t[0], {1, -1}, axis); }};
         }});
    cases.push_back({"slice", "from 1, " + name, kAnyDType, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims_above_0(2))},
                                       [=](Tensors& t) { return Tensors{slice(t[0], {axis}, {1}, {100})}; }};
                     }});
  }
  for (const int axis : {0, -1}) {
    const std::string name = axis == 0 ? "axis 0" : "axis -1";
    cases.push_back({"split_with_num", "two, " + name, kAnyDType, [=](Draw& draw) {
                       const int64_t m = draw.size(), n = draw.size();
                       return CaseCall{{draw.input(axis == 0 ? Dims{2 * m, n} : Dims{m, 2 * n})},
                                       [=](Tensors& t) { return split_with_num(t[0], 2, axis); }};
                     }});
    cases.push_back({"unbind", "three, " + name, kAnyDType, [=](Draw& draw) {
                       const int64_t m = draw.size();
                       return CaseCall{{draw.input(axis == 0 ? Dims{3, m} : Dims{m, 3})},
                                       [=](Tensors& t) { return unbind(t[0], axis); }};
                     }});
  }
  const auto add_strided = [&](const char* name, const IntArray& axes, const IntArray& starts, const IntArray& ends,
                               const IntArray& strides) {
    cases.push_back({"strided_slice", name, kAnyDType, [=](Draw& draw) {
                       return CaseCall{{draw.input(draw.dims(2))}, [=](Tensors& t) {
                                         return Tensors{strided_slice(t[0], axes, starts, ends, strides)};
                                       }};
                     }});
  };
  add_strided("every second of axis 0", {0}, {1}, {100}, {2});
  add_strided("axis -1 backwards", {-1}, {100}, {-1}, {-1});
  add_strided("both axes", {1, 0}, {0, -2}, {100, 0}, {3, -1});
  add_strided("no axis", {}, {}, {}, {});
  cases.push_back({"slice", "the last, dropped", kAnyDType, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims_above_0(2))},
                                     [](Tensors& t) { return Tensors{slice(t[0], {0}, {-1}, {100}, {}, {0})}; }};
                   }});
  cases.push_back(
      {"slice", "all of axis 0", kAnyDType, [](Draw& draw) {
         return CaseCall{{draw.input(draw.dims(2))}, [](Tensors& t) { return Tensors{slice(t[0], {0}, {0}, {100})}; }};
       }});
}

void add_unslices(OpCases& cases) {
  const auto add = [&](const char* name, const IntArray& axes, const IntArray& starts, const IntArray& ends,
                       const IntArray& strides) {
    cases.push_back({"unslice", name, kAnyDType, [=](Draw& draw) {
                       const Dims shape = draw.dims(2);
                       Dims x = shape;
                       for (size_t i = 0; i < axes.size(); ++i) {
                         const int axis = normalize_axis("unslice", "an axis", axes[i], 2);
                         x[axis] = slice_range(shape[axis], starts[i], ends[i], strides[i]).count;
                       }
                       return CaseCall{{draw.input(x)}, [=](Tensors& t) {
                                         return Tensors{unslice(t[0], shape, axes, starts, ends, strides)};
                                       }};
                     }});
  };
  add("from 1, axis 0", {0}, {1}, {100}, {1});
  add("every second of axis -1", {-1}, {0}, {100}, {2});
  add("axis 1 backwards", {1}, {100}, {-1}, {-1});
  add("both axes", {1, 0}, {0, -2}, {100, 0}, {3, -1});
  add("all of axis 0", {0}, {-100}, {100}, {1});
  add("no axis", {}, {}, {}, {});
}

void add_gathers(OpCases& cases) {
  const auto add = [&](const std::string& name, int axis, int index_rank) {
    cases.push_back(
        {"gather", name, kNumbers, [=](Draw& draw) {
           const Dims x = draw.dims_above_0(2);
           return CaseCall{
               {draw.input(x), draw.input(draw.dims(index_rank)).of(DType::int64).between(-x[axis], x[axis] - 1)},
               [=](Tensors& t) { return Tensors{gather(t[0], t[1], axis)}; }};
         }});
  };
  add("axis 0", 0, 1);
  add("axis 1", 1, 1);
  add("axis 0, one row", 0, 0);
  for (const int axis : {0, -1}) {
    cases.push_back(
        {"index_sum", axis == 0 ? "axis 0" : "axis -1", kNumbers, [=](Draw& draw) {
           const Dims x = draw.dims(2);
           const int64_t size = draw.size_above_0();
           return CaseCall{
               {draw.input(x), draw.input({axis == 0 ? x[0] : x[1]}).of(DType::int64).between(-size, size - 1)},
               [=](Tensors& t) { return Tensors{index_sum(t[0], t[1], size, axis)}; }};
         }});
  }
}

void add_scatters(OpCases& cases) {
  for (const bool overwrite : {true, false}) {
    const auto make = [=](bool column, auto run) {
      return [=](Draw& draw) {
        const Dims x = draw.dims_above_0(2);
        const int64_t n = draw.size();
        return CaseCall{{draw.input(x), draw.input(column ? Dims{n, 1} : Dims{n}).of(DType::int64).between(0, x[0] - 1),
                         draw.input({n, x[1]})},
                        run};
      };
    };
    const std::string name = overwrite ? "overwrite" : "add";
    cases.push_back({"scatter", name, kNumbers,
                     make(false, [=](Tensors& t) { return Tensors{scatter(t[0], t[1], t[2], overwrite)}; })});
    cases.push_back({"scatter", name + ", index [n, 1]", kNumbers,
                     make(true, [=](Tensors& t) { return Tensors{scatter(t[0], t[1], t[2], overwrite)}; })});
    cases.push_back({"scatter_", name, kNumbers,
                     make(false, [=](Tensors& t) { return Tensors{scatter_(t[0], t[1], t[2], overwrite)}; })});
  }
  for (const bool overwrite : {true, false}) {
    const auto make = [=](bool column, auto run) {
      return [=](Draw& draw) {
        const Dims x = draw.dims_above_0(2);
        const int64_t n = draw.size();
        return CaseCall{
            {draw.input(column ? Dims{n, 1} : Dims{n}).of(DType::int64).between(0, x[0] - 1), draw.input(x)}, run};
      };
    };
    const auto run = [=](Tensors& t) {
      const auto [x_grad, updates_grad] = scatter_grad(t[0], t[1], overwrite);
      return Tensors{x_grad, updates_grad};
    };
    const std::string name = overwrite ? "overwrite" : "add";
    cases.push_back({"scatter_grad", name, kFloats, make(false, run)});
    cases.push_back({"scatter_grad", name + ", index [n, 1]", kFloats, make(true, run)});
    cases.push_back({"scatter_grad_", name, kFloats, make(false, [=](Tensors& t) {
                       const auto [x_grad, updates_grad] = scatter_grad_(t[0], t[1], overwrite);
                       return Tensors{x_grad, updates_grad};
                     })});
  }
  cases.push_back({"one_hot", "four classes", {DType::int64, DType::int32}, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims(2)).between(0, 3)},
                                     [](Tensors& t) { return Tensors{one_hot(t[0], 4)}; }};
                   }});
}

}  // namespace

void add_shape_cases(OpCases& cases) {
  add_reshapes(cases);
  add_reinterpretations(cases);
  add_transposes(cases);
  add_expands(cases);
  add_repeated_dims(cases);
  add_triangles(cases);
  add_joins(cases);
  add_cuts(cases);
  add_unslices(cases);
  add_gathers(cases);
  add_scatters(cases);
}

}  // namespace shard::testing
