// Sorting, selection and counting: values by hand and from NumPy, ties, NaN, empty and 0-d tensors, and errors.
#include <limits>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::testing::sort_test {
namespace {

using Values = std::vector<double>;
using test::error_of;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor of(const Values& numbers, const Dims& dims, DType dtype = DType::float64) {
  return Tensor(tensor(numbers, dims, dtype));
}
Tensor of(const Values& numbers) { return of(numbers, {static_cast<int64_t>(numbers.size())}); }

void check(const Tensor& got, const Dims& dims, const Values& expected, DType dtype) {
  CHECK(got.dims() == dims);
  CHECK(got.dtype() == dtype);
  check_close(got.get().value, expected, 0);
}

/// Both results of a selection: elements of the dtype, and int64 indices.
void check_both(const std::tuple<Tensor, Tensor>& got, const Dims& dims, const Values& expected, const Values& indices,
                DType dtype = DType::float64) {
  check(std::get<0>(got), dims, expected, dtype);
  check(std::get<1>(got), dims, indices, DType::int64);
}

}  // namespace

TEST_CASE("the first few of many elements are those of a whole sort, of equal ones the first") {
  for (const DType dtype : kNumberDTypes) {
    INFO(to_string(dtype));
    std::vector<float> values;
    for (int i = 0; i < 3 * 200; ++i)
      values.push_back(i % 97 == 5 && is_floating(dtype) ? kNaN : static_cast<float>(i * 37 % 23) - 11);
    const Tensor x = cast(Tensor::from_data(values, {3, 200}), dtype);
    for (const bool largest : {false, true}) {
      const auto [few, few_at] = topk(x, 12, 1, largest);
      const auto [all, all_at] = argsort(x, 1, largest);
      CHECK(few_at.to_vector<int64_t>() == slice(all_at, {1}, {0}, {12}).to_vector<int64_t>());
      const auto equal = [](const Tensor& a, const Tensor& b) {
        return item(allclose(cast(a, DType::float64), cast(b, DType::float64), 0, 0, true)).to<bool>();
      };
      CHECK(equal(few, slice(all, {1}, {0}, {12})));
      const auto [apart, apart_at] = topk(transpose(x, {1, 0}), 12, 0, largest);
      CHECK(equal(transpose(apart, {1, 0}), few));
      CHECK(equal(transpose(apart_at, {1, 0}), few_at));
    }
  }
}

TEST_CASE("topk returns the largest or smallest elements in order, of every dtype") {
  for (const DType dtype : kNumberDTypes) {
    INFO(to_string(dtype));
    const Tensor x = of({3, 1, 2, 3, 0, 5, 4, 5}, {2, 4}, dtype);
    check_both(topk(x, 2), {2, 2}, {3, 3, 5, 5}, {0, 3, 1, 3}, dtype);
    check_both(topk(x, 3, -1, false), {2, 3}, {1, 2, 3, 0, 4, 5}, {1, 2, 0, 0, 2, 1}, dtype);
    check_both(topk(x, 1, 0), {1, 4}, {3, 5, 4, 5}, {0, 1, 1, 1}, dtype);
    check_both(topk(x, 2, 0, true, false), {2, 4}, {3, 5, 4, 5, 0, 1, 2, 3}, {0, 1, 1, 1, 1, 0, 0, 0}, dtype);
  }
  check_both(topk(of({1, 0, 1}, {3}, DType::boolean), 2), {2}, {1, 1}, {0, 2}, DType::boolean);
}

TEST_CASE("argsort keeps the order of equal elements, and NaN is the largest value") {
  const Tensor x = of({2, kNaN, -1, 2, kInfinity, kNaN, -kInfinity});
  check_both(argsort(x), {7}, {-kInfinity, -1, 2, 2, kInfinity, kNaN, kNaN}, {6, 2, 0, 3, 4, 1, 5});
  check_both(argsort(x, 0, true), {7}, {kNaN, kNaN, kInfinity, 2, 2, -1, -kInfinity}, {1, 5, 4, 0, 3, 2, 6});
  check_both(topk(x, 3), {3}, {kNaN, kNaN, kInfinity}, {1, 5, 4});
  check_both(topk(x, 2, 0, false), {2}, {-kInfinity, -1}, {6, 2});
  check_both(argsort(of({3, 1, 2, 6, 5, 4}, {2, 3}), 0), {2, 3}, {3, 1, 2, 6, 5, 4}, {0, 0, 0, 1, 1, 1});
  check_both(argsort(of({4, 1, 2, 3, 5, 0}, {2, 3}), -2, true), {2, 3}, {4, 5, 2, 3, 1, 0}, {0, 1, 0, 1, 0, 1});
}

TEST_CASE("long lines are sorted as by std::sort") {
  const DenseTensor x = arbitrary({3, 70000}, DType::int64);
  const auto [sorted, indices] = argsort(Tensor(x), 1);
  const std::vector<int64_t> got = sorted.to_vector<int64_t>(), at = indices.to_vector<int64_t>();
  for (int64_t row = 0; row < 3; ++row) {
    std::vector<int64_t> line(x.data<int64_t>() + row * 70000, x.data<int64_t>() + (row + 1) * 70000);
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[static_cast<size_t>(at[static_cast<size_t>(row) * 70000 + i])] !=
          got[static_cast<size_t>(row) * 70000 + i])
        FAIL("index " << i << " of row " << row);
    }
    std::sort(line.begin(), line.end());
    CHECK(std::equal(line.begin(), line.end(), got.begin() + row * 70000));
  }
}

