// Placement rules without ranks: layouts of the inputs -> layouts wanted -> layouts of the outputs, as text.
#include <catch2/catch.hpp>

#include "shard/ops/activation_ops.h"
#include "shard/ops/elementary_ops.h"
#include "shard/ops/graph_ops.h"
#include "shard/ops/indexing_ops.h"
#include "shard/ops/linalg_ops.h"
#include "shard/ops/logic_ops.h"
#include "shard/ops/loss_ops.h"
#include "shard/ops/math_ops.h"
#include "shard/ops/nn_ops.h"
#include "shard/ops/reduce_ops.h"
#include "shard/ops/shape_ops.h"
#include "shard/ops/sort_ops.h"
#include "shard/ops/special_ops.h"
#include "shard/ops/vision_ops.h"
#include "shard/ops/writing_ops.h"
#include "shard/spmd/notation.h"
#include "spmd/rule_case.h"

namespace solver_test {

using namespace shard;
using namespace shard::spmd;
using namespace shard::test;

TEST_CASE("matmul: a sharded row or column stays, a sharded inner dim leaves a pending sum") {
  const Dims x{64, 32}, y{32, 48}, out{64, 48};
  const std::vector<AttrValue> plain = {kNo, kNo};
  check_cases({
      {ops::matmul, {{x, "b, -"}, {y, "-, -"}}, plain, {out}, "[b, -], [-, -] -> [b, -]"},
      {ops::matmul, {{x, "b, a"}, {y, "-, -"}}, plain, {out}, "[b, a], [a, -] -> [b, -] sum(a)"},
      {ops::matmul, {{x, "-, -"}, {y, "b, a"}}, plain, {out}, "[-, b], [b, a] -> [-, a] sum(b)"},
      {ops::matmul, {{x, "a, -"}, {y, "-, b"}}, plain, {out}, "[a, -], [-, b] -> [a, b]"},
      {ops::matmul, {{x, "-, -"}, {y, "-, -"}}, plain, {out}, "[-, -], [-, -] -> [-, -]"},
      {ops::matmul, {{x, "-, a+b"}, {y, "-, -"}}, plain, {out}, "[-, a+b], [a+b, -] -> [-, -] sum(a) sum(b)"},
      {ops::matmul, {{x, "-, b+a"}, {y, "-, -"}}, plain, {out}, "[-, b+a], [b+a, -] -> [-, -] sum(a) sum(b)"},
      {ops::matmul, {{x, "a+b, -"}, {y, "-, -"}}, plain, {out}, "[a+b, -], [-, -] -> [a+b, -]"},
      {ops::matmul, {{x, "-, -| sum(a)"}, {y, "-, b"}}, plain, {out}, "[-, -] sum(a), [-, b] -> [-, b] sum(a)"},
      {ops::matmul, {{x, "-, - | max(a)"}, {y, "-, b"}}, plain, {out}, "[-, -], [-, b] -> [-, b]"},
  });
}

TEST_CASE("matmul: leading dims and transposes") {
  const Dims x{512, 48, 64, 32}, y{32, 48}, out{512, 48, 64, 48};
  check_cases({
      {ops::matmul, {{x, "b, -, -, a"}, {y, "-, -"}}, {kNo, kNo}, {out}, "[b, -, -, a], [a, -] -> [b, -, -, -] sum(a)"},
      {ops::matmul,
       {{{512, 48, 32, 64}, "b, -, -, a"}, {y, "-, -"}},
       {kYes, kNo},
       {out},
       "[b, -, -, a], [-, -] -> [b, -, a, -]"},
      {ops::matmul,
       {{x, "-, -, -, -"}, {{48, 32}, "b, a"}},
       {kNo, kYes},
       {out},
       "[-, -, -, a], [b, a] -> [-, -, -, b] sum(a)"},
      {ops::matmul,
       {{{1, 64, 32}, "a, -, -"}, {{8, 32, 48}, "b, -, -"}},
       {kNo, kNo},
       {{8, 64, 48}},
       "[-, -, -], [b, -, -] -> [b, -, -]"},
      {ops::matmul, {{{32}, "a"}, {{32}, "-"}}, {kNo, kNo}, {{}}, "[a], [a] -> [] sum(a)"},
      {ops::matmul, {{{64, 32}, "b, -"}, {{32}, "a"}}, {kNo, kNo}, {{64}}, "[b, a], [a] -> [b] sum(a)"},
  });
}

TEST_CASE("matmul: an axis that two arguments want differently goes where fewer bytes move") {
  // x is by far the larger one, so it keeps its layout.
  const Dims x{512, 48, 32, 64}, y{48, 32}, out{512, 48, 64, 48};
  check_cases({
      {ops::matmul,
       {{x, "-, -, a, b"}, {y, "b, a"}},
       {kYes, kYes},
       {out},
       "[-, -, a, b], [-, a] -> [-, -, b, -] sum(a)"},
      // The inner dim is on b in x and on a in y. A rule without costs has to refuse this.
      {ops::matmul,
       {{x, "-, -, b, a"}, {y, "b, a"}},
       {kYes, kYes},
       {out},
       "[-, -, b, a], [-, b] -> [-, -, a, -] sum(b)"},
      // Both keep their axis of the inner dim; the order is that of the first argument.
      {ops::matmul,
       {{{64, 32}, "-, a"}, {{32, 48}, "b, -"}},
       {kNo, kNo},
       {{64, 48}},
       "[-, a+b], [a+b, -] -> [-, -] sum(a) sum(b)"},
      // Equal costs: the first argument's letter.
      {ops::matmul, {{{32, 32}, "a, -"}, {{32, 32}, "-, a"}}, {kNo, kNo}, {{32, 32}}, "[a, -], [-, -] -> [a, -]"},
      // The smaller y is gathered, then the smaller x.
      {ops::matmul, {{{4096, 512}, "a, -"}, {{512, 64}, "-, a"}}, {kNo, kNo}, {{4096, 64}}, "[a, -], [-, -] -> [a, -]"},
      {ops::matmul, {{{64, 512}, "a, -"}, {{512, 4096}, "-, a"}}, {kNo, kNo}, {{64, 4096}}, "[-, -], [-, a] -> [-, a]"},
  });
}

TEST_CASE("elementwise ops: replicated arguments follow, broadcast dims stay whole") {
  const Dims d{6, 4};
  check_cases({
      {ops::add, {{d, "a, b"}, {d, "-, -"}}, {}, {d}, "[a, b], [a, b] -> [a, b]"},
      {ops::add, {{d, "a, -"}, {d, "-, b"}}, {}, {d}, "[a, b], [a, b] -> [a, b]"},
      {ops::add, {{d, "a, b"}, {{1, 4}, "-, -"}}, {}, {d}, "[a, b], [-, b] -> [a, b]"},
      {ops::add, {{d, "-, b"}, {{1, 4}, "a, -"}}, {}, {d}, "[-, b], [-, b] -> [-, b]"},
      {ops::add, {{{2, 6, 4}, "-, a, b"}, {{4}, "-"}}, {}, {{2, 6, 4}}, "[-, a, b], [b] -> [-, a, b]"},
      {ops::add, {{{4}, "b"}, {{2, 6, 4}, "a, -, -"}}, {}, {{2, 6, 4}}, "[b], [a, -, b] -> [a, -, b]"},
      {ops::add, {{d, "a, -"}, {{}, ""}}, {}, {d}, "[a, -], [] -> [a, -]"},
      {ops::add, {{{1, 1}, "a, -"}, {{1, 1}, "-, -"}}, {}, {{1, 1}}, "[a, -], [a, -] -> [a, -]"},
      {ops::where, {{d, "a, -"}, {d, "-, -"}, {{4}, "b"}}, {}, {d}, "[a, b], [a, b], [b] -> [a, b]"},
      {ops::lerp, {{d, "a, -"}, {d, "-, -"}, {{4}, "b"}}, {}, {d}, "[a, b], [a, b], [b] -> [a, b]"},
      {ops::allclose,
       {{d, "a, -"}, {d, "-, b"}},
       {Scalar(0.0), Scalar(0.0), kNo},
       {{}},
       "[a, b], [a, b] -> [] all(a) all(b)"},
      {ops::relu, {{d, "b+a, -"}}, {}, {d}, "[b+a, -] -> [b+a, -]"},
  });
}

TEST_CASE("elementwise ops: several axes on one letter keep their order, that of an in-place target first") {
  const Dims d{12, 4};
  check_cases({
      {ops::add, {{d, "b+a, -"}, {d, "-, -"}}, {}, {d}, "[b+a, -], [b+a, -] -> [b+a, -]"},
      {ops::add, {{d, "-, -"}, {d, "b+a, -"}}, {}, {d}, "[b+a, -], [b+a, -] -> [b+a, -]"},
      {ops::add, {{d, "a+b, -"}, {d, "b+a, -"}}, {}, {d}, "[a+b, -], [a+b, -] -> [a+b, -]"},
      {ops::add, {{d, "a+b, -"}, {d, "b+a, -"}}, {}, {d}, "[b+a, -], [b+a, -] -> [b+a, -]", {}, {false, true}},
      {ops::add, {{d, "b, -"}, {d, "a, -"}}, {}, {d}, "[b+a, -], [b+a, -] -> [b+a, -]"},
  });
}

TEST_CASE("elementwise ops: conflicts go to the cheaper side, ties to the first argument") {
  const Dims d{600, 400};
  check_cases({
      {ops::add, {{d, "a, -"}, {d, "-, a"}}, {}, {d}, "[a, -], [a, -] -> [a, -]"},
      {ops::add, {{d, "-, a"}, {d, "a, -"}}, {}, {d}, "[-, a], [-, a] -> [-, a]"},
      {ops::add, {{{1, 400}, "-, a"}, {d, "a, -"}}, {}, {d}, "[-, -], [a, -] -> [a, -]"},
      {ops::where,
       {{d, "-, a", DType::boolean}, {d, "a, -"}, {d, "a, -"}},
       {},
       {d},
       "[a, -], [a, -], [a, -] -> [a, -]"},
  });
}

TEST_CASE("pending reductions: kept where all arguments have them or can, else done first") {
  const Dims d{6, 4};
  check_cases({
      {ops::add,
       {{d, "-, - | sum(a)"}, {d, "-, - | sum(a)"}},
       {},
       {d},
       "[-, -] sum(a), [-, -] sum(a) -> [-, -] sum(a)"},
      {ops::add, {{d, "-, b | sum(a)"}, {d, "-, -"}}, {}, {d}, "[-, b] sum(a), [-, b] sum(a) -> [-, b] sum(a)"},
      {ops::add, {{d, "-, - | sum(a)"}, {d, "-, - | max(a)"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::add, {{d, "-, - | sum(a)"}, {d, "a, -"}}, {}, {d}, "[a, -], [a, -] -> [a, -]"},
      {ops::add, {{d, "-, - | sum(a), max(b)"}, {d, "-, -"}}, {}, {d}, "[-, -] sum(a), [-, -] sum(a) -> [-, -] sum(a)"},
      {ops::multiply, {{d, "-, - | sum(a)"}, {d, "-, -"}}, {}, {d}, "[-, -] sum(a), [-, -] -> [-, -] sum(a)"},
      {ops::multiply,
       {{d, "-, - | sum(a)"}, {d, "-, - | sum(b)"}},
       {},
       {d},
       "[-, -] sum(a), [-, -] sum(b) -> [-, -] sum(a) sum(b)"},
      {ops::multiply, {{d, "-, - | sum(a)"}, {d, "-, - | sum(a)"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::divide, {{d, "-, - | sum(a)"}, {d, "-, -"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::relu, {{d, "-, - | sum(a)"}}, {}, {d}, "[-, -] -> [-, -]"},
      {ops::relu, {{d, "-, - | max(a)"}}, {}, {d}, "[-, -] max(a) -> [-, -] max(a)"},
      {ops::leaky_relu, {{d, "-, b | max(a)"}}, {0.25}, {d}, "[-, b] max(a) -> [-, b] max(a)"},
      {ops::leaky_relu, {{d, "-, b | max(a)"}}, {-0.25}, {d}, "[-, b] -> [-, b]"},  // falls below 0
      {ops::leaky_relu, {{d, "-, b | max(a)"}}, {0.0}, {d}, "[-, b] -> [-, b]"},    // NaN at -inf
      {ops::thresholded_relu, {{d, "-, b | max(a)"}}, {0.0}, {d}, "[-, b] max(a) -> [-, b] max(a)"},
      {ops::softplus, {{d, "-, b | max(a)"}}, {1.0, 20.0}, {d}, "[-, b] -> [-, b]"},  // falls at the threshold
      {ops::fmax, {{d, "-, b | max(a)"}, {d, "-, b | max(a)"}}, {}, {d}, "[-, b], [-, b] -> [-, b]"},  // NaN
      {ops::log1p, {{d, "-, - | min(a)"}}, {}, {d}, "[-, -] min(a) -> [-, -] min(a)"},
      {ops::log1p, {{d, "-, - | max(a)"}}, {}, {d}, "[-, -] -> [-, -]"},
      {ops::digamma, {{d, "-, - | max(a)"}}, {}, {d}, "[-, -] -> [-, -]"},
      {ops::scale, {{d, "- , - | sum(a)"}}, {Scalar(2.0), Scalar(0.0), kYes}, {d}, "[-, -] sum(a) -> [-, -] sum(a)"},
      {ops::scale, {{d, "- , - | sum(a)"}}, {Scalar(2.0), Scalar(1.0), kYes}, {d}, "[-, -] -> [-, -]"},
      {ops::transpose, {{d, "-, b | prod(a)"}}, {IntArray{1, 0}}, {{4, 6}}, "[-, b] prod(a) -> [b, -] prod(a)"},
  });
}

TEST_CASE("reductions: a sharded reduced dim leaves a pending reduction of its type") {
  const Dims d{6, 4}, wide{6, 9}, narrow{6, 7};
  check_cases({
      {ops::sum, {{d, "a, b"}}, {IntArray{1}, kNo}, {{6}}, "[a, b] -> [a] sum(b)"},
      {ops::sum, {{d, "a, b"}}, {IntArray{-2}, kYes}, {{1, 4}}, "[a, b] -> [-, b] sum(a)"},
      {ops::sum, {{d, "b+a, -"}}, {IntArray{}, kNo}, {{}}, "[b+a, -] -> [] sum(a) sum(b)"},
      {ops::sum, {{d, "-, b | sum(a)"}}, {IntArray{1}, kNo}, {{6}}, "[-, b] sum(a) -> [-] sum(a) sum(b)"},
      {ops::sum, {{d, "-, b | max(a)"}}, {IntArray{1}, kNo}, {{6}}, "[-, b] -> [-] sum(b)"},
      {ops::mean, {{d, "a, b"}}, {IntArray{0, 1}, kNo}, {{}}, "[a, b] -> [] sum(a) sum(b)"},
      {ops::max, {{d, "a, b"}}, {IntArray{0}, kNo}, {{4}}, "[a, b] -> [b] max(a)"},
      {ops::max, {{d, "-, b | max(a)"}}, {IntArray{1}, kNo}, {{6}}, "[-, b] max(a) -> [-] max(a) max(b)"},
      {ops::max, {{d, "-, b | sum(a)"}}, {IntArray{1}, kNo}, {{6}}, "[-, b] -> [-] max(b)"},
      {ops::min, {{d, "a, b"}}, {IntArray{1}, kYes}, {{6, 1}}, "[a, b] -> [a, -] min(b)"},
      {ops::prod, {{d, "a, b"}}, {IntArray{1}, kNo}, {{6}}, "[a, b] -> [a] prod(b)"},
      // An all-reduce of 16 B for each line costs as much as gathering lines of 32 B.
      {ops::argmax, {{wide, "a, b"}}, {Scalar(1), kNo, kNo, DType::int64}, {{6}}, "[a, b] -> [a]"},
      {ops::argmax, {{wide, "a, b"}}, {Scalar(0), kNo, kYes, DType::int64}, {{}}, "[a, b] -> []"},
      {ops::argmax, {{narrow, "a, b"}}, {Scalar(1), kNo, kNo, DType::int64}, {{6}}, "[a, -] -> [a]"},
      {ops::cumsum, {{d, "a, b"}}, {Scalar(-1), kNo, kNo, kNo}, {d}, "[a, b] -> [a, b]"},
      {ops::cumsum, {{d, "a, b"}}, {Scalar(0), kYes, kNo, kNo}, {{24}}, "[-, -] -> [-]"},
  });
}

TEST_CASE("selections and running functions: the axis is whole, unless the kernel combines its parts") {
  const Dims d{6, 4}, wide{6, 40};
  const auto topk = [](const Dims& x, int k) {
    const Dims out{6, k};
    return Case{ops::topk, {{x, "a, b"}}, {Scalar(k), int64_t{-1}, kYes, kYes}, {out, out}, ""};
  };
  // Two elements with their indices are gathered of each part, or all elements where those are fewer bytes.
  CHECK(run(topk(wide, 2)).text == "[a, b] -> [a, -], [a, -]");
  CHECK(run(topk(wide, 20)).text == "[a, -] -> [a, -], [a, -]");
  CHECK(run(topk(d, 2)).text == "[a, -] -> [a, -], [a, -]");
  // Of a part of a running product 56 bytes are gathered, which has to pay too.
  const auto cumprod = [](const Dims& x) { return Case{ops::cumprod, {{x, "a, b"}}, {int64_t{1}}, {x}, ""}; };
  CHECK(run(cumprod({6, 900})).text == "[a, b] -> [a, b]");
  CHECK(run(cumprod({60000, 6})).text == "[a, -] -> [a, -]");
  check_cases({
      {ops::argsort, {{d, "a, b"}}, {int64_t{0}, kNo, kNo}, {d, d}, "[-, b] -> [-, b], [-, b]"},
      {ops::kthvalue, {{d, "a, b"}}, {int64_t{1}, int64_t{1}, kNo}, {{6}, {6}}, "[a, -] -> [a], [a]"},
      {ops::nanmedian, {{d, "a, b"}}, {IntArray{1}, kNo, std::string("avg")}, {{6}, {6, 2}}, "[a, -] -> [a], [a, -]"},
      {ops::nanmedian,
       {{d, "a, b"}},
       {IntArray{0}, kYes, std::string("min")},
       {{1, 4}, {1, 4}},
       "[-, b] -> [-, b], [-, b]"},
      {ops::cummax, {{d, "a, b"}}, {int64_t{1}, DType::int64}, {d, d}, "[a, b] -> [a, b], [a, b]"},
      {ops::histogram, {{d, "a, b"}}, {int64_t{5}, int64_t{0}, int64_t{2}}, {{5}}, "[a, b] -> [-] sum(a) sum(b)"},
      {ops::histogram, {{d, "a, b"}}, {int64_t{5}, int64_t{0}, int64_t{0}}, {{5}}, "[-, -] -> [-]"},
  });
}

TEST_CASE("messages along edges: nodes are whole, and sums over sharded edges are pending") {
  const Dims x{6, 4}, y{12, 4}, edges{12};
  const IntArray rows = {0};
  const std::string sum = "SUM", mean = "MEAN", product = "MUL";
  check_cases({
      {ops::send_u_recv,
       {{x, "a, b"}, {edges, "a"}, {edges, "-"}},
       {sum, rows},
       {x, {0}},
       "[-, b], [a], [a] -> [-, b] sum(a), [-] sum(a)"},
      {ops::send_u_recv,
       {{x, "-, b"}, {edges, "a"}, {edges, "a"}},
       {mean, rows},
       {x, {6}},
       "[-, b], [-], [-] -> [-, b], [-]"},
      {ops::send_ue_recv,
       {{x, "-, b"}, {y, "a, b"}, {edges, "a"}, {edges, "a"}},
       {product, sum, rows},
       {x, {0}},
       "[-, b], [a, b], [a], [a] -> [-, b] sum(a), [-] sum(a)"},
      {ops::send_uv,
       {{x, "-, b"}, {x, "-, b"}, {edges, "a"}, {edges, "a"}},
       {product},
       {y},
       "[-, b], [-, b], [a], [a] -> [a, b]"},
      {ops::segment_pool, {{x, "a, b"}, {{6}, "a"}}, {sum}, {x, {0, 1}}, "[-, b], [-] -> [-, b], [-, -]"},
  });
}

TEST_CASE("box_coder: target boxes and prior boxes are sharded, which decode_center_size has in one tensor") {
  const Dims prior{4, 4}, boxes{6, 4}, code{6, 4, 4};
  const std::string encode = "encode_center_size", decode = "decode_center_size";
  const std::vector<double> none;
  check_cases({
      {ops::box_coder,
       {{prior, "b, a"}, {prior, "-, -"}, {boxes, "a, -"}},
       {encode, true, int64_t{0}, none},
       {code},
       "[b, -], [b, -], [a, -] -> [a, b, -]"},
      {ops::box_coder,
       {{prior, "-, -"}, {prior, "-, -"}, {code, "a, b, -"}},
       {decode, true, int64_t{0}, none},
       {code},
       "[b, -], [b, -], [a, b, -] -> [a, b, -]"},
      {ops::box_coder,
       {{boxes, "-, -"}, {boxes, "-, -"}, {code, "a, -, b"}},
       {decode, true, int64_t{1}, none},
       {code},
       "[a, -], [a, -], [a, -, -] -> [a, -, -]"},
  });
}

TEST_CASE("linear algebra: matrices are whole, and leading dims may be sharded") {
  const Dims d{6, 4, 4}, y{4, 2};
  check_cases({
      {ops::cholesky, {{d, "a, b, -"}}, {kNo}, {d}, "[a, -, -] -> [a, -, -]"},
      {ops::solve, {{d, "a, -, -"}, {y, "-, b"}}, {}, {{6, 4, 2}}, "[a, -, -], [-, -] -> [a, -, -]"},
      {ops::slogdet, {{d, "a, -, b"}}, {}, {{2, 6}}, "[a, -, -] -> [-, a]"},
      {ops::svd, {{d, "a, b, -"}}, {kNo}, {d, {6, 4}, d}, "[a, -, -] -> [a, -, -], [a, -], [a, -, -]"},
      {ops::qr, {{d, "a, -, b"}}, {std::string("reduced")}, {d, d}, "[a, -, -] -> [a, -, -], [a, -, -]"},
      {ops::lu, {{d, "a, b, -"}}, {kYes}, {d, {6, 4}, {6}}, "[a, -, -] -> [a, -, -], [a, -], [a]"},
      {ops::lu_unpack,
       {{d, "a, b, -"}, {{6, 4}, "a, b", DType::int32}},
       {kYes, kYes},
       {d, d, d},
       "[a, -, -], [a, -] -> [a, -, -], [a, -, -], [a, -, -]"},
      {ops::lstsq,
       {{d, "a, b, -"}, {{6, 4, 2}, "-, -, b"}},
       {Scalar(0), std::string("gels")},
       {{6, 4, 2}, {6, 0}, {6}, {6, 0}},
       "[a, -, -], [a, -, -] -> [a, -, -], [a, -], [a], [a, -]"},
  });
}

TEST_CASE("layers: what is normalised or looked up decides what may be sharded") {
  const Dims x{6, 4, 8};
  const AttrValue epsilon = 1e-5;
  check_cases({
      {ops::softmax, {{x, "a, -, b"}}, {int64_t{-1}}, {x}, "[a, -, b] -> [a, -, b]"},
      {ops::softmax, {{x, "a, -, b"}}, {int64_t{1}}, {x}, "[a, -, b] -> [a, -, b]"},
      {ops::layer_norm,
       {{x, "a, b, -"}, {{8}, "b"}, {{8}, nullptr}},
       {epsilon, int64_t{2}},
       {x, {6, 4}, {6, 4}},
       "[a, b, -], [-], [] -> [a, b, -], [a, b], [a, b]"},
      {ops::layer_norm,
       {{x, "a, -, b"}, {{8}, "b"}, {{8}, nullptr}},
       {epsilon, int64_t{2}},
       {x, {6, 4}, {6, 4}},
       "[a, -, b], [-], [] -> [a, -, b], [a, -], [a, -]"},
      {ops::rms_norm, {{x, "a, -, b"}, {{8}, "-"}}, {epsilon}, {x, {6, 4}}, "[a, -, b], [b] -> [a, -, b], [a, -]"},
      // A scale does not decide how x is sharded.
      {ops::rms_norm, {{x, "a, -, -"}, {{8}, "b"}}, {epsilon}, {x, {6, 4}}, "[a, -, -], [-] -> [a, -, -], [a, -]"},
      {ops::layer_norm,
       {{x, "a, b, -"}, {{32}, "-"}, {{32}, "a"}},
       {epsilon, int64_t{1}},
       {x, {6}, {6}},
       "[a, b, -], [-], [-] -> [a, b, -], [a], [a]"},
      {ops::embedding,
       {{{6, 5}, "a, -", DType::int64}, {{100, 8}, "b, -"}},
       {int64_t{-1}},
       {{6, 5, 8}},
       "[a, -], [b, -] -> [a, -, -] sum(b)"},
      {ops::embedding,
       {{{6, 5}, "a, -", DType::int64}, {{100, 8}, "-, b"}},
       {int64_t{-1}},
       {{6, 5, 8}},
       "[a, -], [-, b] -> [a, -, b]"},
      {ops::embedding,
       {{{6, 5}, "-, a", DType::int64}, {{100000, 8}, "a, b"}},
       {int64_t{-1}},
       {{6, 5, 8}},
       "[-, -], [a, b] -> [-, -, b] sum(a)"},
      {ops::dropout,
       {{{6, 4}, "a, b"}, {{1}, "-", DType::int64}},
       {Scalar(0.5), kNo, std::string(""), int64_t{0}, kNo},
       {{6, 4}, {6, 4}},
       "[a, b], [-] -> [a, b], [a, b]"},
      {ops::cross_entropy_with_softmax,
       {{{6, 4}, "a, b"}, {{6, 1}, "a, -", DType::int64}},
       {kNo, kYes, kYes, int64_t{-100}, int64_t{-1}},
       {{6, 4}, {6, 1}},
       "[a, b], [a, -] -> [a, b], [a, -]"},
      {ops::margin_cross_entropy,
       {{{6, 4}, "a, b"}, {{6}, "-", DType::int64}},
       {kNo, int64_t{0}, int64_t{0}, int64_t{1}, 1.0, 0.5, 0.0, 64.0},
       {{6, 4}, {6, 1}},
       "[a, b], [a] -> [a, b], [a, -]"},
  });
}

TEST_CASE("layers: softmax asks for the communicator of the axes that shard what it adds up") {
  const Dims x{60, 40};
  CHECK(run({ops::softmax, {{x, "a, b"}}, {int64_t{-1}}, {x}, ""}).reduce_axes == AxisList{1});
  CHECK(run({ops::softmax, {{x, "-, a+b"}}, {int64_t{-1}}, {x}, ""}).reduce_axes == AxisList{0, 1});
  CHECK(run({ops::argmax, {{x, "a, b"}}, {Scalar(0), kNo, kNo}, {{40}}, ""}).reduce_axes == AxisList{0});
  // In the order in which the axes split the dim.
  CHECK(run({ops::cumsum, {{x, "-, b+a"}}, {Scalar(1), kNo, kNo, kNo}, {x}, ""}).reduce_axes == AxisList{1, 0});
}

TEST_CASE("layers: a loss that combines a few numbers is sharded as its label is where that sends less") {
  const Dims x{64, 50000};
  const std::vector<AttrValue> mean = {int64_t{-100}, std::string("mean")};
  check_cases({
      {ops::nll_loss,
       {{x, "-, -"}, {{64}, "a", DType::int64}, {{}, nullptr}},
       mean,
       {{}, {}},
       "[a, -], [a], [] -> [], []"},
      {ops::nll_loss,
       {{x, "-, a"}, {{64}, "a", DType::int64}, {{}, nullptr}},
       mean,
       {{}, {}},
       "[a, -], [a], [] -> [], []"},
  });
}

TEST_CASE("layers: batch_norm asks for the communicator of the axes that shard the batch") {
  const Dims x{6, 3, 8}, c{3};
  const std::vector<AttrValue> attrs = {kNo, 0.9, 1e-5, std::string("NCHW"), kNo, kNo};
  Case batch{ops::batch_norm, {{x, "a, -, b"}, {c, "-"}, {c, "-"}, {c, "-"}, {c, nullptr}}, attrs, {x, c, c, c, c}, ""};
  const Inferred sharded = run(batch);
  CHECK(sharded.text == "[a, -, b], [-], [-], [-], [] -> [a, -, b], [-], [-], [-], [-]");
  CHECK(sharded.reduce_axes == AxisList{0, 1});
  batch.inputs[0].layout = "-, b, a";
  const Inferred channels = run(batch);
  CHECK(channels.text == "[-, b, a], [b], [b], [b], [] -> [-, b, a], [b], [b], [b], [b]");
  CHECK(channels.reduce_axes == AxisList{0});
}

TEST_CASE("dims that are cut, joined or grown stay whole, the others keep their axes") {
  const Dims d{6, 4};
  const auto* square = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  const Dims x0{16, 16, 16}, x1{4, 16, 16}, x2{2, 16, 16};
  check_cases({
      {ops::transpose, {{d, "a, b"}}, {IntArray{1, 0}}, {{4, 6}}, "[a, b] -> [b, a]"},
      {ops::expand, {{{1, 4}, "a, b"}}, {IntArray{6, 4}}, {d}, "[-, b] -> [-, b]"},
      {ops::expand, {{{4}, "a+b"}}, {IntArray{6, 4}}, {d}, "[a+b] -> [-, a+b]"},
      {ops::split, {{d, "a, b"}}, {IntArray{2, 4}, Scalar(0)}, {{2, 4}, {4, 4}}, "[-, b] -> [-, b], [-, b]"},
      {ops::slice,
       {{d, "a, b"}},
       {IntArray{1}, IntArray{0}, IntArray{1}, IntArray{}, IntArray{1}},
       {{6}},
       "[a, -] -> [a]"},
      {ops::gather, {{d, "a, b"}, {{3}, "-", DType::int64}}, {Scalar(0)}, {{3, 4}}, "[-, b], [-] -> [-, b]"},
      {ops::gather, {{d, "-, b"}, {{3}, "a", DType::int64}}, {Scalar(0)}, {{3, 4}}, "[-, b], [a] -> [a, b]"},
      {ops::stack, {{d, "a, -"}, {d, "-, b"}}, {int64_t{1}}, {{6, 2, 4}}, "[a, b], [a, b] -> [a, -, b]", {2}},
      {ops::concat, {{d, "a, b"}, {d, "-, -"}}, {Scalar(0)}, {{12, 4}}, "[-, b], [-, b] -> [-, b]", {2}},
      // A rule with one axis per dim would infer [-, b, a] here. Several axes may share a dim: each is assigned so
      // that the large x0 keeps its layout, or so that fewer of the three are resharded.
      {ops::concat,
       {{x0, "-, a, b"}, {x1, "-, b, a"}, {x2, "-, -, a"}},
       {Scalar(0)},
       {{22, 16, 16}},
       "[-, -, b+a], [-, -, b+a], [-, -, b+a] -> [-, -, b+a]",
       {3},
       {},
       square},
  });
}

TEST_CASE("ops of indices shard every dim that their ranks can look up or write on their own") {
  const Dims d{6, 4};
  const auto index = [](const Dims& dims, const char* layout) { return In{dims, layout, DType::int64}; };
  check_cases({
      {ops::roll, {{d, "a, b"}}, {IntArray{1}, IntArray{0}}, {d}, "[-, b] -> [-, b]"},
      {ops::roll, {{d, "a, b"}}, {IntArray{1}, IntArray{}}, {d}, "[-, -] -> [-, -]"},
      {ops::pad, {{d, "a, b"}}, {IntArray{0, 0, 1, 0}, Scalar(0)}, {{6, 5}}, "[a, -] -> [a, -]"},
      {ops::gather_nd, {{d, "a, b"}, index({3, 1}, "-, -")}, {}, {{3, 4}}, "[-, b], [-, -] -> [-, b]"},
      {ops::gather_nd, {{d, "-, b"}, index({3, 1}, "a, -")}, {}, {{3, 4}}, "[-, b], [a, -] -> [a, b]"},
      {ops::scatter_nd_add,
       {{d, "a, b"}, index({3, 1}, "-, -"), {{3, 4}, "-, -"}},
       {},
       {d},
       "[a, b], [-, -], [-, b] -> [a, b]"},
      {ops::index_add,
       {{d, "a, b"}, index({3}, "-"), {{6, 3}, "-, -"}},
       {int64_t{1}},
       {d},
       "[a, b], [-], [a, -] -> [a, b]"},
      {ops::take_along_axis, {{d, "a, -"}, index({6, 3}, "-, b")}, {int64_t{1}}, {{6, 3}}, "[a, -], [a, b] -> [a, b]"},
      {ops::put_along_axis,
       {{d, "a, b"}, index({6, 3}, "-, -"), {{6, 3}, "-, -"}},
       {int64_t{1}, std::string("add"), kYes},
       {d},
       "[a, b], [a, -], [a, -] -> [a, b]"},
      {ops::index_put,
       {{{6, 4, 2}, "a, -, b"}, index({3}, "a"), {{3, 4, 1}, "-, a, b"}},
       {kNo},
       {{6, 4, 2}},
       "[a, -, b], [-], [-, -, -] -> [a, -, b]"},
      {ops::index_put,
       {{d, "a, b"}, {d, "a, -", DType::boolean}, {{1}, "a"}},
       {kNo},
       {d},
       "[a, b], [a, b], [-] -> [a, b]"},
      {ops::index_put,
       {{d, "a, b"}, {d, "a, -", DType::boolean}, {{7}, "-"}},
       {kNo},
       {d},
       "[a, b], [-, -], [-] -> [a, b]"},
      {ops::set_value_with_tensor,
       {{d, "a, b"}, {{2, 4}, "-, -"}},
       {IntArray{1}, IntArray{3}, IntArray{1}, IntArray{0}, IntArray{}, IntArray{}},
       {d},
       "[a, b], [-, b] -> [a, b]"},
      {ops::fill_diagonal_tensor,
       {{{6, 4, 4}, "a, b, -"}, {{6, 3}, "-, b"}},
       {int64_t{1}, int64_t{1}, int64_t{2}},
       {{6, 4, 4}},
       "[a, b, -], [a, -] -> [a, b, -]"},
      {ops::view_dtype, {{d, "a, b"}}, {DType::float64}, {{6, 2}}, "[a, -] -> [a, -]"},
      {ops::view_dtype, {{d, "a, b"}}, {DType::int32}, {d}, "[a, b] -> [a, b]"},
      {ops::unfold,
       {{{6, 4, 4, 4}, "a, b, -, -"}},
       {IntArray{1, 1}, IntArray{1, 1}, IntArray{0, 0, 0, 0}, IntArray{1, 1}},
       {{6, 4, 16}},
       "[a, -, -, -] -> [a, -, -]"},
      {ops::shape, {{d, "a, b"}}, {}, {{2}}, "[a, b] -> [-]"},
  });
}

TEST_CASE("reshape keeps axes where the shards stay exact, and relayouts where they do not") {
  const auto reshape = [](const Dims& in, const char* layout, const Dims& out) {
    return run({ops::reshape, {{in, layout}}, {IntArray(out)}, {out}, ""});
  };
  CHECK(reshape({2, 1024, 1024}, "a, b, -", {2, 1024, 4, 256}).text == "[a, b, -] -> [a, b, -, -]");
  CHECK(reshape({6, 4}, "a, -", {24}).text == "[a, -] -> [a]");
  CHECK(reshape({6, 4}, "a+b, -", {6, 2, 2}).text == "[a+b, -] -> [a+b, -, -]");
  CHECK(reshape({24}, "b+a", {6, 4}).text == "[b+a] -> [b+a, -]");
  CHECK(reshape({6, 1, 4}, "a, -, b", {6, 4}).text == "[a, -, b] -> [a, b]");
  CHECK_FALSE(reshape({6, 4}, "a, -", {24}).relayout);
  CHECK(reshape({5, 4}, "a, -", {20}).relayout);
  CHECK(reshape({5, 4}, "a, -", {20}).text == "[a, -] -> [a]");
  CHECK(reshape({6, 4}, "-, a", {24}).relayout);
  CHECK(reshape({6, 4}, "-, - | max(b)", {24}).text == "[-, -] max(b) -> [-] max(b)");
}

TEST_CASE("an in-place target stays where it is, whatever that costs the others") {
  const Dims d{600, 400};
  check_cases({
      {ops::add, {{{600, 400}, "-, -"}, {d, "a, b"}}, {}, {d}, "[-, -], [-, -] -> [-, -]", {}, {true}},
      {ops::add, {{d, "-, a"}, {d, "a, -"}}, {}, {d}, "[-, a], [-, a] -> [-, a]", {}, {true}},
      {ops::add, {{d, "a, -"}, {d, "-, - | sum(a)"}}, {}, {d}, "[a, -], [a, -] -> [a, -]", {}, {true}},
      {ops::add,
       {{d, "-, - | sum(a)"}, {d, "-, -"}},
       {},
       {d},
       "[-, -] sum(a), [-, -] sum(a) -> [-, -] sum(a)",
       {},
       {true}},
      // The result would have to be reduced for the first target, which is not pending. So the second argument is
      // reduced instead.
      {ops::add, {{d, "-, -"}, {d, "-, - | sum(a)"}}, {}, {d}, "[-, -], [-, -] -> [-, -]", {}, {true, true}},
      // relu does not commute with a sum, so here even the target has to be resharded.
      {ops::relu, {{d, "-, - | sum(a)"}}, {}, {d}, "[-, -] -> [-, -]", {}, {true}},
  });
}

TEST_CASE("a rule or guard that is not registered, and an attribute the op lacks, are named") {
  Expression e("NoSuchRule", 1);
  CHECK_FALSE(has_rule(e.def));
  CHECK_THAT(error_of(
                 [&] {
                   run({e.def, {{{6, 4}, "a, b"}}, {}, {{6, 4}}, ""});
                 },
                 ErrorCode::no_rule),
             Catch::Contains("no rule named 'NoSuchRule' is registered") && Catch::Contains("mine.yaml:3"));
  Expression guarded("... -> ...", 1);
  guarded.def.commutes = Commutes::jointly;
  guarded.def.commute_types = 1;
  guarded.def.commute_guard = "NoSuchGuard";
  CHECK_THAT(error_of(
                 [&] {
                   run({guarded.def, {{{6, 4}, "a, b"}}, {}, {{6, 4}}, ""});
                 },
                 ErrorCode::no_rule),
             Catch::Contains("'NoSuchGuard'"));
  Expression soft("SoftmaxInferSpmd", 1);
  CHECK_THAT(error_of(
                 [&] {
                   run({soft.def, {{{6, 4}, "a, b"}}, {}, {{6, 4}}, ""});
                 },
                 ErrorCode::internal),
             Catch::Contains("'axis'"));
}

TEST_CASE("a registered rule and guard are used, and a later one replaces the earlier") {
  register_rule("TestWhole", [](const RuleArgs& args) { return infer_replicated(args); });
  Expression e("TestWhole", 1);
  REQUIRE(has_rule(e.def));
  check_cases({{e.def, {{{6, 4}, "a, b"}}, {}, {{6, 4}}, "[-, -] -> [-, -]"}});
  register_rule("TestWhole", [](const RuleArgs& args) {
    return RuleResult{{args.tensors[0].spec->layout()}, {args.tensors[0].spec->layout()}, {}, false};
  });
  check_cases({{e.def, {{{6, 4}, "a, b"}}, {}, {{6, 4}}, "[a, b] -> [a, b]"}});
}

TEST_CASE("a rule that names too few dims is an error with the argument's rank") {
  OpDef op = Expression("..., ... -> ...").def;
  register_rule("Forgetful", [](const RuleArgs& args) {
    Notation n;
    n.inputs = {fresh_letters(n, args.tensors[0].meta.dims), {}};
    n.outputs = {n.inputs[0]};
    return solve(args, n);
  });
  op.rule = "Forgetful";
  CHECK_THROWS_WITH(run({op, {{{6, 4}, "a, -"}, {{6, 4}, "-, -"}}, {}, {{6, 4}}, ""}),
                    Catch::Contains("argument 1 has 2 dims, but its placement rule names 0"));
}

TEST_CASE("a call that has a solver of its own is decided by that, forward and in reverse") {
  struct Replicating final : LayoutSolver {
    RuleResult solve(const RuleArgs& args, const Notation&) const override { return infer_replicated(args); }
  } replicating;
  Case c{ops::transpose, {{{6, 4}, "-, b"}}, {IntArray{1, 0}}, {{4, 6}}, ""};
  CHECK(run(c).text == "[-, b] -> [b, -]");
  c.solver = &replicating;
  CHECK(run(c).text == "[-, -] -> [-, -]");
  CHECK(run(c, {"b, -"}).text == "[-, -] -> [-, -]");
}

}  // namespace solver_test
