// Kernels that rearrange elements or make them from numbers, over every dtype.
#include "kernels/kernel_testing.h"

namespace shard::testing::shape_test {
namespace {

using Transpose = void(const OpContext&, const DenseTensor&, const IntArray&, DenseTensor&);
using Slice = void(const OpContext&, const DenseTensor&, const IntArray&, const IntArray&, const IntArray&,
                   DenseTensor&);
using Concat = void(const OpContext&, std::span<const DenseTensor>, const Scalar&, DenseTensor&);
using Stack = void(const OpContext&, std::span<const DenseTensor>, int, DenseTensor&);
using Split = void(const OpContext&, const DenseTensor&, const IntArray&, const Scalar&, std::span<DenseTensor>);
using Gather = void(const OpContext&, const DenseTensor&, const DenseTensor&, const Scalar&, DenseTensor&);
using Full = void(const OpContext&, const Scalar&, DenseTensor&);
using Arange = void(const OpContext&, const Scalar&, const Scalar&, DenseTensor&);

TEST_CASE("transpose reorders the dims of every dtype") {
  for (const DType dtype : kAllDTypes) {
    const DenseTensor x = arbitrary({3, 4, 5}, dtype);
    DenseTensor out = uninitialized({5, 3, 4}, dtype);
    call<Transpose>("transpose", dtype, x, IntArray{-1, 0, 1}, out);
    const std::vector<double> from = values(x), to = values(out);
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 4; ++j) {
        for (size_t k = 0; k < 5; ++k) CHECK(to[(k * 3 + i) * 4 + j] == from[(i * 4 + j) * 5 + k]);
      }
    }
  }
  DenseTensor scalar = uninitialized({}, DType::float32);
  call<Transpose>("transpose", DType::float32, tensor({7}, {}), IntArray{}, scalar);
  CHECK(values(scalar) == std::vector<double>{7});
  DenseTensor none = uninitialized({3, 0}, DType::float32);
  call<Transpose>("transpose", DType::float32, uninitialized({0, 3}, DType::float32), IntArray{1, 0}, none);
}

TEST_CASE("transpose of large matrices, whole tiles and their edges") {
  const auto check = [](const Dims& dims, const IntArray& perm, DType dtype) {
    Dims moved;
    for (const int64_t p : perm) moved.push_back(dims[static_cast<int>(p)]);
    const DenseTensor x = arbitrary(dims, dtype);
    DenseTensor out = uninitialized(moved, dtype);
    call<Transpose>("transpose", dtype, x, perm, out);
    const std::vector<double> from = values(x), to = values(out);
    for (int64_t i = 0; i < x.numel(); ++i) {
      int64_t rest = i, at = 0;
      for (int d = moved.rank() - 1; d >= 0; --d) {
        int64_t stride = 1;
        for (int e = dims.rank() - 1; e > perm[static_cast<size_t>(d)]; --e) stride *= dims[e];
        at += rest % moved[d] * stride;
        rest /= moved[d];
      }
      if (to[static_cast<size_t>(i)] != from[static_cast<size_t>(at)])
        FAIL("element " << i << " of " << to_string(dims));
    }
  };
  for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float32, DType::float64}) {
    check({131, 197}, {1, 0}, dtype);
    check({3, 70, 2, 65}, {0, 3, 2, 1}, dtype);
    check({3, 70, 2, 65}, {3, 2, 1, 0}, dtype);
    check({2, 66, 5, 8}, {0, 2, 1, 3}, dtype);
  }
  // Results of more than 4 MB are written past the caches.
  check({2112, 2081}, {1, 0}, DType::uint8);
  check({1472, 1441}, {1, 0}, DType::bfloat16);
  check({1088, 1000}, {1, 0}, DType::float32);
  check({768, 701}, {1, 0}, DType::float64);
}

TEST_CASE("expand repeats dims of size 1") {
  for (const DType dtype : kAllDTypes) {
    DenseTensor out = uninitialized({2, 2, 3}, dtype);
    call<Transpose>("expand", dtype, tensor({0, 1}, {2, 1}, dtype), IntArray{2, 2, 3}, out);
    CHECK(values(out) == std::vector<double>{0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1});
    DenseTensor none = uninitialized({0, 2}, dtype);
    call<Transpose>("expand", dtype, tensor({0, 1}, {1, 2}, dtype), IntArray{0, 2}, none);
  }
}

