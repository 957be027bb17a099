// Cases of the ops of linalg.yaml. Matrices are made of the inputs so that they have what the op
// needs: an inverse, positive eigenvalues, or different ones.
#include <limits>

#include "shard/ops/api.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

/// Matrices plus `factor` times the identity, which have an inverse for a large one.
Tensor regular(const Tensor& x, double factor) { return add(x, tril(triu(full_like(x, factor), 0), 0)); }

Tensor symmetric(const Tensor& x) { return add(x, transpose(x, {0, 2, 1})); }

CaseInput square_matrices(Draw& draw) {
  const int64_t n = draw.size();
  return draw.input({draw.size(), n, n});
}

/// A 0 from a pending reduction may have the other sign, which changes roundings on the way.
constexpr double kUlps = 64;
const char* const kZeros = "signs of zeros in the matrix change roundings";

void add_square(OpCases& cases, const char* op, const char* name, const std::function<Tensors(const Tensor&)>& run) {
  cases.push_back({op, name, kFloats,
                   [=](Draw& draw) {
                     return CaseCall{{square_matrices(draw)}, [=](Tensors& t) { return run(t[0]); }};
                   },
                   kUlps, kZeros});
}

void add_decompositions(OpCases& cases) {
  const auto positive = [](const Tensor& x) { return regular(symmetric(x), 64); };
  add_square(cases, "cholesky", "lower", [=](const Tensor& x) { return Tensors{cholesky(positive(x))}; });
  add_square(cases, "cholesky", "upper", [=](const Tensor& x) { return Tensors{cholesky(positive(x), true)}; });
  add_square(cases, "inverse", "b matrices", [](const Tensor& x) { return Tensors{inverse(regular(x, 32))}; });
  add_square(cases, "det", "b matrices", [](const Tensor& x) { return Tensors{det(regular(x, 32))}; });
  add_square(cases, "slogdet", "b matrices", [](const Tensor& x) { return Tensors{slogdet(regular(x, 32))}; });
  add_square(cases, "eigh", "lower", [](const Tensor& x) {
    auto [w, v] = eigh(symmetric(x), "L");
    return Tensors{w, multiply(v, v)};
  });
  add_square(cases, "eigh", "upper", [](const Tensor& x) {
    auto [w, v] = eigh(symmetric(x), "U");
    return Tensors{w, multiply(v, v)};
  });
}

void add_solutions(OpCases& cases) {
  const auto add_triangular = [&](const char* name, bool upper, bool transpose, bool unit) {
    cases.push_back({"triangular_solve", name, kFloats, [=](Draw& draw) {
                       const CaseInput x = square_matrices(draw).between(1, 3);
                       return CaseCall{{x, draw.input({x.dims[0], x.dims[1], draw.size()})}, [=](Tensors& t) {
                                         return Tensors{triangular_solve(t[0], t[1], upper, transpose, unit)};
                                       }};
                     }});
  };
  add_triangular("upper", true, false, false);
  add_triangular("lower, transposed", false, true, false);
  add_triangular("upper, unitriangular", true, false, true);
  cases.push_back({"triangular_solve", "one matrix for b right sides", kFloats, [](Draw& draw) {
                     const int64_t n = draw.size();
                     return CaseCall{
                         {draw.input({n, n}).between(1, 3), draw.input({draw.size(), n, draw.size()})},
                         [](Tensors& t) { return Tensors{triangular_solve(t[0], t[1], false, false, true)}; }};
                   }});
  const auto add_solve = [&](const char* name, bool vector) {
    cases.push_back({"solve", name, kFloats, [=](Draw& draw) {
                       const CaseInput x = square_matrices(draw);
                       const int64_t n = x.dims[1];
                       return CaseCall{{x, draw.input(vector ? Dims{n} : Dims{n, draw.size()})},
                                       [](Tensors& t) { return Tensors{solve(regular(t[0], 32), t[1])}; }};
                     }});
  };
  add_solve("[b, n, n] and [n, k]", false);
  add_solve("[b, n, n] and [n]", true);
}

void add_svds(OpCases& cases) {
  const auto add_svd = [&](const char* name, bool full, bool tall) {
    cases.push_back({"svd", name, kFloats,
                     [=](Draw& draw) {
                       const int64_t n = draw.size(), more = n + draw.size();
                       const Dims dims = {draw.size(), tall ? more : n, tall ? n : more};
                       return CaseCall{{draw.input(dims)}, [=](Tensors& t) {
                                         auto [u, s, vh] = svd(t[0], full);
                                         const Tensor right = multiply(vh, vh);
                                         // vectors of u without a singular value are not determined
                                         return full ? Tensors{s, right} : Tensors{multiply(u, u), s, right};
                                       }};
                     },
                     kUlps, kZeros});
  };
  add_svd("tall", false, true);
  add_svd("wide", false, false);
  add_svd("full matrices", true, true);
}

