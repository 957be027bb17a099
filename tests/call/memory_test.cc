// Tensors that do not fit into memory: shapes with more bytes than can be counted, and more bytes than are
// available.
#include <catch2/catch.hpp>

#include "shard/call/call_text.h"
#include "shard/ops/shape_ops.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace memory_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("out of memory: the error names the op, its result, what was asked for and what is held",
          "[slow_in_asan][slow_in_tsan]") {
  constexpr int64_t kMany = int64_t{1} << 46;
  const std::string text = error_of([] { full({kMany, 2}, 1.0); }, ErrorCode::device);
  CHECK_THAT(text, Catch::StartsWith("[full] no memory for f32[70368744177664, 2] on cpu: 562949953421312 bytes were "
                                     "requested, while tensors of this process hold "));
  CHECK_THAT(text, Catch::Contains("Free tensors that are not needed any more"));
  const Tensor row = full({2}, 1.0);
  CHECK_THAT(error_of(
                 [&] {
                   expand(row, {kMany, 2});
                 },
                 ErrorCode::device),
             Catch::StartsWith("[expand] no memory for f32[70368744177664, 2]"));
  CHECK(full({2}, 1.0).to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("out of memory: the error of a plain call has the shapes of its arguments", "[slow_in_asan][slow_in_tsan]") {
  constexpr int64_t kMany = int64_t{1} << 46;
  const Tensor row = full({2}, 1.0), tall = full({1 << 23, 1}, 1.0), wide = full({1, 1 << 23}, 1.0);
  CHECK_THAT(error_of(
                 [&] {
                   expand(row, {kMany, 2});
                 },
                 ErrorCode::device),
             Catch::EndsWith("over more ranks\n  in the call expand(x: f32[2])"));
  CHECK_THAT(error_of([&] { add(tall, wide); }, ErrorCode::device),
             Catch::EndsWith("\n  in the call add(x: f32[8388608, 1], y: f32[1, 8388608])"));
  CHECK_THAT(error_of([&] { where(greater_than(row, row), tall, wide); }, ErrorCode::shape_mismatch),
             !Catch::Contains("in the call"));
  const std::vector<Tensor> list = {row, tall};
  CHECK(call::call_text(ops::concat, "concat", {call::tensor_argument(list), call::tensor_argument(Scalar(0))}) ==
        "concat(x: {f32[2], f32[8388608, 1]})");
}

TEST_CASE("out of memory: on a mesh the error names the op and the call", "[slow_in_asan][slow_in_tsan]") {
  run_ranks(2, [](Rank&) {
    const auto* mesh = ProcessMesh::make({2});
    const std::string text = error_of(
        [&] {
          zeros({int64_t{1} << 47, 2}, DistSpec::parse(mesh, "a, -"));
        },
        ErrorCode::device);
    check(text.starts_with("[zeros] no memory for f32[70368744177664, 2]"), text);
  });
}

TEST_CASE("a global shape whose product overflows is refused on every rank") {
  run_ranks(3, [](Rank&) {
    const auto* mesh = ProcessMesh::make({2});
    const std::string text = error_of(
        [&] {
          from_local(zeros({0}), DistSpec::parse(mesh, "a, -"), {int64_t{1} << 62, 4}, DType::float32);
        },
        ErrorCode::out_of_range);
    check(text.find("[from_local] a tensor of shape [4611686018427387904, 4]") == 0, text);
    error_of([&] { zeros({int64_t{1} << 62, 4}, DistSpec::parse(mesh, "a, -")); }, ErrorCode::out_of_range);
  });
}

}  // namespace memory_test