TEST_CASE("slice clamps positions and counts negative ones from the end") {
  const DenseTensor x = tensor({0, 1, 2, 3, 4, 5}, {2, 3}, DType::int32);
  DenseTensor out = uninitialized({1, 2}, DType::int32);
  call<Slice>("slice", DType::int32, x, IntArray{0, 1}, IntArray{-1, 1}, IntArray{9, 3}, out);
  CHECK(values(out) == std::vector<double>{4, 5});
  DenseTensor none = uninitialized({2, 0}, DType::int32);
  call<Slice>("slice", DType::int32, x, IntArray{1}, IntArray{2}, IntArray{1}, none);
}

TEST_CASE("concat, split and stack are inverse to each other") {
  for (const DType dtype : kAllDTypes) {
    const DenseTensor parts[] = {arbitrary({2, 1, 3}, dtype, 1), arbitrary({2, 0, 3}, dtype, 2),
                                 arbitrary({2, 4, 3}, dtype, 3)};
    DenseTensor joined = uninitialized({2, 5, 3}, dtype);
    call<Concat>("concat", dtype, std::span<const DenseTensor>(parts), Scalar(-2), joined);
    DenseTensor cut[] = {uninitialized({2, 1, 3}, dtype), uninitialized({2, 0, 3}, dtype),
                         uninitialized({2, 4, 3}, dtype)};
    call<Split>("split", dtype, joined, IntArray{1, 0, -1}, Scalar(1), std::span<DenseTensor>(cut));
    for (size_t i = 0; i < 3; ++i) CHECK(values(cut[i]) == values(parts[i]));
  }
  const DenseTensor rows[] = {tensor({1, 2}, {2}), tensor({3, 4}, {2})};
  DenseTensor stacked = uninitialized({2, 2}, DType::float32);
  call<Stack>("stack", DType::float32, std::span<const DenseTensor>(rows), -1, stacked);
  CHECK(values(stacked) == std::vector<double>{1, 3, 2, 4});
}

TEST_CASE("gather takes slices by index and refuses indices outside") {
  const DenseTensor x = tensor({0, 1, 2, 3, 4, 5}, {2, 3}, DType::int64);
  DenseTensor out = uninitialized({2, 2}, DType::int64);
  call<Gather>("gather", DType::int64, x, tensor({2, -3}, {2}, DType::int32), Scalar(1), out);
  CHECK(values(out) == std::vector<double>{2, 0, 5, 3});
  CHECK_THROWS_WITH(call<Gather>("gather", DType::int64, x, tensor({0, 3}, {2}, DType::int64), Scalar(1), out),
                    Catch::Contains("[gather] index is 3 at element 1, but must be from -3 to 2"));
}

TEST_CASE("full and full_like write one value into every dtype") {
  using FullLike = void(const OpContext&, const DenseTensor&, const Scalar&, DenseTensor&);
  for (const DType dtype : kAllDTypes) {
    DenseTensor out = uninitialized({2, 2}, dtype);
    call<Full>("full", dtype, Scalar(1), out);
    CHECK(values(out) == std::vector<double>{1, 1, 1, 1});
    call<FullLike>("full_like", dtype, out, Scalar(0.0), out);
    CHECK(values(out) == std::vector<double>{0, 0, 0, 0});
    DenseTensor none = uninitialized({0}, dtype);
    call<Full>("full", dtype, Scalar(1), none);
  }
}

TEST_CASE("arange computes each element from its global index") {
  DenseTensor out = uninitialized({4}, DType::float32);
  call<Arange>("arange", DType::float32, Scalar(1), Scalar(0.5), out);
  CHECK(values(out) == std::vector<double>{1, 1.5, 2, 2.5});
  const Box outputs[] = {{{10}, {6}}};
  const LocalCall local{{}, outputs, nullptr, {}};
  DenseTensor part = uninitialized({4}, DType::int64);
  call_in<Arange>({"arange", &local}, "arange", DType::int64, Scalar(1), Scalar(2), part);
  CHECK(values(part) == std::vector<double>{13, 15, 17, 19});
}