/// Matrices [b, m, n] with m >= n.
CaseInput tall_matrices(Draw& draw) {
  const int64_t n = draw.size(), more = draw.size();
  return draw.input({draw.size(), n + more, n});
}

void add_factors(OpCases& cases) {
  add_square(cases, "qr", "complete, square", [](const Tensor& x) {
    auto [q, r] = qr(regular(x, 32), "complete");
    return Tensors{q, r};
  });
  cases.push_back({"qr", "reduced, tall", kFloats,
                   [](Draw& draw) {
                     return CaseCall{{tall_matrices(draw)}, [](Tensors& t) {
                                       auto [q, r] = qr(regular(t[0], 32), "reduced");
                                       return Tensors{q, r};
                                     }};
                   },
                   kUlps, kZeros});
}

/// What makes matrices [b, m, n] regular with their rows in another order.
Tensor exchanges(const Tensor& x) { return flip(tril(triu(full_like(x, 32), 0), 0), {1}); }

void add_lus(OpCases& cases) {
  const auto add = [&](const char* op, const char* name, bool tall, int64_t more,
                       const std::function<Tensors(Tensor&)>& run) {
    cases.push_back({op, name, kFloats,
                     [=](Draw& draw) {
                       const int64_t k = draw.size();
                       const Dims dims = {draw.size(), tall ? k + more : k, tall ? k : k + more};
                       return CaseCall{{draw.input(dims)}, [=](Tensors& t) { return run(t[0]); }};
                     },
                     kUlps, kZeros});
  };
  const auto lu_of = [](const Tensor& x) { return tensors_of(lu(shard::add(x, exchanges(x)))); };
  add("lu", "square", true, 0, lu_of);
  add("lu", "tall", true, 2, lu_of);
  add("lu", "wide", false, 2, lu_of);
  add("lu", "without pivots", true, 1, [](const Tensor& x) { return tensors_of(lu(regular(x, 32), false)); });
  add("lu_", "square", true, 0, [](Tensor& x) {
    add_(x, exchanges(x));
    return tensors_of(lu_(x));
  });
  for (const bool tall : {true, false}) {
    cases.push_back({"lu_unpack", tall ? "tall" : "wide", kFloats, [=](Draw& draw) {
                       const int64_t k = draw.size(), more = draw.size(), b = draw.size();
                       const int64_t m = tall ? k + more : k, n = tall ? k : k + more;
                       const CaseInput pivots = draw.input({b, k}).of(DType::int32).between(1, std::max<int64_t>(m, 1));
                       return CaseCall{{draw.input({b, m, n}), pivots},
                                       [](Tensors& t) { return tensors_of(lu_unpack(t[0], t[1])); }};
                     }});
  }
}

void add_least_squares(OpCases& cases) {
  const auto add_lstsq = [&](const char* driver, bool tall) {
    cases.push_back({"lstsq", std::string(driver) + (tall ? ", tall" : ", wide"), kFloats,
                     [=](Draw& draw) {
                       const int64_t k = draw.size(), more = draw.size(), b = draw.size();
                       const Dims dims = {b, tall ? k + more : k, tall ? k : k + more};
                       return CaseCall{{draw.input(dims), draw.input({b, dims[1], draw.size()})}, [=](Tensors& t) {
                                         return tensors_of(lstsq(regular(t[0], 32), t[1], 1e-3, driver));
                                       }};
                     },
                     kUlps, kZeros});
  };
  add_lstsq("gels", true);
  add_lstsq("gels", false);
  add_lstsq("gelsy", true);
  add_lstsq("gelsd", true);
  add_lstsq("gelsd", false);
  add_lstsq("gelss", false);
  for (const float order : {0.0f, 1.0f, 2.0f, 3.0f, std::numeric_limits<float>::infinity()}) {
    cases.push_back({"dist", "of order " + std::to_string(order), kFloats,
                     [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims_above_0(2));
                       return CaseCall{{x, draw.input({x.dims[1]})},
                                       [=](Tensors& t) { return Tensors{dist_op(t[0], t[1], order)}; }};
                     },
                     kUlps, "sums are combined over ranks in another order"});
  }
}

