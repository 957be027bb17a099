// infer_meta: results, texts of errors, and what local shards may do that users may not.
#include <catch2/catch.hpp>

#include "shard/meta/infer_meta.h"

namespace shard::meta::infer_meta_test {
namespace {

Meta f32(const Dims& dims) { return {dims, DType::float32}; }
const LocalCall kLocal{};

template <class F>
std::string error_of(ErrorCode code, const F& f) {
  try {
    f();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

TEST_CASE("elementwise metas broadcast and want equal dtypes") {
  Meta out;
  ElementwiseInferMeta({"add"}, f32({4, 1}), f32({2, 1, 3}), out);
  CHECK(to_string(out) == "f32[2, 4, 3]");
  ElementwiseInferMeta({"add"}, f32({0, 3}), f32({1, 3}), out);
  CHECK(to_string(out) == "f32[0, 3]");
  CompareInferMeta({"equal"}, f32({}), f32({}), out);
  CHECK(to_string(out) == "bool[]");
  CHECK(error_of(ErrorCode::dtype_mismatch, [&] {
          ElementwiseInferMeta({"add"}, f32({2}), {{2}, DType::int64}, out);
        }) == "[add] x is f32[2] and y is i64[2], but their dtypes must be equal; cast one of them");
  CHECK(error_of(ErrorCode::shape_mismatch,
                 [&] {
                   ElementwiseInferMeta({"add"}, f32({2, 3}), f32({4}), out);
                 }) ==
        "[add] x has the shape [2, 3] and y has [4], which do not broadcast: dims counted from the last must be equal "
        "or 1; reshape or expand one of them");
  WhereInferMeta({"where"}, {{3}, DType::boolean}, f32({2, 1}), f32({}), out);
  CHECK(to_string(out) == "f32[2, 3]");
}

TEST_CASE("attributes must fit the dtype of x") {
  Meta out;
  const Meta ints{{2}, DType::int32};
  ScaleInferMeta({"scale"}, ints, 2.0, 0.0, true, out);
  CHECK(error_of(ErrorCode::dtype_mismatch, [&] { ScaleInferMeta({"scale"}, ints, 0.5, 0.0, true, out); }) ==
        "[scale] scale is 0.5, but x is i32[2], which needs an integer; cast x to a float dtype first");
  CHECK_THROWS_AS(PowInferMeta({"pow"}, ints, 0.5, out), Error);
  CHECK_THROWS_WITH(ClipInferMeta({"clip"}, ints, 3, 2, out), Catch::Contains("min is 3 and max is 2"));
}

TEST_CASE("metas of truth values, gates, lists and norms") {
  Meta out;
  LogicalNotInferMeta({"logical_not"}, f32({2, 3}), out);
  CHECK(to_string(out) == "bool[2, 3]");
  TruthInferMeta({"all"}, f32({2, 3}), IntArray{-1}, true, out);
  CHECK(to_string(out) == "bool[2, 1]");
  SwiGLUInferMeta({"swiglu"}, f32({2, 6}), nullptr, out);
  CHECK(to_string(out) == "f32[2, 3]");
  const Meta y = f32({2, 3}), halves{{2, 6}, DType::bfloat16};
  SwiGLUInferMeta({"swiglu"}, f32({2, 3}), &y, out);
  CHECK(to_string(out) == "f32[2, 3]");
  CHECK(error_of(ErrorCode::shape_mismatch, [&] {
          SwiGLUInferMeta({"swiglu"}, f32({2, 3}), nullptr, out);
        }) == "[swiglu] x is f32[2, 3], but without y its last dim must be even, gates first and then values; pass y");
  CHECK(error_of(ErrorCode::shape_mismatch, [&] { SwiGLUInferMeta({"swiglu"}, f32({3}), &y, out); }) ==
        "[swiglu] x is f32[3] and y is f32[2, 3], but their shapes must be equal; expand one of them");
  error_of(ErrorCode::dtype_mismatch, [&] { SwiGLUInferMeta({"swiglu"}, f32({2, 6}), &halves, out); });
  const Meta list[] = {f32({2}), f32({2}), f32({3}), {{2}, DType::int64}};
  AddNInferMeta({"add_n"}, std::span(list).first(2), out);
  CHECK(to_string(out) == "f32[2]");
  CHECK(error_of(ErrorCode::shape_mismatch, [&] { AddNInferMeta({"add_n"}, std::span(list).first(3), out); }) ==
        "[add_n] inputs[0] is f32[2] and inputs[2] is f32[3], but all must be alike; expand one of them");
  CHECK(error_of(ErrorCode::dtype_mismatch, [&] {
          AddNInferMeta({"add_n"}, std::array{list[0], list[3]}, out);
        }) == "[add_n] inputs[0] is f32[2] and inputs[1] is i64[2], but all must be alike; cast one of them");
  error_of(ErrorCode::invalid_argument, [&] { AddNInferMeta({"add_n"}, {}, out); });
  FrobeniusNormInferMeta({"frobenius_norm"}, f32({2, 3}), IntArray{0}, false, false, out);
  CHECK(to_string(out) == "f32[3]");
  FrobeniusNormInferMeta({"frobenius_norm"}, f32({2, 3}), IntArray{0}, true, true, out);
  CHECK(to_string(out) == "f32[1, 1]");
  SquaredL2NormInferMeta({"squared_l2_norm"}, f32({2, 3}), out);
  CHECK(to_string(out) == "f32[1]");
  error_of(ErrorCode::dtype_mismatch, [&] { SquaredL2NormInferMeta({"squared_l2_norm"}, {{2}, DType::int32}, out); });
  NumelInferMeta({"numel"}, f32({2, 3}), out);
  CHECK(to_string(out) == "i64[]");
  const Meta prior = f32({1, 3}), wrong = f32({2, 3});
  LabelSmoothInferMeta({"label_smooth"}, f32({2, 3}), &prior, out);
  CHECK(to_string(out) == "f32[2, 3]");
  CHECK(error_of(ErrorCode::shape_mismatch,
                 [&] {
                   LabelSmoothInferMeta({"label_smooth"}, f32({2, 3}), &wrong, out);
                 }) ==
        "[label_smooth] prior_dist is f32[2, 3], but for label, which is f32[2, 3], it must be [3], with dims of 1 "
        "before it at most");
}

TEST_CASE("metas of repeated, cut and scattered tensors") {
  Meta out;
  TileInferMeta({"tile"}, f32({2, 3}), IntArray{4, 1, 2}, out);
  CHECK(to_string(out) == "f32[4, 2, 6]");
  TileInferMeta({"tile"}, f32({2, 3}), IntArray{2}, out);
  CHECK(to_string(out) == "f32[2, 6]");
  error_of(ErrorCode::invalid_argument, [&] { TileInferMeta({"tile"}, f32({2}), IntArray{-1}, out); });
  error_of(ErrorCode::out_of_range, [&] {
    TileInferMeta({"tile"}, f32({2}), IntArray{1, 1, 1, 1, 1, 1, 1, 1, 1}, out);
  });
  const Meta wide{{4, 3}, DType::int64};
  ExpandAsInferMeta({"expand_as"}, f32({3}), &wide, {}, out);
  CHECK(to_string(out) == "f32[4, 3]");
  ExpandAsInferMeta({"expand_as"}, f32({1, 3}), nullptr, IntArray{2, -1}, out);
  CHECK(to_string(out) == "f32[2, 3]");
  error_of(ErrorCode::shape_mismatch, [&] { ExpandAsInferMeta({"expand_as"}, f32({2}), &wide, {}, out); });
  TriangleInferMeta({"tril"}, f32({2, 3}), out);
  CHECK(error_of(ErrorCode::shape_mismatch, [&] { TriangleInferMeta({"tril"}, f32({3}), out); }) ==
        "[tril] x is f32[3], but must have at least two dims; a diagonal needs rows and columns");
  std::vector<Meta> parts;
  SplitWithNumInferMeta({"split_with_num"}, f32({6, 2}), 3, Scalar(0), parts);
  CHECK(parts.size() == 3);
  CHECK(to_string(parts[2]) == "f32[2, 2]");
  CHECK(error_of(ErrorCode::shape_mismatch,
                 [&] {
                   SplitWithNumInferMeta({"split_with_num"}, f32({6, 2}), 4, Scalar(0), parts);
                 }) ==
        "[split_with_num] x is f32[6, 2], whose dim 0 is 6, but num is 4, and must divide it; use split for unequal "
        "parts");
  UnbindInferMeta({"unbind"}, f32({6, 2}), -1, parts);
  CHECK(parts.size() == 2);
  CHECK(to_string(parts[0]) == "f32[6]");
  error_of(ErrorCode::shape_mismatch, [&] { UnbindInferMeta({"unbind"}, f32({}), 0, parts); });
  StridedSliceInferMeta({"strided_slice"}, f32({7, 5}), IntArray{0, 1}, IntArray{-1, 1}, IntArray{-1, 9},
                        IntArray{-2, 3}, out);
  CHECK(to_string(out) == "f32[4, 2]");
  StridedSliceInferMeta({"strided_slice"}, f32({7}), IntArray{0}, IntArray{0}, IntArray{7}, IntArray{INT64_MAX}, out);
  CHECK(to_string(out) == "f32[1]");
  StridedSliceInferMeta({"strided_slice"}, f32({0}), IntArray{0}, IntArray{INT64_MAX}, IntArray{INT64_MIN},
                        IntArray{INT64_MIN}, out);
  CHECK(to_string(out) == "f32[0]");
  error_of(ErrorCode::invalid_argument, [&] {
    StridedSliceInferMeta({"strided_slice"}, f32({7}), IntArray{0}, IntArray{0}, IntArray{7}, IntArray{0}, out);
  });
  error_of(ErrorCode::invalid_argument,
           [&] { StridedSliceInferMeta({"strided_slice"}, f32({7}), IntArray{0}, IntArray{0}, IntArray{7}, {}, out); });
  const Meta index{{3}, DType::int64}, column{{3, 1}, DType::int32}, square{{3, 3}, DType::int64};
  ScatterInferMeta({"scatter"}, f32({5, 2}), index, f32({3, 2}), true, out);
  CHECK(to_string(out) == "f32[5, 2]");
  ScatterInferMeta({"scatter"}, f32({5, 2}), column, f32({3, 2}), true, out);
  error_of(ErrorCode::shape_mismatch, [&] {
    ScatterInferMeta({"scatter"}, f32({5, 2}), square, f32({3, 2}), true, out);
  });
  error_of(ErrorCode::dtype_mismatch, [&] {
    ScatterInferMeta({"scatter"}, f32({5, 2}), f32({3}), f32({3, 2}), true, out);
  });
  CHECK(error_of(ErrorCode::shape_mismatch, [&] {
          ScatterInferMeta({"scatter"}, f32({5, 2}), index, f32({2, 2}), true, out);
        }) == "[scatter] x is f32[5, 2] and index is i64[3], so updates must be [3, 2], but is f32[2, 2]");
  Meta updates;
  ScatterGradInferMeta({"scatter_grad"}, column, f32({5, 2}), out, updates);
  CHECK(to_string(out) + to_string(updates) == "f32[5, 2]f32[3, 2]");
  CHECK(error_of(ErrorCode::shape_mismatch,
                 [&] {
                   ScatterGradInferMeta({"scatter_grad"}, square, f32({5, 2}), out, updates);
                 }) ==
        "[scatter_grad] out_grad is f32[5, 2] and index is i64[3, 3], but out_grad needs a dim and index must be [n] "
        "or [n, 1]; reshape index");
  IndexSumInferMeta({"index_sum"}, f32({5, 3}), index, 7, -1, out);
  CHECK(to_string(out) == "f32[5, 7]");
  CHECK(error_of(ErrorCode::shape_mismatch,
                 [&] {
                   IndexSumInferMeta({"index_sum"}, f32({5, 2}), index, 7, 0, out);
                 }) ==
        "[index_sum] x is f32[5, 2] and index is i64[3], but index must have one dim, with a number for each slice of "
        "x along axis 0");
  error_of(ErrorCode::out_of_range, [&] { IndexSumInferMeta({"index_sum"}, f32({3}), index, -1, 0, out); });
  UnsliceInferMeta({"unslice"}, f32({4, 2}), IntArray{7, 5}, IntArray{0, 1}, IntArray{-1, 1}, IntArray{-1, 9},
                   IntArray{-2, 3}, out);
  CHECK(to_string(out) == "f32[7, 5]");
  CHECK(error_of(ErrorCode::shape_mismatch, [&] {
          UnsliceInferMeta({"unslice"}, f32({2}), IntArray{7}, IntArray{0}, IntArray{1}, IntArray{4}, IntArray{1}, out);
        }) == "[unslice] the slice of f32[7] along axes [0] from [1] to [4] by [1] is f32[3], but x is f32[2]");
  error_of(ErrorCode::shape_mismatch, [&] {
    UnsliceInferMeta({"unslice"}, f32({2}), IntArray{7, 1}, IntArray{}, IntArray{}, IntArray{}, IntArray{}, out);
  });
  OneHotInferMeta({"one_hot"}, index, Scalar(4), out);
  CHECK(to_string(out) == "f32[3, 4]");
  error_of(ErrorCode::out_of_range, [&] { OneHotInferMeta({"one_hot"}, index, Scalar(-4), out); });
  EyeInferMeta({"eye"}, Scalar(3), Scalar(-1), DType::int64, out);
  CHECK(to_string(out) == "i64[3, 3]");
  error_of(ErrorCode::out_of_range, [&] { EyeInferMeta({"eye"}, Scalar(-3), Scalar(2), DType::int64, out); });
}

TEST_CASE("metas of attention, rotary positions, rms_norm and the gradient of a linear layer") {
  Meta out, softmax, lse, seed, k_out, v_out;
  const Meta q = f32({2, 5, 4, 8}), k = f32({2, 7, 2, 8}), v = f32({2, 7, 2, 6}), mask = f32({1, 4, 5, 7}),
             bad_mask = f32({2, 2, 5, 7});
  FlashAttnInferMeta({"flash_attn"}, q, k, v, nullptr, &mask, 0.0f, true, out, softmax, lse, seed);
  CHECK(to_string(out) + to_string(softmax) + to_string(lse) + to_string(seed) ==
        "f32[2, 5, 4, 6]f32[2, 4, 5, 7]f32[2, 4, 5]i64[2]");
  FlashAttnInferMeta({"flash_attn"}, q, k, v, nullptr, nullptr, 0.0f, false, out, softmax, lse, seed);
  CHECK(to_string(softmax) == "f32[0]");
  CHECK(
      error_of(ErrorCode::shape_mismatch, [&] {
        FlashAttnInferMeta({"flash_attn"}, q, k, v, nullptr, &bad_mask, 0.0f, false, out, softmax, lse, seed);
      }) == "[flash_attn] attn_mask is f32[2, 2, 5, 7], but must be [2, 4, 5, 7], with a 1 for any of the first three");
  CHECK(error_of(ErrorCode::shape_mismatch,
                 [&] {
                   FlashAttnInferMeta({"flash_attn"}, q, f32({2, 7, 3, 8}), f32({2, 7, 3, 8}), nullptr, nullptr, 0.0f,
                                      false, out, softmax, lse, seed);
                 }) ==
        "[flash_attn] q is f32[2, 5, 4, 8], k f32[2, 7, 3, 8] and v f32[2, 7, 3, 8]; all need one batch, q and k one "
        "width, k and v one sequence and as many heads, which "
        "divide those of q");
  error_of(ErrorCode::invalid_argument, [&] {
    FlashAttnInferMeta({"flash_attn"}, q, k, v, nullptr, nullptr, 1.0f, false, out, softmax, lse, seed);
  });
  error_of(ErrorCode::shape_mismatch,
           [&] { FlashAttnInferMeta({"flash_attn"}, q, k, v, &mask, nullptr, 0.0f, false, out, softmax, lse, seed); });

  const Meta table = f32({5, 8}), wide = f32({1, 9, 1, 8}), ids{{2, 5}, DType::int64};
  FusedRopeInferMeta({"rope"}, q, nullptr, nullptr, &table, &table, nullptr, false, out, k_out, v_out);
  CHECK(to_string(out) == "f32[2, 5, 4, 8]");
  FusedRopeInferMeta({"rope"}, q, nullptr, nullptr, &wide, &wide, &ids, false, out, k_out, v_out);
  const Meta fewer_heads = f32({2, 5, 1, 8});
  FusedRopeInferMeta({"rope"}, q, &fewer_heads, nullptr, nullptr, nullptr, nullptr, false, out, k_out, v_out);
  CHECK(to_string(k_out) == "f32[2, 5, 1, 8]");
  error_of(ErrorCode::shape_mismatch,
           [&] { FusedRopeInferMeta({"rope"}, q, nullptr, nullptr, &wide, &wide, nullptr, false, out, k_out, v_out); });
  error_of(ErrorCode::shape_mismatch,
           [&] { FusedRopeInferMeta({"rope"}, q, nullptr, nullptr, nullptr, nullptr, &ids, true, out, k_out, v_out); });
  error_of(ErrorCode::undefined, [&] {
    FusedRopeInferMeta({"rope"}, q, nullptr, nullptr, &table, nullptr, nullptr, false, out, k_out, v_out);
  });
  CHECK(error_of(ErrorCode::shape_mismatch, [&] {
          FusedRopeInferMeta({"rope"}, q, &k, nullptr, nullptr, nullptr, nullptr, false, out, k_out, v_out);
        }) == "[rope] q is f32[2, 5, 4, 8] and k is f32[2, 7, 2, 8], which may differ only in their heads, dim 2");
  error_of(ErrorCode::shape_mismatch, [&] {
    FusedRopeInferMeta({"rope"}, f32({2, 5, 4, 7}), nullptr, nullptr, nullptr, nullptr, nullptr, false, out, k_out,
                       v_out);
  });

  Meta invvar;
  RmsNormInferMeta({"rms_norm"}, {{2, 3}, DType::bfloat16}, f32({3}), out, invvar);
  CHECK(to_string(out) + to_string(invvar) == "bf16[2, 3]f32[2]");
  error_of(ErrorCode::shape_mismatch, [&] { RmsNormInferMeta({"rms_norm"}, f32({2, 3}), f32({2}), out, invvar); });

  Meta dweight, dbias;
  const Meta halves{{2, 5, 3}, DType::float16}, slopes{{2, 5, 4}, DType::float16}, old = f32({3, 4});
  FusedLinearParamGradAddInferMeta({"grad_add"}, halves, slopes, &old, nullptr, true, true, dweight, dbias);
  CHECK(to_string(dweight) + to_string(dbias) == "f32[3, 4]f32[4]");
  FusedLinearParamGradAddInferMeta({"grad_add"}, halves, slopes, nullptr, nullptr, false, false, dweight, dbias);
  CHECK(to_string(dweight) + to_string(dbias) == "f16[3, 4]f16[0]");
  error_of(ErrorCode::dtype_mismatch, [&] {
    FusedLinearParamGradAddInferMeta({"grad_add"}, halves, slopes, &old, nullptr, false, true, dweight, dbias);
  });
  error_of(ErrorCode::shape_mismatch, [&] {
    FusedLinearParamGradAddInferMeta({"grad_add"}, f32({4, 3}), f32({5, 3}), nullptr, nullptr, true, true, dweight,
                                     dbias);
  });
}

TEST_CASE("reshape infers -1 and keeps 0 for users, but takes a local shape as it is") {
  Meta out;
  ReshapeInferMeta({"reshape"}, f32({4, 6}), IntArray{0, -1, 2}, out);
  CHECK(to_string(out) == "f32[4, 3, 2]");
  CHECK(error_of(ErrorCode::shape_mismatch, [&] {
          ReshapeInferMeta({"reshape"}, f32({4, 6}), IntArray{5, 5}, out);
        }) == "[reshape] x is f32[4, 6] with 24 elements, but shape [5, 5] has 25; both must have equally many");
  CHECK_THROWS_WITH(ReshapeInferMeta({"reshape"}, f32({4, 6}), IntArray{-1, 5}, out),
                    Catch::Contains("cannot divide by 5"));
  CHECK_THROWS_WITH(ReshapeInferMeta({"reshape"}, f32({4}), IntArray{-1, -1}, out),
                    Catch::Contains("more than one -1"));
  CHECK_THROWS_WITH(ReshapeInferMeta({"reshape"}, f32({4}), IntArray{-2, -2}, out), Catch::Contains("negative dim -2"));
  CHECK_THROWS_AS(ReshapeInferMeta({"reshape"}, f32({4}), IntArray{int64_t{1} << 40, int64_t{1} << 40}, out), Error);
  ReshapeInferMeta({"reshape", &kLocal}, f32({0, 6}), IntArray{0, 3, 2}, out);
  CHECK(to_string(out) == "f32[0, 3, 2]");
  ReshapeInferMeta({"reshape", &kLocal}, f32({5, 0}), IntArray{0}, out);
  CHECK(to_string(out) == "f32[0]");
}

TEST_CASE("reshape of a tensor without elements reaches every shape without elements") {
  const auto shape = [](const Dims& x, const IntArray& asked) {
    Meta out;
    ReshapeInferMeta({"reshape"}, {x, DType::float32}, asked, out);
    return out.dims;
  };
  CHECK(shape({0}, {3, 0}) == Dims{3, 0});
  CHECK(shape({2, 0}, {0, 5, 0}) == Dims{0, 5, 0});
  CHECK(shape({2, 0}, {0, 2}) == Dims{0, 2});
  CHECK(shape({2, 0}, {0, 0}) == Dims{0, 0});
  CHECK(shape({3, 0}, {0}) == Dims{0});
  CHECK(shape({2, 0}, {-1}) == Dims{0});
  CHECK(shape({2, 0}, {5, -1}) == Dims{5, 0});
  CHECK(shape({2, 0}, {-1, 0}) == Dims{2, 0});
  CHECK(shape({0, 3}, {0, -1}) == Dims{0, 3});
  CHECK(shape({0, 6}, {2, 0, -1}) == Dims{2, 0, 3});
  Meta out;
  error_of(ErrorCode::shape_mismatch, [&] { ReshapeInferMeta({"reshape"}, f32({2, 0}), IntArray{2, 3}, out); });
  error_of(ErrorCode::invalid_argument, [&] { ReshapeInferMeta({"reshape"}, f32({2, 0}), IntArray{-1, -1}, out); });
  error_of(ErrorCode::out_of_range, [&] { ReshapeInferMeta({"reshape"}, f32({2, 0}), IntArray{0, -2}, out); });
}

TEST_CASE("squeeze decides by the global shape") {
  Meta out;
  SqueezeInferMeta({"squeeze"}, f32({1, 3, 1}), IntArray{}, out);
  CHECK(to_string(out) == "f32[3]");
  SqueezeInferMeta({"squeeze"}, f32({1, 3, 1}), IntArray{-1, 1}, out);
  CHECK(to_string(out) == "f32[1, 3]");
  const Box inputs[] = {{{2, 1}, {0, 0}}};
  const LocalCall local{inputs, {}, nullptr, {}};
  SqueezeInferMeta({"squeeze", &local}, f32({1, 1}), IntArray{}, out);
  CHECK(to_string(out) == "f32[1]");
}

TEST_CASE("metas of shape ops") {
  Meta out;
  FlattenInferMeta({"flatten"}, f32({2, 3, 4}), 1, -1, out);
  CHECK(to_string(out) == "f32[2, 12]");
  FlattenInferMeta({"flatten"}, f32({}), 0, 0, out);
  CHECK(to_string(out) == "f32[1]");
  UnsqueezeInferMeta({"unsqueeze"}, f32({2, 3}), IntArray{0, -1}, out);
  CHECK(to_string(out) == "f32[1, 2, 3, 1]");
  TransposeInferMeta({"transpose"}, f32({2, 3, 4}), IntArray{2, 0, -2}, out);
  CHECK(to_string(out) == "f32[4, 2, 3]");
  CHECK(error_of(ErrorCode::invalid_argument, [&] {
          TransposeInferMeta({"transpose"}, f32({2, 3}), IntArray{0, 0}, out);
        }) == "[transpose] perm is [0, 0], but must name each of the 2 dims of x, which is f32[2, 3], once");
  ExpandInferMeta({"expand"}, f32({1, 3}), IntArray{5, 2, -1}, out);
  CHECK(to_string(out) == "f32[5, 2, 3]");
  CHECK_THROWS_WITH(ExpandInferMeta({"expand"}, f32({2}), IntArray{4}, out), Catch::Contains("only a 1 grows"));
  SliceInferMeta({"slice"}, f32({5, 6}), IntArray{0, 1}, IntArray{-1, 2}, IntArray{100, 4}, IntArray{0}, out);
  CHECK(to_string(out) == "f32[2]");
}

TEST_CASE("metas of joins and cuts") {
  Meta out;
  const Meta joined[] = {f32({2, 3}), f32({4, 3})};
  ConcatInferMeta({"concat"}, joined, 0, out);
  CHECK(to_string(out) == "f32[6, 3]");
  CHECK(error_of(ErrorCode::shape_mismatch, [&] { ConcatInferMeta({"concat"}, joined, 1, out); }) ==
        "[concat] x[0] is f32[2, 3] and x[1] is f32[4, 3], but all dims other than axis 1 must be equal");
  CHECK_THROWS_WITH(ConcatInferMeta({"concat"}, {}, 0, out), Catch::Contains("empty list"));
  CHECK_THROWS_WITH(StackInferMeta({"stack"}, joined, 0, out), Catch::Contains("shapes must be equal"));
  std::vector<Meta> parts;
  SplitInferMeta({"split"}, f32({7, 2}), IntArray{2, -1, 1}, 0, parts);
  CHECK(to_string(parts[1]) == "f32[4, 2]");
  CHECK_THROWS_WITH(SplitInferMeta({"split"}, f32({7}), IntArray{2, 2}, 0, parts),
                    Catch::Contains("sections [2, 2] add up to 4"));
  GatherInferMeta({"gather"}, f32({5, 6}), {{3}, DType::int64}, 1, out);
  CHECK(to_string(out) == "f32[5, 3]");
}

TEST_CASE("metas of reductions") {
  Meta out;
  SumInferMeta({"sum"}, {{2, 3}, DType::boolean}, IntArray{1}, true, out);
  CHECK(to_string(out) == "i64[2, 1]");
  MeanInferMeta({"mean"}, f32({2, 3}), IntArray{}, false, out);
  CHECK(to_string(out) == "f32[]");
  CHECK_THROWS_WITH(MeanInferMeta({"mean"}, {{2}, DType::int32}, IntArray{}, false, out),
                    Catch::Contains("[mean] x is i32[2], but must be of a float dtype; cast it first"));
  CHECK_THROWS_WITH(SumInferMeta({"sum"}, f32({2, 3}), IntArray{1, -1}, false, out), Catch::Contains("twice"));
  CHECK_THROWS_WITH(SumInferMeta({"sum"}, f32({2, 3}), IntArray{2}, false, out), Catch::Contains("[sum] axis is 2"));
  CHECK_THROWS_WITH(MaxInferMeta({"max"}, f32({0, 3}), IntArray{0}, false, out),
                    Catch::Contains("the max of no elements is undefined"));
  MaxInferMeta({"max", &kLocal}, f32({0, 3}), IntArray{0}, false, out);
  CHECK(to_string(out) == "f32[3]");
  MaxInferMeta({"max"}, f32({0, 3}), IntArray{1}, false, out);
  CHECK(to_string(out) == "f32[0]");
  ArgMaxInferMeta({"argmax"}, f32({2, 3}), 0, true, false, DType::int64, out);
  CHECK(to_string(out) == "i64[1, 3]");
}

TEST_CASE("metas of creation refuse negative dims and sizes beyond int64") {
  Meta out;
  CHECK_THROWS_WITH(CreateInferMeta({"full"}, IntArray{2, -1}, DType::float32, out),
                    Catch::Contains("negative dim -1; dims must be 0 or more"));
  CHECK_THROWS_WITH(CreateInferMeta({"full"}, IntArray{int64_t{1} << 31, int64_t{1} << 31}, DType::float32, out),
                    Catch::Contains("more bytes"));
  ArangeInferMeta({"arange"}, 0, 10, 3, DType::int64, out);
  CHECK(to_string(out) == "i64[4]");
  ArangeInferMeta({"arange"}, 5, 0, -2, DType::int64, out);
  CHECK(to_string(out) == "i64[3]");
  ArangeInferMeta({"arange"}, 5, 0, 1, DType::int64, out);
  CHECK(to_string(out) == "i64[0]");
  CHECK_THROWS_WITH(ArangeInferMeta({"arange"}, 0, 1, 0, DType::int64, out), Catch::Contains("step is 0"));
}

TEST_CASE("metas of layers") {
  Meta out, mean, variance, mask;
  MatmulInferMeta({"matmul"}, f32({5, 1, 2, 3}), f32({4, 6, 3}), false, true, out);
  CHECK(to_string(out) == "f32[5, 4, 2, 6]");
  MatmulInferMeta({"matmul"}, f32({3}), f32({3}), false, false, out);
  CHECK(to_string(out) == "f32[]");
  CHECK(
      error_of(ErrorCode::shape_mismatch,
               [&] {
                 MatmulInferMeta({"matmul"}, f32({2, 3}), f32({2, 3}), false, false, out);
               }) ==
      "[matmul] x is f32[2, 3] and y is f32[2, 3], whose inner sizes 3 and 2 differ; transpose or reshape one of them");
  LayerNormInferMeta({"layer_norm"}, {{2, 3, 4}, DType::bfloat16}, nullptr, nullptr, 2, out, mean, variance);
  CHECK(to_string(mean) == "f32[2, 3]");
  CHECK_THROWS_WITH(DropoutInferMeta({"dropout"}, f32({2}), nullptr, 1.5, "upscale_in_train", out, mask),
                    Catch::Contains("p is 1.5"));
  CHECK_THROWS_WITH(DropoutInferMeta({"dropout"}, f32({2}), nullptr, 0.5, "up", out, mask),
                    Catch::Contains("mode is up"));
  Meta loss;
  CrossEntropyWithSoftmaxInferMeta({"ce"}, f32({2, 5, 3}), {{2, 3}, DType::int64}, false, 1, out, loss);
  CHECK(to_string(loss) == "f32[2, 1, 3]");
  CHECK_THROWS_WITH(CrossEntropyWithSoftmaxInferMeta({"ce"}, f32({2, 5}), {{3}, DType::int64}, false, 1, out, loss),
                    Catch::Contains("the label must have the shape [2, 1]"));
  Meta saved_mean, saved_variance, mean_out, variance_out;
  CHECK_THROWS_WITH(BatchNormInferMeta({"batch_norm"}, f32({2, 3}), f32({4}), f32({3}), nullptr, nullptr, "NCHW", out,
                                       mean_out, variance_out, saved_mean, saved_variance),
                    Catch::Contains("mean is f32[4], but for x, which is f32[2, 3], it must have 3 elements"));
}

TEST_CASE("metas of optimisers keep what they write") {
  Meta param_out, master_out;
  const Meta master = f32({2}), param{{2}, DType::bfloat16};
  SgdInferMeta({"sgd_"}, param, f32({1}), param, &master, true, param_out, master_out);
  CHECK(param_out == param);
  CHECK(master_out == master);
  CHECK_THROWS_WITH(SgdInferMeta({"sgd_"}, param, f32({1}), param, nullptr, true, param_out, master_out),
                    Catch::Contains("multi_precision needs master_param"));
  CHECK_THROWS_WITH(
      SgdInferMeta({"sgd_"}, param, f32({1}), {{3}, DType::bfloat16}, nullptr, false, param_out, master_out),
      Catch::Contains("grad is bf16[3]"));
}

}  // namespace
}  // namespace shard::meta::infer_meta_test