TEST_CASE("tile repeats dims, and new ones before them") {
  using Tile = void(const OpContext&, const DenseTensor&, const IntArray&, DenseTensor&);
  for (const DType dtype : kAllDTypes) {
    const DenseTensor x = tensor({0, 1, 1, 0, 0, 1}, {2, 3}, dtype);
    DenseTensor rows = uninitialized({4, 3}, dtype), all = uninitialized({2, 2, 6}, dtype);
    call<Tile>("tile", dtype, x, IntArray{2, 1}, rows);
    CHECK(values(rows) == std::vector<double>{0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1});
    call<Tile>("tile", dtype, x, IntArray{2, 1, 2}, all);
    CHECK(values(all) == std::vector<double>{0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1});
  }
  DenseTensor last = uninitialized({2, 2}, DType::float32), none = uninitialized({0, 1}, DType::float32);
  call<Tile>("tile", DType::float32, tensor({1, 2}, {2, 1}), IntArray{2}, last);
  CHECK(values(last) == std::vector<double>{1, 1, 2, 2});
  call<Tile>("tile", DType::float32, tensor({1, 2}, {2, 1}), IntArray{0, 1}, none);
  // Eight dims, each of them traversed twice.
  DenseTensor many = uninitialized({4, 4, 4, 4, 4, 4, 4, 4}, DType::uint8);
  DenseTensor small = uninitialized({2, 2, 2, 2, 2, 2, 2, 2}, DType::uint8);
  for (int64_t i = 0; i < 256; ++i) small.data<uint8_t>()[i] = static_cast<uint8_t>(i);
  call<Tile>("tile", DType::uint8, small, IntArray{2, 2, 2, 2, 2, 2, 2, 2}, many);
  CHECK(many.data<uint8_t>()[0] == 0);
  CHECK(many.data<uint8_t>()[3 * 16384 + 2] == 128);
  CHECK(many.data<uint8_t>()[65535] == 255);
}

TEST_CASE("strided_slice steps forwards and backwards") {
  using Strided = void(const OpContext&, const DenseTensor&, const IntArray&, const IntArray&, const IntArray&,
                       const IntArray&, DenseTensor&);
  for (const DType dtype : {DType::float32, DType::int64, DType::bfloat16, DType::uint8}) {
    const DenseTensor x = tensor({0, 1, 2, 3, 4, 5}, {6}, dtype), y = tensor({0, 1, 2, 3, 4, 5}, {2, 3}, dtype);
    DenseTensor three = uninitialized({3}, dtype), six = uninitialized({6}, dtype), two = uninitialized({2}, dtype),
                matrix = uninitialized({2, 2}, dtype);
    call<Strided>("strided_slice", dtype, x, IntArray{0}, IntArray{1}, IntArray{100}, IntArray{2}, three);
    CHECK(values(three) == std::vector<double>{1, 3, 5});
    call<Strided>("strided_slice", dtype, x, IntArray{0}, IntArray{100}, IntArray{-1}, IntArray{-1}, six);
    CHECK(values(six) == std::vector<double>{5, 4, 3, 2, 1, 0});
    call<Strided>("strided_slice", dtype, x, IntArray{0}, IntArray{-2}, IntArray{0}, IntArray{-3}, two);
    CHECK(values(two) == std::vector<double>{4, 1});
    call<Strided>("strided_slice", dtype, y, IntArray{1, 0}, IntArray{2, 1}, IntArray{-1, -1}, IntArray{-2, -1},
                  matrix);
    CHECK(values(matrix) == std::vector<double>{5, 3, 2, 0});
  }
}

TEST_CASE("triangles follow the diagonal of the whole tensor") {
  using Triangle = void(const OpContext&, const DenseTensor&, int, DenseTensor&);
  for (const DType dtype : kAllDTypes) {
    const DenseTensor x = tensor(std::vector<double>(12, 1), {2, 2, 3}, dtype);
    DenseTensor out = uninitialized({2, 2, 3}, dtype);
    call<Triangle>("tril", dtype, x, 0, out);
    CHECK(values(out) == std::vector<double>{1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0});
    call<Triangle>("triu", dtype, x, 1, out);
    CHECK(values(out) == std::vector<double>{0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1});
    call<Triangle>("tril", dtype, x, -5, out);
    CHECK(values(out) == std::vector<double>(12, 0));
    const Box inputs[] = {{{2, 8, 9}, {0, 3, 4}}};
    const LocalCall local{inputs, {}, nullptr, {}};
    call_in<Triangle>({"tril", &local}, "tril", dtype, x, 0, out);
    CHECK(values(out) == std::vector<double>{0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0});
    DenseTensor same = tensor(std::vector<double>(12, 1), {2, 2, 3}, dtype);
    call_in<Triangle>({"triu", &local}, "triu", dtype, same, 1, same);
    CHECK(values(same) == std::vector<double>{1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1});
  }
}

