// Cases of the ops of writing.yaml.
#include "shard/ops/writing.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

using Run = std::function<Tensors(Tensors&)>;

/// A case, and that of the in-place form, which `run` calls where its second argument is true.
void add_case(OpCases& cases, const std::string& op, const std::string& name, const std::vector<DType>& dtypes,
              const std::function<std::vector<CaseInput>(Draw&)>& inputs,
              const std::function<Tensor(Tensors&, bool in_place)>& run) {
  for (const bool in_place : {false, true}) {
    cases.push_back({in_place ? op + "_" : op, name, dtypes, [=](Draw& draw) {
                       return CaseCall{inputs(draw), [=](Tensors& t) { return Tensors{run(t, in_place)}; }};
                     }});
  }
}

/// A case of index_put of x, the indices, and value.
void add_put(OpCases& cases, const std::string& name, const std::vector<DType>& dtypes, bool accumulate,
             const std::function<std::vector<CaseInput>(Draw&)>& inputs) {
  add_case(cases, "index_put", name, dtypes, inputs, [=](Tensors& t, bool in_place) {
    const Tensors indices(t.begin() + 1, t.end() - 1);
    return in_place ? index_put_(t[0], indices, t.back(), accumulate) : index_put(t[0], indices, t.back(), accumulate);
  });
}

void add_index_put(OpCases& cases) {
  const auto position = [](const Draw& draw, const Dims& dims, int64_t size) {
    return draw.input(dims).of(DType::int64).between(-size, size - 1);
  };
  for (const bool accumulate : {false, true}) {
    const std::string more = accumulate ? ", added" : "";
    const std::vector<DType>& dtypes = accumulate ? kNumbers : kAnyDType;
    add_put(cases, "rows" + more, dtypes, accumulate, [=](Draw& draw) {
      const Dims x = draw.dims_above_0(3);
      const int64_t n = draw.size();
      return std::vector<CaseInput>{draw.input(x), position(draw, {n}, x[0]), draw.input({n, x[1], x[2]})};
    });
    add_put(cases, "elements, broadcast" + more, dtypes, accumulate, [=](Draw& draw) {
      const Dims x = draw.dims_above_0(3);
      const int64_t m = draw.size(), n = draw.size();
      return std::vector<CaseInput>{draw.input(x), position(draw, {m, 1}, x[0]),
                                    position(draw, {n}, x[1]).of(DType::int32), draw.input({n, 1})};
    });
    add_put(cases, "a mask" + more, dtypes, accumulate, [](Draw& draw) {
      const Dims x = draw.dims(3);
      return std::vector<CaseInput>{draw.input(x), draw.input({x[0], x[1]}).of(DType::boolean), draw.input({x[2]})};
    });
    add_put(cases, "a mask and a position" + more, dtypes, accumulate, [=](Draw& draw) {
      const Dims x = draw.dims_above_0(2);
      return std::vector<CaseInput>{draw.input(x), draw.input({x[0]}).of(DType::boolean), position(draw, {}, x[1]),
                                    draw.input({1})};
    });
  }
}

void add_slices(OpCases& cases) {
  add_case(
      cases, "set_value", "every second row", kAnyDType,
      [](Draw& draw) { return std::vector<CaseInput>{draw.input(draw.dims(2))}; },
      [](Tensors& t, bool in_place) {
        return in_place ? set_value_(t[0], {0}, {100}, {2}, {0}, {}, {}, {1}, {1})
                        : set_value(t[0], {0}, {100}, {2}, {0}, {}, {}, {1}, {1});
      });
  add_case(
      cases, "set_value", "three elements, backwards", kNumbers,
      [](Draw& draw) {
        return std::vector<CaseInput>{draw.input({draw.size(), draw.size_above_0() + 2})};
      },
      [](Tensors& t, bool in_place) {
        const std::vector<Scalar> values = {1, 2, 3};
        return in_place ? set_value_(t[0], {2}, {-1}, {-1}, {1}, {}, {}, {3}, values)
                        : set_value(t[0], {2}, {-1}, {-1}, {1}, {}, {}, {3}, values);
      });
  add_case(
      cases, "set_value_with_tensor", "columns, broadcast", kAnyDType,
      [](Draw& draw) {
        const Dims x = {draw.size(), 3, draw.size()};
        return std::vector<CaseInput>{draw.input(x), draw.input({x[0], 1, x[2]})};
      },
      [](Tensors& t, bool in_place) {
        return in_place ? set_value_with_tensor_(t[0], t[1], {1}, {3}, {1}, {1}, {}, {})
                        : set_value_with_tensor(t[0], t[1], {1}, {3}, {1}, {1}, {}, {});
      });
  add_case(
      cases, "set_value_with_tensor", "a row, with a new dim", kAnyDType,
      [](Draw& draw) {
        const Dims x = {draw.size_above_0(), draw.size(), draw.size()};
        return std::vector<CaseInput>{draw.input(x), draw.input({x[1], 1, x[2]})};
      },
      [](Tensors& t, bool in_place) {
        return in_place ? set_value_with_tensor_(t[0], t[1], {-1}, {100}, {1}, {0}, {0}, {2})
                        : set_value_with_tensor(t[0], t[1], {-1}, {100}, {1}, {0}, {0}, {2});
      });
  add_case(
      cases, "set_value_with_tensor", "both dims, one backwards", kNumbers,
      [](Draw& draw) {
        const int64_t rows = draw.size_above_0() + 1, columns = draw.size();
        return std::vector<CaseInput>{draw.input({rows, columns}), draw.input({1, 2, (columns + 1) / 2})};
      },
      [](Tensors& t, bool in_place) {
        return in_place ? set_value_with_tensor_(t[0], t[1], {1, 0}, {-1, 100}, {-1, 2}, {0, 1}, {}, {})
                        : set_value_with_tensor(t[0], t[1], {1, 0}, {-1, 100}, {-1, 2}, {0, 1}, {}, {});
      });
}

void add_diagonal_writes(OpCases& cases) {
  const auto add_one = [&](const std::string& name, int64_t offset, int dim1, int dim2, int rank) {
    add_case(
        cases, "fill_diagonal_tensor", name, kAnyDType,
        [=](Draw& draw) {
          const Dims x = draw.dims(rank);
          Dims y;
          for (int d = 0; d < rank; ++d) {
            if (d != dim1 && d != dim2) y.push_back(x[d]);
          }
          const int64_t rows = x[dim1] - std::max<int64_t>(-offset, 0),
                        columns = x[dim2] - std::max<int64_t>(offset, 0);
          y.push_back(std::max<int64_t>(std::min(rows, columns), 0));
          return std::vector<CaseInput>{draw.input(x), draw.input(y)};
        },
        [=](Tensors& t, bool in_place) {
          return in_place ? fill_diagonal_tensor_(t[0], t[1], offset, dim1, dim2)
                          : fill_diagonal_tensor(t[0], t[1], offset, dim1, dim2);
        });
  };
  add_one("of a matrix", 0, 0, 1, 2);
  add_one("offset 1 of dims 2 and 0", 1, 2, 0, 3);
  add_one("offset -1 of dims 1 and 2", -1, 1, 2, 3);
}

}  // namespace

void add_writing_cases(OpCases& cases) {
  add_index_put(cases);
  add_slices(cases);
  add_diagonal_writes(cases);
}

}  // namespace shard::testing
