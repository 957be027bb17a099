// Rules of single ops beyond those in solver_test.cc: what each keeps sharded or pending, as text.
#include <catch2/catch.hpp>

#include "shard/ops/attention_ops.h"
#include "shard/ops/conv_ops.h"
#include "shard/ops/image_ops.h"
#include "shard/ops/logic_ops.h"
#include "shard/ops/math_ops.h"
#include "shard/ops/nn_ops.h"
#include "shard/ops/reduce_ops.h"
#include "shard/ops/shape_ops.h"
#include "spmd/rule_case.h"

namespace op_rules_test {

using namespace shard;
using namespace shard::spmd;
using namespace shard::test;

TEST_CASE("logic: and keeps a pending all, or keeps a pending any, and nothing else commutes") {
  const Dims d{6, 4};
  check_cases({
      {ops::logical_and,
       {{d, "-, - | all(a)", DType::boolean}, {d, "-, -", DType::boolean}},
       {},
       {d},
       "[-, -] all(a), [-, -] all(a) -> [-, -] all(a)"},
      {ops::logical_and, {{d, "-, - | any(a)"}, {d, "-, -"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::logical_or,
       {{d, "-, b | any(a)"}, {d, "-, b | any(a)"}},
       {},
       {d},
       "[-, b] any(a), [-, b] any(a) -> [-, b] any(a)"},
      {ops::logical_or, {{d, "-, - | max(a)"}, {d, "-, -"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::logical_xor, {{d, "-, - | any(a)"}, {d, "-, -"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::logical_not, {{d, "-, - | any(a)"}}, {}, {d}, "[-, -] -> [-, -]"},
      {ops::bitwise_and, {{d, "-, - | all(a)"}, {d, "-, -"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::less_than, {{d, "a, -"}, {{4}, "b"}}, {}, {d}, "[a, b], [b] -> [a, b]"},
  });
}

TEST_CASE("swiglu: a sum pending on y alone stays, and without y the last dim is whole") {
  const Dims d{6, 4};
  check_cases({
      {ops::swiglu, {{d, "a, b"}, {d, "-, -"}}, {}, {d}, "[a, b], [a, b] -> [a, b]"},
      {ops::swiglu, {{d, "-, b"}, {d, "-, b | sum(a)"}}, {}, {d}, "[-, b], [-, b] sum(a) -> [-, b] sum(a)"},
      {ops::swiglu, {{d, "-, - | sum(a)"}, {d, "-, -"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::swiglu, {{d, "-, - | sum(b)"}, {d, "-, - | sum(a)"}}, {}, {d}, "[-, -], [-, -] -> [-, -]"},
      {ops::swiglu, {{d, "a, b"}, {{}, nullptr}}, {}, {{6, 2}}, "[a, -], [] -> [a, -]"},
  });
}

TEST_CASE("all and any leave a pending all and any, norms a sum of squares or nothing, numel touches nothing") {
  const Dims d{6, 4};
  check_cases({
      {ops::all, {{d, "a, b"}}, {IntArray{1}, kNo}, {{6}}, "[a, b] -> [a] all(b)"},
      {ops::any, {{d, "a, b"}}, {IntArray{}, kYes}, {{1, 1}}, "[a, b] -> [-, -] any(a) any(b)"},
      {ops::all, {{d, "-, - | all(a)"}}, {IntArray{1}, kNo}, {{6}}, "[-, -] all(a) -> [-] all(a)"},
      {ops::all, {{d, "-, - | any(a)"}}, {IntArray{1}, kNo}, {{6}}, "[-, -] -> [-]"},
      {ops::amax, {{d, "a, b"}}, {IntArray{0}, kNo}, {{4}}, "[a, b] -> [b] max(a)"},
      {ops::squared_l2_norm, {{d, "a, b"}}, {}, {{1}}, "[a, b] -> [-] sum(a) sum(b)"},
      {ops::squared_l2_norm, {{d, "-, - | sum(a)"}}, {}, {{1}}, "[-, -] -> [-]"},
      {ops::numel, {{d, "a, - | max(b)"}}, {}, {{}}, "[a, -] max(b) -> []"},
      {ops::log_softmax, {{d, "a, b"}}, {int64_t{-1}}, {d}, "[a, b] -> [a, b]"},
      {ops::label_smooth, {{d, "a, b"}, {{1, 4}, "-, -"}}, {0.1}, {d}, "[a, b], [-, b] -> [a, b]"},
      {ops::add_n, {{d, "-, - | sum(a)"}, {d, "-, -"}}, {}, {d}, "[-, -] sum(a), [-, -] sum(a) -> [-, -] sum(a)", {2}},
  });
  Case norm{ops::frobenius_norm, {{d, "a, b"}}, {IntArray{1}, kNo, kNo}, {{6}}, ""};
  CHECK(run(norm).text == "[a, b] -> [a]");
  CHECK(run(norm).reduce_axes == AxisList{1});
  norm.attrs = {IntArray{1}, kYes, kYes};
  norm.outputs = {{1, 1}};
  CHECK(run(norm).text == "[a, b] -> [-, -]");
  CHECK(run(norm).reduce_axes == AxisList{0, 1});
}

TEST_CASE("movement: dims that are repeated or cut stay whole, triangles and scattered rows need not") {
  const Dims d{6, 4};
  check_cases({
      {ops::tile, {{d, "a, b"}}, {IntArray{2, 1}}, {{12, 4}}, "[-, b] -> [-, b]"},
      {ops::tile, {{d, "a, b"}}, {IntArray{3, 1, 1}}, {{3, 6, 4}}, "[a, b] -> [-, a, b]"},
      {ops::tile, {{d, "a, - | max(b)"}}, {IntArray{2}}, {{6, 8}}, "[a, -] max(b) -> [a, -] max(b)"},
      {ops::unbind, {{d, "a, b"}}, {int64_t{1}}, {{6}, {6}, {6}, {6}}, "[a, -] -> [a], [a], [a], [a]"},
      {ops::split_with_num, {{d, "a, b"}}, {int64_t{2}, Scalar(0)}, {{3, 4}, {3, 4}}, "[-, b] -> [-, b], [-, b]"},
      {ops::one_hot, {{d, "a, b", DType::int64}}, {Scalar(9)}, {{6, 4, 9}}, "[a, b] -> [a, b, -]"},
      {ops::one_hot, {{d, "a, - | sum(b)", DType::int64}}, {Scalar(9)}, {{6, 4, 9}}, "[a, -] -> [a, -, -]"},
      {ops::expand_as, {{{1, 4}, "-, -"}, {d, "a, b"}}, {IntArray{}}, {d}, "[-, b], [a, b] -> [a, b]"},
      {ops::expand_as, {{{4}, "b"}, {{}, nullptr}}, {IntArray{6, 4}}, {d}, "[b], [] -> [-, b]"},
      {ops::strided_slice,
       {{d, "a, b"}},
       {IntArray{1}, IntArray{0}, IntArray{4}, IntArray{2}},
       {{6, 2}},
       "[a, -] -> [a, -]"},
      {ops::strided_slice, {{d, "a, b"}}, {IntArray{}, IntArray{}, IntArray{}, IntArray{}}, {d}, "[a, b] -> [a, b]"},
      {ops::tril, {{d, "a, b"}}, {int64_t{0}}, {d}, "[a, b] -> [a, b]"},
      {ops::triu, {{d, "a, - | min(b)"}}, {int64_t{0}}, {d}, "[a, -] min(b) -> [a, -] min(b)"},
      {ops::scatter,
       {{d, "a, b"}, {{3}, "a", DType::int64}, {{3, 4}, "a, -"}},
       {kYes},
       {d},
       "[a, b], [-], [-, b] -> [a, b]"},
      {ops::scatter,
       {{d, "-, - | sum(a)"}, {{3}, "-", DType::int64}, {{3, 4}, "-, b"}},
       {kYes},
       {d},
       "[-, b], [-], [-, b] -> [-, b]"},
  });
}

TEST_CASE("flash_attn: batches, heads and queries are on their own, parts of keys are combined") {
  const Dims q{6, 8, 12, 16}, k{6, 9, 12, 16}, out = q, lse{6, 12, 8}, none{0}, seed{2};
  const std::vector<AttrValue> attrs = {0.0, kNo, kNo, kNo, std::string()};
  const auto with = [&](const Dims& kv, const char* on_q, const char* on_k, const char* on_v) {
    return run({ops::flash_attn,
                {{q, on_q}, {kv, on_k}, {kv, on_v}, {{}, nullptr}, {{}, nullptr}},
                attrs,
                {out, none, lse, seed},
                ""})
        .text;
  };
  CHECK(with(k, "a, -, b, -", "a, -, -, -", "-, -, -, -") ==
        "[a, -, b, -], [a, -, b, -], [a, -, b, -], [], [] -> [a, -, b, -], [-], [a, b, -], [-]");
  CHECK(with(k, "-, a, -, b", "-, a, -, -", "-, -, -, -") ==
        "[-, a, -, -], [-, -, -, -], [-, -, -, -], [], [] -> [-, a, -, -], [-], [-, -, a], [-]");
  CHECK(with(k, "a, -, -, -", "a, b, -, -", "a, b, -, -") ==
        "[a, -, -, -], [a, b, -, -], [a, b, -, -], [], [] -> [a, -, -, -], [-], [a, -, -], [-]");
  // Three ranks: six heads of k and v are sharded with the twelve of q, four are not.
  CHECK(with({6, 9, 6, 16}, "-, -, b, -", "-, -, -, -", "-, -, -, -") ==
        "[-, -, b, -], [-, -, b, -], [-, -, b, -], [], [] -> [-, -, b, -], [-], [-, b, -], [-]");
  CHECK(with({6, 9, 4, 16}, "-, -, b, -", "-, -, b, -", "-, -, -, -") ==
        "[-, -, b, -], [-, -, -, -], [-, -, -, -], [], [] -> [-, -, b, -], [-], [-, b, -], [-]");
  CHECK(with({6, 9, 4, 16}, "-, -, a, -", "-, -, -, -", "-, -, -, -") ==
        "[-, -, a, -], [-, -, a, -], [-, -, a, -], [], [] -> [-, -, a, -], [-], [-, a, -], [-]");
  check_cases(
      {{ops::flash_attn,
        {{q, "a, -, -, -"}, {k, "-, -, -, -"}, {k, "-, -, -, -"}, {{}, nullptr}, {{1, 12, 8, 9}, "-, b, -, -"}},
        {0.0, kNo, kYes, kNo, std::string()},
        {out, {6, 12, 8, 9}, lse, seed},
        "[a, -, b, -], [a, -, b, -], [a, -, b, -], [], [-, b, -, -] -> [a, -, b, -], [a, b, -, -], [a, b, -], [-]"}});
}

TEST_CASE("rotary positions: the sequence may be cut, with its table, and sums of what is turned stay pending") {
  const Dims q{6, 8, 4, 16}, k{6, 8, 2, 16};
  const std::vector<AttrValue> attrs = {kYes, kNo, 10000.0};
  const In absent{{}, nullptr};
  check_cases({
      {ops::fused_rotary_position_embedding,
       {{q, "a, b, -, -"}, {k, "-, -, -, -"}, absent, {{8, 16}, "-, -"}, {{8, 16}, "-, -"}, absent},
       attrs,
       {q, k, {}},
       "[a, b, -, -], [a, b, -, -], [], [b, -], [b, -], [] -> [a, b, -, -], [a, b, -, -], []"},
      {ops::fused_rotary_position_embedding,
       {{q, "a, b, -, -"},
        absent,
        absent,
        {{1, 9, 1, 16}, "-, b, -, -"},
        {{1, 9, 1, 16}, "-, -, -, -"},
        {{6, 8}, "-, -", DType::int64}},
       attrs,
       {q, {}, {}},
       "[a, b, -, -], [], [], [-, -, -, -], [-, -, -, -], [a, b] -> [a, b, -, -], [], []"},
      {ops::fused_rotary_position_embedding,
       {{q, "-, -, b, - | sum(a)"}, {k, "-, -, b, -"}, absent, absent, absent, absent},
       attrs,
       {q, k, {}},
       "[-, -, b, -] sum(a), [-, -, b, -] sum(a), [], [], [], [] -> [-, -, b, -] sum(a), [-, -, b, -] sum(a), [] "
       "sum(a)"},
      {ops::fused_rotary_position_embedding,
       {{q, "-, -, -, - | sum(a)"}, absent, absent, {{8, 16}, "-, -"}, {{8, 16}, "-, -"}, absent},
       attrs,
       {q, {}, {}},
       "[-, -, -, -], [], [], [-, -], [-, -], [] -> [-, -, -, -], [], []"},
  });
}

TEST_CASE("rms_norm shards the scale with x, the gradient of a linear layer is pending where the batch is sharded") {
  const Dims x{6, 5, 4}, dout{6, 5, 3}, dweight{4, 3}, dbias{3};
  const std::vector<AttrValue> bias = {kYes, kYes}, no_bias = {kYes, kNo};
  check_cases({
      {ops::rms_norm,
       {{{6, 8, 4}, "a, -, b"}, {{4}, "b"}},
       {1e-6},
       {{6, 8, 4}, {6, 8}},
       "[a, -, b], [b] -> [a, -, b], [a, -]"},
      {ops::fused_linear_param_grad_add,
       {{x, "a, -, -"}, {dout, "a, -, b"}, {{}, nullptr}, {{}, nullptr}},
       bias,
       {dweight, dbias},
       "[a, -, -], [a, -, b], [], [] -> [-, b] sum(a), [b] sum(a)"},
      {ops::fused_linear_param_grad_add,
       {{x, "a, -, -"}, {dout, "a, -, -"}, {dweight, "-, -"}, {dbias, "- | sum(a)"}},
       bias,
       {dweight, dbias},
       "[a, -, -], [a, -, -], [-, -] sum(a), [-] sum(a) -> [-, -] sum(a), [-] sum(a)"},
      {ops::fused_linear_param_grad_add,
       {{x, "-, -, b"}, {dout, "-, -, -"}, {dweight, "-, -"}, {{}, nullptr}},
       bias,
       {dweight, dbias},
       "[-, -, b], [-, -, -], [b, -], [] -> [b, -], [-]"},
      {ops::fused_linear_param_grad_add,
       {{x, "a, -, -"}, {dout, "-, -, -"}, {{}, nullptr}, {{}, nullptr}},
       no_bias,
       {dweight, {0}},
       "[a, -, -], [a, -, -], [], [] -> [-, -] sum(a), [-]"},
  });
}

TEST_CASE("gradients of layers: what is summed over sharded rows is pending, unless the kernel combines it") {
  const Dims x{6, 8, 12}, rows{6}, weight{8, 12}, none{}, channel{8};
  const In absent{{}, nullptr};
  check_cases({
      {ops::layer_norm_grad,
       {{x, "a, b, -"}, {weight, "-, -"}, absent, {rows, "-"}, {rows, "-"}, {x, "a, -, -"}},
       {1e-5, int64_t{1}},
       {x, weight, none},
       "[a, b, -], [-, -], [], [a], [a], [a, b, -] -> [a, b, -], [-, -] sum(a), [] sum(a)"},
      {ops::embedding_grad,
       {{{6, 8}, "a, -", DType::int64}, {{16, 12}, "-, b"}, {{6, 8, 12}, "a, -, b"}},
       {int64_t{-1}},
       {{16, 12}},
       "[a, -], [-, b], [a, -, b] -> [-, b] sum(a)"},
      {ops::batch_norm_grad,
       {{x, "a, b, -"}, {channel, "b"}, {channel, "b"}, {channel, "b"}, {channel, "b"}, {x, "a, b, -"}},
       {std::string("NCHW"), kYes, kNo, kNo},
       {x, channel, channel},
       "[a, b, -], [b], [b], [b], [b], [a, b, -] -> [a, b, -], [b] sum(a), [b] sum(a)"},
      {ops::batch_norm_grad,
       {{x, "a, b, -"}, {channel, "b"}, {channel, "b"}, {channel, "b"}, {channel, "b"}, {x, "a, b, -"}},
       {std::string("NCHW"), kNo, kNo, kNo},
       {x, channel, channel},
       "[a, b, -], [b], [b], [b], [b], [a, b, -] -> [a, b, -], [b], [b]"},
  });
}

TEST_CASE(
    "cross_entropy_with_softmax_grad: classes may be sharded, and those of a soft label are summed up where softmax is "
    "used") {
  const Dims x{6, 8, 12}, loss{6, 8, 1};
  const auto attrs = [](const AttrValue& soft, const AttrValue& use_softmax) {
    return std::vector<AttrValue>{soft, use_softmax, kYes, int64_t{-100}, int64_t{-1}};
  };
  check_cases({
      {ops::cross_entropy_with_softmax_grad,
       {{{6, 8}, "a, -", DType::int64}, {x, "a, -, b"}, {loss, "a, -, -"}},
       attrs(kNo, kYes),
       {x},
       "[a, -], [a, -, b], [a, -, -] -> [a, -, b]"},
      {ops::cross_entropy_with_softmax_grad,
       {{x, "-, -, b"}, {x, "-, -, b"}, {loss, "-, -, -"}},
       attrs(kYes, kYes),
       {x},
       "[-, -, b], [-, -, b], [-, -, -] -> [-, -, b]"},
      {ops::cross_entropy_with_softmax_grad,
       {{x, "-, -, b"}, {x, "-, -, b"}, {loss, "-, -, -"}},
       attrs(kYes, kNo),
       {x},
       "[-, -, b], [-, -, b], [-, -, -] -> [-, -, b]"},
  });
}

TEST_CASE("attention with lengths: heads may be sharded, and without packed sequences batches and queries too") {
  const Dims q{8, 12, 16}, k{9, 12, 16}, cu{4}, lse{3, 12, 8}, none{0}, seed{2};
  const In absent{{}, nullptr}, offsets{cu, "-", DType::int32};
  const auto unpadded = [&](const Dims& kv, const char* on_q) {
    return run({ops::flash_attn_unpadded,
                {{q, on_q}, {kv, "-, -, -"}, {kv, "-, -, -"}, offsets, offsets, absent, absent},
                {kNo, kNo, 1.0, 0.0, kNo, kNo, kNo, std::string()},
                {q, none, lse, seed},
                ""})
        .text;
  };
  CHECK(unpadded(k, "a, b, -") ==
        "[-, b, -], [-, b, -], [-, b, -], [-], [-], [], [] -> [-, b, -], [-], [-, b, -], [-]");
  CHECK(unpadded({9, 4, 16}, "-, b, -") ==
        "[-, b, -], [-, -, -], [-, -, -], [-], [-], [], [] -> [-, b, -], [-], [-, b, -], [-]");
  const auto efficient = [&](const Dims& batch, const In& bias, const In& each, const char* on_q,
                             const char* on_k = "-, -, -, -") {
    return run({ops::memory_efficient_attention,
                {{batch, on_q}, {batch, on_k}, {batch, on_k}, bias, each, each, absent, absent},
                {kNo, kNo, kNo, 0.0, 1.0, kNo},
                {batch, lse, seed},
                ""})
        .text;
  };
  CHECK(efficient({6, 8, 12, 16}, {{8, 8}, "-, -"}, absent, "a, b, -, -") ==
        "[a, b, -, -], [a, -, -, -], [a, -, -, -], [b, -], [], [], [], [] -> [a, b, -, -], [a, -, b], [-]");
  CHECK(efficient({6, 8, 12, 16}, {{8, 8}, "-, -"}, absent, "a, -, -, -", "a, b, -, -") ==
        "[a, -, -, -], [a, b, -, -], [a, b, -, -], [-, b], [], [], [], [] -> [a, -, -, -], [a, -, -], [-]");
  CHECK(efficient({1, 8, 12, 16}, absent, offsets, "-, -, -, -", "-, a, b, -") ==
        "[-, -, b, -], [-, -, b, -], [-, -, b, -], [], [-], [-], [], [] -> [-, -, b, -], [-, b, -], [-]");
  CHECK(efficient({1, 8, 12, 16}, absent, offsets, "-, a, b, -") ==
        "[-, -, b, -], [-, -, b, -], [-, -, b, -], [], [-], [-], [], [] -> [-, -, b, -], [-, b, -], [-]");
}

TEST_CASE("memory_efficient_attention_grad: what bias is broadcast along leaves its gradient a pending sum") {
  const Dims q{6, 8, 12, 16}, lse{6, 12, 8};
  const In absent{{}, nullptr}, like_q{q, "a, -, b, -"};
  CHECK(
      run({ops::memory_efficient_attention_grad,
           {like_q,
            like_q,
            like_q,
            {{1, 12, 1, 8}, "-, -, -, -"},
            absent,
            absent,
            absent,
            absent,
            like_q,
            {lse, "a, b, -"},
            {{2}, "-", DType::int64},
            like_q},
           {kNo, kNo, kNo, 0.0, 1.0, kNo},
           {q, q, q, {1, 12, 1, 8}},
           ""})
          .text ==
      "[a, -, b, -], [a, -, b, -], [a, -, b, -], [-, b, -, -], [], [], [], [], [a, -, b, -], [a, b, -], [-], [a, -, b, "
      "-] -> [a, -, b, -], [a, -, b, -], [a, -, b, -], [-, b, -, -] sum(a)");
}

TEST_CASE("flash_attn_grad: queries or keys that are cut, and heads where k and v are whole, leave sums pending") {
  const Dims q{6, 8, 12, 16}, lse{6, 12, 8};
  const auto with = [&](const Dims& kv, const char* on_q, const char* on_lse) {
    const In like_q{q, on_q}, like_k{kv, "-, -, -, -"};
    return run({ops::flash_attn_grad,
                {like_q, like_k, like_k, like_q, {lse, on_lse}, {{2}, "-", DType::int64}, {{}, nullptr}, like_q},
                {0.0, kNo, kNo},
                {q, kv, kv},
                ""})
        .text;
  };
  CHECK(with({6, 9, 12, 16}, "-, a, b, -", "-, b, a") ==
        "[-, a, b, -], [-, -, b, -], [-, -, b, -], [-, a, b, -], [-, b, a], [-], [], [-, a, b, -] -> [-, a, b, -], [-, "
        "-, b, -] sum(a), [-, -, b, -] sum(a)");
  // Three ranks do not divide four heads of k and v.
  CHECK(with({6, 9, 4, 16}, "-, -, b, -", "-, b, -") ==
        "[-, -, b, -], [-, -, -, -], [-, -, -, -], [-, -, b, -], [-, b, -], [-], [], [-, -, b, -] -> [-, -, b, -], [-, "
        "-, -, -] sum(b), [-, -, -, -] sum(b)");
}

TEST_CASE("convolutions and pools keep sharded space dims, unless one element is left, and fetch over their axes") {
  const Dims x{2, 4, 12, 10}, filter{6, 4, 3, 3}, out{2, 6, 12, 5}, pooled{2, 4, 6, 5};
  const std::vector<AttrValue> conv = {IntArray{1, 2}, IntArray{1, 1}, std::string("EXPLICIT"),
                                       IntArray{1, 1}, int64_t{1},     std::string("NCHW")};
  const auto pool = [](const IntArray& size, bool global) {
    return std::vector<AttrValue>{size, IntArray{2, 2},         IntArray{0, 0},     kNo,
                                  kYes, std::string("NCHW"),    std::string("avg"), global,
                                  kNo,  std::string("EXPLICIT")};
  };
  const char* const whole = "-, -, -, -";
  check_cases({
      {ops::conv2d, {{x, "-, -, a, b"}, {filter, whole}}, conv, {out}, "[-, -, a, b], [-, -, -, -] -> [-, -, a, b]"},
      {ops::conv2d, {{x, "a, -, -, b"}, {filter, whole}}, conv, {out}, "[a, -, -, b], [-, -, -, -] -> [a, -, -, b]"},
      {ops::conv2d,
       {{x, "-, b, a, -"}, {filter, whole}},
       conv,
       {out},
       "[-, b, a, -], [-, b, -, -] -> [-, -, a, -] sum(b)"},
      {ops::conv2d_grad,
       {{x, "-, -, b, a"}, {filter, whole}, {out, "-, -, b, a"}},
       conv,
       {x, filter},
       "[-, -, b, a], [-, -, -, -], [-, -, b, a] -> [-, -, b, a], [-, -, -, -] sum(a) sum(b)"},
      {ops::pool2d, {{x, "-, -, a, b"}}, pool({2, 2}, false), {pooled}, "[-, -, a, b] -> [-, -, a, b]"},
      {ops::pool2d, {{x, "-, a, -, b"}}, pool({2, 2}, true), {{2, 4, 1, 1}}, "[-, a, -, -] -> [-, a, -, -]"},
      {ops::pool2d_grad,
       {{x, "-, -, a, -"}, {pooled, "-, -, a, -"}},
       pool({2, 2}, false),
       {x},
       "[-, -, a, -], [-, -, a, -] -> [-, -, a, -]"},
  });
  const Dims back{4, 6, 3, 3}, larger{2, 6, 12, 19};
  const std::vector<AttrValue> transposed = {IntArray{1, 2}, IntArray{1, 1},          IntArray{},
                                             IntArray{},     std::string("EXPLICIT"), int64_t{1},
                                             IntArray{1, 1}, std::string("NCHW")};
  const std::vector<AttrValue> indexed = {IntArray{2, 2}, IntArray{2, 2}, IntArray{0, 0}, kNo, kNo};
  const std::vector<AttrValue> resized = {
      std::string("NCHW"),     int64_t{0}, int64_t{24}, int64_t{5}, std::vector<double>{},
      std::string("bilinear"), kYes,       int64_t{1}};
  const Dims resampled{2, 4, 24, 5};
  const In absent{{}, nullptr};
  check_cases({
      {ops::conv2d_transpose,
       {{x, "-, -, a, b"}, {back, whole}},
       transposed,
       {larger},
       "[-, -, a, b], [-, -, -, -] -> [-, -, a, b]"},
      {ops::conv2d_transpose_grad,
       {{x, "-, -, b, a"}, {back, whole}, {larger, "-, -, b, a"}},
       transposed,
       {x, back},
       "[-, -, b, a], [-, -, -, -], [-, -, b, a] -> [-, -, b, a], [-, -, -, -] sum(a) sum(b)"},
      {ops::max_pool2d_with_index,
       {{x, "-, -, a, b"}},
       indexed,
       {pooled, pooled},
       "[-, -, a, b] -> [-, -, a, b], [-, -, a, b]"},
      {ops::max_pool2d_with_index_grad,
       {{x, "-, -, a, b"}, {pooled, "-, -, a, b"}, {pooled, whole}},
       indexed,
       {x},
       "[-, -, a, b], [-, -, a, b], [-, -, a, b] -> [-, -, a, b]"},
      {ops::bilinear_interp,
       {{x, "-, -, a, b"}, absent, absent},
       resized,
       {resampled},
       "[-, -, a, b], [], [] -> [-, -, a, b]",
       {1, 1, 0, 1}},
      {ops::bilinear_interp_grad,
       {{x, "-, -, a, b"}, absent, absent, {resampled, "-, -, a, b"}},
       resized,
       {x},
       "[-, -, a, b], [], [], [-, -, a, b] -> [-, -, a, b]",
       {1, 1, 0, 1, 1}},
  });
  Case sharded{ops::conv2d, {{x, "-, -, a, b"}, {filter, whole}}, conv, {out}, ""};
  CHECK(run(sharded).reduce_axes == AxisList{0, 1});
  CHECK(run(sharded, {"-, -, -, b"}).text == "[-, -, -, b], [-, -, -, -] -> [-, -, -, b]");
}

}  // namespace op_rules_test