TEST_CASE("eye has its ones on the diagonal of the whole") {
  using Eye = void(const OpContext&, DenseTensor&);
  for (const DType dtype : kAllDTypes) {
    DenseTensor out = uninitialized({2, 3}, dtype);
    call<Eye>("eye", dtype, out);
    CHECK(values(out) == std::vector<double>{1, 0, 0, 0, 1, 0});
    const Box outputs[] = {{{8, 9}, {3, 4}}};
    const LocalCall local{{}, outputs, nullptr, {}};
    call_in<Eye>({"eye", &local}, "eye", dtype, out);
    CHECK(values(out) == std::vector<double>{0, 0, 0, 1, 0, 0});
  }
}

TEST_CASE("scatter writes or adds up rows, on each rank its own") {
  using Scatter =
      void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, bool, DenseTensor&);
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::int32, DType::uint8}) {
    const DenseTensor x = tensor({9, 9, 8, 8, 7, 7}, {3, 2}, dtype), index = tensor({2, 0, 2}, {3}, DType::int64);
    const DenseTensor updates = tensor({1, 2, 3, 4, 5, 6}, {3, 2}, dtype);
    DenseTensor out = uninitialized({3, 2}, dtype);
    call<Scatter>("scatter", dtype, x, index, updates, true, out);
    CHECK(values(out) == std::vector<double>{3, 4, 8, 8, 5, 6});
    call<Scatter>("scatter", dtype, x, tensor({2, 0, 2}, {3, 1}, DType::int32), updates, false, out);
    CHECK(values(out) == std::vector<double>{3, 4, 8, 8, 6, 8});
    const Box inputs[] = {{{5, 2}, {2, 0}}, {{3}, {0}}, {{3, 2}, {0, 0}}};
    const LocalCall local{inputs, {}, nullptr, {}};
    call_in<Scatter>({"scatter", &local}, "scatter", dtype, x, index, updates, true, out);
    CHECK(values(out) == std::vector<double>{5, 6, 8, 8, 7, 7});
  }
  DenseTensor out = tensor({5}, {1});
  CHECK_THROWS_WITH(call<Scatter>("scatter", DType::float32, tensor({1}, {1}), tensor({1}, {1}, DType::int64),
                                  tensor({2}, {1}), true, out),
                    Catch::Contains("[scatter] index is 1 at element 0, but must be from 0 to 0"));
  CHECK(values(out) == std::vector<double>{5});
}

TEST_CASE("unslice puts elements where the slice takes them, and zeros elsewhere") {
  using Unslice = void(const OpContext&, const DenseTensor&, const IntArray&, const IntArray&, const IntArray&,
                       const IntArray&, const IntArray&, DenseTensor&);
  for (const DType dtype : kAllDTypes) {
    DenseTensor out = arbitrary({3, 4}, dtype);
    const DenseTensor x = tensor({1, 0, 0, 1}, {2, 2}, dtype);
    call<Unslice>("unslice", dtype, x, IntArray{3, 4}, IntArray{1, 0}, IntArray{-1, 0}, IntArray{0, 100},
                  IntArray{-2, 2}, out);
    CHECK(values(out) == std::vector<double>{0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0});
    call<Unslice>("unslice", dtype, uninitialized({3, 0}, dtype), IntArray{3, 4}, IntArray{1}, IntArray{2}, IntArray{2},
                  IntArray{1}, out);
    CHECK(values(out) == std::vector<double>(12));
  }
}