TEST_CASE("kthvalue and mode select one element of each line") {
  const Tensor x = of({3, 1, 3, 2, 2, 2, kNaN, 2}, {2, 4});
  check_both(kthvalue(x, 1), {2}, {1, 2}, {1, 0});
  check_both(kthvalue(x, 3, 1, true), {2, 1}, {3, 2}, {0, 3});
  check_both(kthvalue(x, 4), {2}, {3, kNaN}, {2, 2});
  check_both(kthvalue(x, 2, 0), {4}, {3, 2, kNaN, 2}, {0, 1, 1, 1});
  check_both(mode(x), {2}, {3, 2}, {2, 3});
  check_both(mode(x, 0, true), {1, 4}, {2, 1, 3, 2}, {1, 0, 0, 1});
  check_both(mode(of({4, 4, 1, 1})), {}, {1}, {3});  // the smallest of the most frequent
  check_both(mode(of({kNaN, 1, kNaN})), {}, {kNaN}, {2});
}

TEST_CASE("selections of a tensor without dims and of no lines") {
  const Tensor scalar = of({7}, {});
  check_both(topk(scalar, 1), {}, {7}, {0});
  check_both(argsort(scalar), {}, {7}, {0});
  check_both(kthvalue(scalar, 1), {}, {7}, {0});
  check_both(mode(scalar), {}, {7}, {0});
  check_both(topk(of({}, {0, 3}), 2), {0, 2}, {}, {});
  check_both(argsort(of({}, {2, 0})), {2, 0}, {}, {});
  check_both(mode(of({}, {0, 3})), {0}, {}, {});
}

TEST_CASE("selections refuse what they cannot select") {
  const Tensor x = of({1, 2, 3});
  CHECK_THAT(error_of([&] { topk(x, 4); }, ErrorCode::invalid_argument),
             Catch::Contains("k is 4, but must be from 1 to 3"));
  error_of([&] { topk(x, 0); }, ErrorCode::invalid_argument);
  error_of([&] { topk(x, 1, 1); }, ErrorCode::out_of_range);
  error_of([&] { kthvalue(x, -1); }, ErrorCode::invalid_argument);
  error_of([&] { argsort(x, -2); }, ErrorCode::out_of_range);
  error_of([&] { mode(of({}, {2, 0})); }, ErrorCode::invalid_argument);
}

TEST_CASE("argmin returns the lowest index of the smallest element, and NaN wins") {
  for (const DType dtype : kNumberDTypes) {
    const Tensor x = of({3, 1, 1, 2, 5, 0}, {2, 3}, dtype);
    check(argmin(x, -1), {2}, {1, 2}, DType::int64);
    check(argmin(x, 0, true, false, DType::int32), {1, 3}, {1, 0, 1}, DType::int32);
    check(argmin(x, 0, false, true), {}, {5}, DType::int64);
  }
  check(argmin(of({1, kNaN, 0, kNaN}), 0), {}, {1}, DType::int64);
  Values line(1000, 7);
  line[700] = line[900] = -1;
  check(argmin(of(line), 0), {}, {700}, DType::int64);
  CHECK_THAT(error_of([] { argmin(of({}, {0}), 0); }, ErrorCode::invalid_argument),
             Catch::Contains("argmin of no elements"));
}

TEST_CASE("searchsorted counts the smaller elements, as NumPy does") {
  const Tensor sequence = of({1, 3, 3, 7}), values = of({0, 3, 7, 8, kNaN, 2}, {2, 3});
  check(searchsorted(sequence, values), {2, 3}, {0, 1, 3, 4, 4, 1}, DType::int64);
  check(searchsorted(sequence, values, true, true), {2, 3}, {0, 3, 4, 4, 4, 1}, DType::int32);
  const Tensor rows = of({1, 2, 3, 4}, {2, 2});
  check(searchsorted(rows, of({2, 5, 2, 4}, {2, 2})), {2, 2}, {1, 2, 0, 1}, DType::int64);
  check(searchsorted(sequence, of({4}, {})), {}, {3}, DType::int64);
  check(searchsorted(of({}, {0}), of({4, 5})), {2}, {0, 0}, DType::int64);
  error_of([&] { searchsorted(rows, of({1, 2, 3})); }, ErrorCode::shape_mismatch);
  error_of([&] { searchsorted(sequence, of({1}, {1}, DType::float32)); }, ErrorCode::dtype_mismatch);
}

TEST_CASE("histogram counts the elements of each range, as NumPy does") {
  check(histogram(of({1, 2, 1, 0.5, 3.9, 4, 5, -1, kNaN, kInfinity}), 4, 0, 4), {4}, {1, 2, 1, 2}, DType::int64);
  check(histogram(of({1, 2, 1, 3}, {2, 2}, DType::int32), 2), {2}, {2, 2}, DType::int64);
  check(histogram(of({5, 5}), 3), {3}, {0, 2, 0}, DType::int64);  // from 4 to 6
  check(histogram(of({}, {0}), 2), {2}, {0, 0}, DType::int64);
  // Neither ranges beyond the largest number nor those of one large number leave the bins.
  check(histogram(of({-1.7e308, 0, 1.7e308}), 2), {2}, {1, 2}, DType::int64);
  check(
      histogram(of({0, 1e308}), 100), {100},
      [] {
        Values counts(100, 0);
        counts.front() = counts.back() = 1;
        return counts;
      }(),
      DType::int64);
  check(histogram(of({1e17, 1e17}), 3), {3}, {0, 2, 0}, DType::int64);
  error_of([] { histogram(of({1, kNaN}), 2); }, ErrorCode::invalid_argument);
  error_of([] { histogram(of({1}), 2, 3, 1); }, ErrorCode::invalid_argument);
  error_of([] { histogram(of({1}), 0); }, ErrorCode::invalid_argument);
}

}  // namespace shard::testing::sort_test