void add_products(OpCases& cases) {
  cases.push_back({"bmm", "[b, m, k] and [b, k, n]", kNumbers, [](Draw& draw) {
                     const int64_t b = draw.size(), k = draw.size();
                     return CaseCall{{draw.input({b, draw.size(), k}), draw.input({b, k, draw.size()})},
                                     [](Tensors& t) { return Tensors{bmm(t[0], t[1])}; }};
                   }});
  cases.push_back(
      {"mv", "[m, n] and [n]", kNumbers, [](Draw& draw) {
         const Dims dims = draw.dims(2);
         return CaseCall{{draw.input(dims), draw.input({dims[1]})}, [](Tensors& t) { return Tensors{mv(t[0], t[1])}; }};
       }});
  for (const int rank : {1, 2}) {
    cases.push_back({"dot", "of " + std::to_string(rank) + " dims", kNumbers, [=](Draw& draw) {
                       const CaseInput x = draw.input(draw.dims(rank));
                       return CaseCall{{x, x}, [](Tensors& t) { return Tensors{dot(t[0], t[1])}; }};
                     }});
  }
  for (const bool row : {false, true}) {
    cases.push_back({"addmm", row ? "input [n]" : "input [m, n]", kNumbers, [=](Draw& draw) {
                       const int64_t m = draw.size(), k = draw.size(), n = draw.size();
                       return CaseCall{{draw.input(row ? Dims{n} : Dims{m, n}), draw.input({m, k}), draw.input({k, n})},
                                       [](Tensors& t) { return Tensors{addmm(t[0], t[1], t[2], 2, -1)}; }};
                     }});
  }
  cases.push_back({"cross", "axis 1", kNumbers, [](Draw& draw) {
                     const CaseInput x = draw.input({draw.size(), 3, draw.size()});
                     return CaseCall{{x, x}, [](Tensors& t) { return Tensors{cross(t[0], t[1], 1)}; }};
                   }});
  cases.push_back({"cross", "the first axis of size 3", kNumbers, [](Draw& draw) {
                     const CaseInput x = draw.input({3, draw.size()});
                     return CaseCall{{x, x}, [](Tensors& t) { return Tensors{cross(t[0], t[1])}; }};
                   }});
  cases.push_back({"kron", "[m, n] and [k]", kNumbers, [](Draw& draw) {
                     return CaseCall{{draw.input(draw.dims_above_0(2)), draw.input(draw.dims_above_0(1))},
                                     [](Tensors& t) { return Tensors{kron(t[0], t[1])}; }};
                   }});
  cases.push_back({"multi_dot", "three matrices", kNumbers, [](Draw& draw) {
                     const int64_t k = draw.size(), l = draw.size();
                     return CaseCall{{draw.input({draw.size(), k}), draw.input({k, l}), draw.input({l, draw.size()})},
                                     [](Tensors& t) { return Tensors{multi_dot(t)}; }};
                   }});
}

void add_composites(OpCases& cases) {
  for (const bool upper : {false, true}) {
    cases.push_back({"cholesky_solve", upper ? "upper" : "lower", kFloats, [=](Draw& draw) {
                       const CaseInput y = square_matrices(draw).between(1, 3);
                       return CaseCall{{draw.input({y.dims[0], y.dims[1], draw.size()}), y},
                                       [=](Tensors& t) { return Tensors{cholesky_solve(t[0], t[1], upper)}; }};
                     }});
  }
  add_square(cases, "eigvalsh", "lower", [](const Tensor& x) { return Tensors{std::get<0>(eigvalsh(symmetric(x)))}; });
  add_square(cases, "matrix_power", "3", [](const Tensor& x) { return Tensors{matrix_power(x, 3)}; });
  add_square(cases, "matrix_power", "0", [](const Tensor& x) { return Tensors{matrix_power(x, 0)}; });
  add_square(cases, "matrix_power", "-1", [](const Tensor& x) { return Tensors{matrix_power(regular(x, 32), -1)}; });
  add_square(cases, "matrix_rank", "of regular matrices",
             [](const Tensor& x) { return Tensors{matrix_rank(regular(x, 32), 1e-3f, false)}; });
  add_square(cases, "matrix_rank", "of symmetric regular matrices",
             [](const Tensor& x) { return Tensors{matrix_rank(regular(symmetric(x), 64), 0, true, true)}; });
}

}  // namespace

void add_linalg_cases(OpCases& cases) {
  add_decompositions(cases);
  add_solutions(cases);
  add_svds(cases);
  add_factors(cases);
  add_lus(cases);
  add_least_squares(cases);
  add_products(cases);
  add_composites(cases);
}

}  // namespace shard::testing