TEST_CASE("index_sum adds up slices in their order, 16-bit floats in float32") {
  using IndexSum = void(const OpContext&, const DenseTensor&, const DenseTensor&, int64_t, int, DenseTensor&);
  const DenseTensor index = tensor({2, 0, -1}, {3}, DType::int32);
  for (const DType dtype : kNumberDTypes) {
    DenseTensor rows = arbitrary({3, 2}, dtype), columns = arbitrary({2, 3}, dtype);
    call<IndexSum>("index_sum", dtype, tensor({1, 2, 3, 4, 5, 6}, {3, 2}, dtype), index, 3, 0, rows);
    CHECK(values(rows) == std::vector<double>{3, 4, 0, 0, 6, 8});
    call<IndexSum>("index_sum", dtype, tensor({1, 2, 3, 4, 5, 6}, {2, 3}, dtype), index, 3, -1, columns);
    CHECK(values(columns) == std::vector<double>{2, 0, 4, 5, 0, 10});
  }
  // In bfloat16 256 + 1 is 256.
  DenseTensor sum = uninitialized({1, 600}, DType::bfloat16);
  std::vector<double> ones(257 * 600, 1.0);
  call<IndexSum>("index_sum", DType::bfloat16, tensor(ones, {257, 600}, DType::bfloat16),
                 tensor(std::vector<double>(257), {257}, DType::int64), 1, 0, sum);
  CHECK(values(sum) == std::vector<double>(600, 256));
  std::vector<double> many(512 * 600, 1.0);
  call<IndexSum>("index_sum", DType::bfloat16, tensor(many, {512, 600}, DType::bfloat16),
                 tensor(std::vector<double>(512), {512}, DType::int64), 1, 0, sum);
  CHECK(values(sum) == std::vector<double>(600, 512));
  DenseTensor none = uninitialized({0, 2}, DType::float32);
  CHECK_THROWS_WITH(
      call<IndexSum>("index_sum", DType::float32, tensor({1, 2}, {1, 2}), tensor({0}, {1}, DType::int64), 0, 0, none),
      Catch::Contains("[index_sum] index is 0 at element 0, but must be from 0 to -1"));
}

TEST_CASE(
    "the gradient of scatter goes to the update that was last, or to all that were added, and never to replaced rows") {
  using ScatterGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, bool, DenseTensor&, DenseTensor&);
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor index = tensor({2, 0, 2}, {3, 1}, DType::int64),
                      out_grad = tensor({1, 2, 3, 4, 5, 6}, {3, 2}, dtype);
    DenseTensor x_grad = arbitrary({3, 2}, dtype), updates_grad = arbitrary({3, 2}, dtype);
    call<ScatterGrad>("scatter_grad", dtype, index, out_grad, true, x_grad, updates_grad);
    CHECK(values(x_grad) == std::vector<double>{0, 0, 3, 4, 0, 0});
    CHECK(values(updates_grad) == std::vector<double>{0, 0, 1, 2, 5, 6});
    call<ScatterGrad>("scatter_grad", dtype, index, out_grad, false, x_grad, updates_grad);
    CHECK(values(x_grad) == std::vector<double>{0, 0, 3, 4, 0, 0});
    CHECK(values(updates_grad) == std::vector<double>{5, 6, 1, 2, 5, 6});
    const Box inputs[] = {{{3, 1}, {0, 0}}, {{5, 2}, {2, 0}}};
    const LocalCall local{inputs, {}, nullptr, {}};
    call_in<ScatterGrad>({"scatter_grad", &local}, "scatter_grad", dtype, index, out_grad, true, x_grad, updates_grad);
    CHECK(values(x_grad) == std::vector<double>{0, 0, 3, 4, 5, 6});
    CHECK(values(updates_grad) == std::vector<double>{0, 0, 0, 0, 1, 2});
    DenseTensor in_place = out_grad;
    call<ScatterGrad>("scatter_grad", dtype, index, in_place, true, in_place, updates_grad);
    CHECK(values(in_place) == std::vector<double>{0, 0, 3, 4, 0, 0});
    CHECK(values(updates_grad) == std::vector<double>{0, 0, 1, 2, 5, 6});
  }
}

TEST_CASE("one_hot marks the class of each element") {
  using OneHot = void(const OpContext&, const DenseTensor&, const Scalar&, DenseTensor&);
  for (const DType dtype : {DType::int32, DType::int64}) {
    DenseTensor out = uninitialized({2, 3}, DType::float32);
    call<OneHot>("one_hot", dtype, tensor({2, 0}, {2}, dtype), Scalar(3), out);
    CHECK(values(out) == std::vector<double>{0, 0, 1, 1, 0, 0});
    CHECK_THROWS_WITH(call<OneHot>("one_hot", dtype, tensor({2, 3}, {2}, dtype), Scalar(3), out),
                      Catch::Contains("x is 3 at element 1"));
  }
}

}  // namespace
}  // namespace shard::testing::shape_test
