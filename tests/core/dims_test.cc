// Shapes, lists of integers, scalars and metas: the plain values of core/dims.h.
#include "shard/core/dims.h"

#include <catch2/catch.hpp>

#include <limits>

#include "support/mesh_run.h"

namespace dims_test {

using namespace shard;
using shard::test::error_of;

TEST_CASE("dims insert, erase and multiply like a list") {
  Dims dims{2, 3, 5};
  CHECK(dims.rank() == 3);
  CHECK(dims.numel() == 30);
  CHECK(dims.numel(1, 3) == 15);
  CHECK(dims.numel(1, 1) == 1);
  dims.insert(0, 7);
  dims.insert(4, 11);
  CHECK(dims == Dims{7, 2, 3, 5, 11});
  dims.erase(1);
  CHECK(dims == Dims{7, 3, 5, 11});
  CHECK_FALSE(dims == Dims{7, 3, 5});
  CHECK(to_string(dims) == "[7, 3, 5, 11]");
}

TEST_CASE("a shape without dims has one element, and a dim of 0 has none") {
  CHECK(Dims{}.numel() == 1);
  CHECK(Dims{3, 0, 2}.numel() == 0);
  CHECK(to_string(Dims{}) == "[]");
  CHECK(Dims::filled(3, 4) == Dims{4, 4, 4});
}

TEST_CASE("a ninth dim is an out_of_range error") {
  Dims dims = Dims::filled(kMaxRank, 1);
  CHECK_THAT(error_of([&] { dims.push_back(1); }, ErrorCode::out_of_range), Catch::Contains("at most 8 dims"));
  CHECK(dims.rank() == kMaxRank);
  error_of([] { Dims::filled(kMaxRank + 1, 1); }, ErrorCode::out_of_range);
}

TEST_CASE("a list of integers is not bounded by the largest rank") {
  IntArray list(Dims{1, 2});
  for (int i = 0; i < 20; ++i) list.push_back(i);
  CHECK(list.size() == 22);
  CHECK(list[21] == 19);
  CHECK(to_string(IntArray{1, -1}) == "[1, -1]");
}

TEST_CASE("a scalar keeps all bits of an integer and tells integers from reals") {
  constexpr int64_t kOdd = (int64_t{1} << 53) + 1;
  CHECK(Scalar(kOdd).to<int64_t>() == kOdd);
  CHECK(Scalar(kOdd).is_integer());
  CHECK_FALSE(Scalar(2.0).is_integer());
  CHECK(Scalar(true).to<double>() == 1.0);
  CHECK(Scalar(0.5).to<bool>());
  CHECK(Scalar(2.75).to<int>() == 2);
  CHECK(Scalar(2) == Scalar(int64_t{2}));
  CHECK_FALSE(Scalar(2) == Scalar(2.0));
  CHECK(Scalar(0.1).to<float>() == 0.1f);
}

TEST_CASE("a meta prints its dtype and shape and counts bytes") {
  const Meta meta{{2, 3}, DType::bfloat16};
  CHECK(to_string(meta) == "bf16[2, 3]");
  CHECK(meta.bytes() == 12);
  CHECK(Meta{{0, 3}, DType::int64}.bytes() == 0);
  CHECK_FALSE(meta == Meta{{2, 3}, DType::float16});
}

TEST_CASE("an axis counts from either end, and one outside names the op and the bounds") {
  CHECK(normalize_axis("sum", "axis", 1, 3) == 1);
  CHECK(normalize_axis("sum", "axis", -1, 3) == 2);
  CHECK(normalize_axis("sum", "axis", -1, 0) == 0);
  CHECK_THAT(error_of([] { normalize_axis("sum", "axis", 3, 3); }, ErrorCode::out_of_range),
             Catch::Contains("[sum] axis is 3, but must be from -3 to 2"));
  error_of([] { normalize_axis("sum", "axis", std::numeric_limits<int64_t>::min(), 3); }, ErrorCode::out_of_range);
}

TEST_CASE("a scalar is made from every integer type, long long too") {
  CHECK(Scalar(-3LL).to<int64_t>() == -3);
  CHECK(Scalar(3ULL).is_integer());
  CHECK(Scalar(uint8_t{200}).to<int>() == 200);
  CHECK(Scalar(static_cast<short>(-2)) == Scalar(-2));
  const Scalar large(std::numeric_limits<uint64_t>::max());
  CHECK_FALSE(large.is_integer());
  CHECK(large.to<double>() == 0x1p64);
  CHECK(large.to<int64_t>() == std::numeric_limits<int64_t>::max());
}

TEST_CASE("a scalar becomes an element as the op cast converts") {
  CHECK(Scalar(1e20).to<int>() == std::numeric_limits<int>::max());
  CHECK(Scalar(-1.0).to<uint8_t>() == 0);
  CHECK(Scalar(300).to<uint8_t>() == 44);
  CHECK(Scalar(std::numeric_limits<double>::quiet_NaN()).to<int64_t>() == 0);
  CHECK(static_cast<float>(Scalar(1.0 + 0x1p-11 + 0x1p-40).to<float16>()) == 1.0f + 0x1p-10f);
}

TEST_CASE("the bytes of a shape are checked before they are asked for") {
  CHECK(checked_bytes({{2, 3}, DType::int64}) == 48);
  CHECK(checked_bytes({{}, DType::float32}) == 4);
  CHECK(checked_bytes({{int64_t{1} << 40, 0, 5}, DType::float32}) == 0);
  CHECK_THAT(error_of(
                 [] {
                   checked_bytes({{int64_t{1} << 62, 4}, DType::uint8}, "op");
                 },
                 ErrorCode::out_of_range),
             Catch::Contains("[op] a tensor of shape [4611686018427387904, 4] and dtype uint8 would have more bytes "
                             "than an int64 can count"));
  error_of([] { checked_bytes({{int64_t{1} << 62}, DType::int32}); }, ErrorCode::out_of_range);
  error_of([] { checked_bytes({{0, int64_t{1} << 62, 4}, DType::uint8}); }, ErrorCode::out_of_range);
  CHECK_THAT(error_of(
                 [] {
                   checked_bytes({{2, -3, -3}, DType::uint8});
                 },
                 ErrorCode::out_of_range),
             Catch::Contains("negative dim -3"));
}

}  // namespace dims_test
