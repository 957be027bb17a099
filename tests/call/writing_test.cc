// Ops of writing.yaml, views of bytes, and ops that keep state: what their cases do not show, which are errors, ends,
// targets that are arguments too, and gradients of what is written twice.
#include <catch2/catch.hpp>

#include <limits>
#include <vector>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace writing_test {

using namespace shard;
using namespace shard::test;

namespace {

using Values = std::vector<double>;

Tensor reals(const Values& values, const Dims& dims) { return Tensor::from_data(values, dims); }
Tensor whole(const std::vector<int64_t>& values, const Dims& dims) { return Tensor::from_data(values, dims); }
Tensor mask(const Values& values, const Dims& dims) { return cast(reals(values, dims), DType::boolean); }
Values of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

}  // namespace

TEST_CASE("index_put writes at positions, masks and both, and the last value stays") {
  const Tensor x = zeros({2, 3}, DType::float64);
  CHECK(of(index_put(x, {whole({-1, 0, 1}, {3})}, reals({1, 2, 3}, {3, 1}))) == Values{2, 2, 2, 3, 3, 3});
  CHECK(of(index_put(x, {whole({0}, {1}), whole({0, 2, 0}, {3})}, reals({4, 5, 6}, {3}))) == Values{6, 0, 5, 0, 0, 0});
  CHECK(of(index_put(x, {mask({1, 0, 1, 0, 1, 0}, {2, 3})}, reals({7, 8, 9}, {3}))) == Values{7, 0, 8, 0, 9, 0});
  CHECK(of(index_put(x, {mask({0, 1}, {2}), whole({1}, {})}, reals({5}, {}))) == Values{0, 0, 0, 0, 5, 0});
  CHECK(of(index_put(x, {whole({1, 1}, {2})}, reals({1, 2}, {2, 1}), true)) == Values{0, 0, 0, 3, 3, 3});
  CHECK(of(index_put(x, {mask({0, 0}, {2})}, reals({1, 2, 3}, {3}))) == Values(6, 0));
}

TEST_CASE("index_put of empty tensors and indices changes nothing") {
  const Tensor x = iota<double>({2, 2});
  CHECK(of(index_put(x, {zeros({0}, DType::int64)}, zeros({0, 2}, DType::float64))) == of(x));
  CHECK(index_put(zeros({0, 3}), {zeros({0}, DType::int64)}, zeros({3})).dims() == Dims{0, 3});
  CHECK(index_put(zeros({2, 0}), {whole({1}, {1})}, zeros({1})).dims() == Dims{2, 0});
}

TEST_CASE("index_put adds many 16-bit values in float32") {
  const Tensor x = zeros({1}, DType::bfloat16), ones = full({1000}, 1, DType::bfloat16);
  CHECK(of(index_put(x, {zeros({1000}, DType::int64)}, ones, true)) == Values{1000});
}

TEST_CASE("index_put refuses arguments that do not fit") {
  const Tensor x = zeros({2, 3}), one = zeros({1}), at = whole({0, 1}, {2});
  const auto refused = [&](const std::vector<Tensor>& indices, const Tensor& value, ErrorCode code, const char* text) {
    Tensor target = assign(x);
    check_refused([&] { index_put(x, indices, value); }, code, text);
    check_refused([&] { index_put_(target, indices, value); }, code, text);
    CHECK(of(target) == Values(6, 0));
  };
  refused({}, one, ErrorCode::invalid_argument, "indices is empty");
  refused({one}, one, ErrorCode::dtype_mismatch, "indices[0] is f32[1]");
  refused({at}, zeros({1}, DType::float64), ErrorCode::dtype_mismatch, "value");
  refused({at, at, at}, one, ErrorCode::shape_mismatch, "no dim left to select in");
  refused({mask({1, 0, 1}, {3})}, one, ErrorCode::shape_mismatch, "a mask must have the sizes");
  refused({mask({1}, {})}, one, ErrorCode::shape_mismatch, "indices[0] is bool[]");
  refused({at, whole({0, 1, 2}, {3})}, one, ErrorCode::shape_mismatch, "do not broadcast");
  refused({at}, zeros({3, 1}), ErrorCode::shape_mismatch, "value of shape [3, 1] does not broadcast");
  refused({whole({0, 2}, {2})}, one, ErrorCode::out_of_range, "indices[0] is 2 at element 1");
  refused({at, whole({0, -4}, {2})}, one, ErrorCode::out_of_range, "indices[1] is -4 at element 1");
  refused({mask({1, 1}, {2})}, zeros({3, 1}), ErrorCode::shape_mismatch, "have the shape [2, 3]");
  refused({mask({1, 1}, {2}), whole({0, 1, 2}, {3})}, one, ErrorCode::shape_mismatch, "do not broadcast");
  refused({zeros({1, 1, 1, 1, 1, 1, 1, 1}, DType::int64)}, one, ErrorCode::out_of_range, "dims are written");
  check_refused([] { index_put(mask({1}, {1}), {whole({0}, {1})}, mask({1}, {1}), true); }, ErrorCode::dtype_mismatch,
                "accumulate needs numbers");
}

TEST_CASE("in place ops read arguments that are the target as it was") {
  Tensor x = iota<double>({3}), numbers = whole({2, 0, 1}, {3}), matrix = iota<double>({2, 2});
  index_put_(x, {whole({2, 1, 0}, {3})}, x);
  CHECK(of(x) == Values{2, 1, 0});
  index_put_(numbers, {numbers}, numbers);
  CHECK(of(numbers) == Values{0, 1, 2});
  set_value_with_tensor_(x, x, {2}, {-1}, {-1}, {0}, {}, {});
  CHECK(of(x) == Values{0, 1, 2});
  fill_diagonal_tensor_(matrix, matrix[1]);
  CHECK(of(matrix) == Values{2, 1, 2, 3});
}

TEST_CASE("of several values of index_put at one place the last has the gradient, and with accumulate all have it") {
  const auto gradient = [](bool accumulate) {
    const Tensor x = iota<double>({3}).set_requires_grad(true), value = reals({5, 6, 7}, {3}).set_requires_grad(true);
    index_put(x, {whole({1, -2, 0}, {3})}, value, accumulate).backward(reals({1, 2, 3}, {3}));
    return std::pair(of(x.grad()), of(value.grad()));
  };
  CHECK(gradient(false) == std::pair(Values{0, 0, 3}, Values{0, 2, 1}));
  CHECK(gradient(true) == std::pair(Values{1, 2, 3}, Values{2, 2, 1}));
}

TEST_CASE("set_value writes what the slices of strided_slice are, and ignores leading dims of size 1") {
  const Tensor x = zeros({2, 3});
  CHECK(of(set_value(x, {}, {}, {}, {}, {}, {}, {}, {4})) == Values(6, 4));
  CHECK(of(set_value(x, {0, -2}, {1, kEnd}, {1, 1}, {0, 1}, {0}, {}, {1, 1, 2}, {1, 2})) == Values{0, 1, 2, 0, 0, 0});
  CHECK(of(set_value(x, {5}, {9}, {1}, {1}, {}, {}, {1}, {1})) == Values(6, 0));
  CHECK(of(set_value(x, {1}, {2}, {kEnd}, {0}, {}, {}, {1}, {true})) == Values{0, 0, 0, 1, 1, 1});
  CHECK(of(set_value(cast(x, DType::int32), {2}, {kEnd}, {1}, {1}, {1}, {2}, {2, 1}, {2.75, -1.5})) ==
        Values{0, 0, 2, 0, 0, -1});
  CHECK(set_value(zeros({0, 2}), {0}, {1}, {1}, {1}, {}, {}, {1}, {1}).dims() == Dims{0, 2});
  CHECK(of(set_value(zeros({}), {}, {}, {}, {}, {}, {0}, {1}, {3})) == Values{3});
}

TEST_CASE("set_value refuses attributes that do not fit") {
  const Tensor x = zeros({2, 3});
  const auto refused = [&](const IntArray& starts, const IntArray& steps, const IntArray& axes, const IntArray& dropped,
                           const IntArray& added, const IntArray& shape, ErrorCode code, const char* text) {
    check_refused([&] { set_value(x, starts, {kEnd}, steps, axes, dropped, added, shape, {1, 2}); }, code, text);
  };
  refused({0, 0}, {1}, {1}, {}, {}, {2}, ErrorCode::invalid_argument, "equally many");
  refused({0}, {0}, {1}, {}, {}, {2}, ErrorCode::invalid_argument, "steps [0] has a 0");
  refused({0}, {1}, {2}, {}, {}, {2}, ErrorCode::out_of_range, "an axis of axes is 2");
  refused({0}, {1}, {1}, {}, {3}, {2}, ErrorCode::out_of_range, "none_axes is [3]");
  refused({0}, {1}, {1}, {1, -1}, {}, {2}, ErrorCode::invalid_argument, "has dim 1 twice");
  refused({0}, {1}, {1}, {1}, {}, {2}, ErrorCode::shape_mismatch, "has 3 elements");
  refused({0}, {1}, {1}, {}, {}, {2}, ErrorCode::shape_mismatch, "the slice has shape [2, 3]");
  refused({0}, {1}, {1}, {}, {}, {3}, ErrorCode::invalid_argument, "values has 2 numbers");
  refused({0}, {1}, {1}, {}, {}, {-1, -2}, ErrorCode::invalid_argument, "values has 2 numbers");
  check_refused([&] { set_value_with_tensor(x, zeros({1}, DType::int32), {}, {}, {}, {}, {}, {}); },
                ErrorCode::dtype_mismatch, "values");
  check_refused([] { set_value(zeros({}), {0}, {1}, {1}, {0}, {}, {}, {1}, {1}); }, ErrorCode::shape_mismatch,
                "x has no dims");
}

TEST_CASE("gradients of set_value_with_tensor have the shape of values, also where nothing is written") {
  const Tensor x = iota<double>({2, 3});
  const auto gradient = [&](const Dims& dims, const IntArray& starts, const IntArray& dropped) {
    const Tensor values = zeros(dims, DType::float64).set_requires_grad(true);
    const Tensor written = set_value_with_tensor(x, values, starts, {kEnd}, {1}, {1}, dropped, {0});
    written.backward(iota<double>({2, 3}, 1));
    return std::pair(values.grad().dims(), of(values.grad()));
  };
  CHECK(gradient({1, 1, 1, 2, 2}, {1}, {}) == std::pair(Dims{1, 1, 1, 2, 2}, Values{2, 3, 5, 6}));
  CHECK(gradient({}, {2}, {1}) == std::pair(Dims{}, Values{9}));
  CHECK(gradient({1, 2}, {9}, {1}) == std::pair(Dims{1, 2}, Values{0, 0}));
}

TEST_CASE("fill_diagonal_tensor refuses arguments that do not fit and takes diagonals without elements") {
  const Tensor x = zeros({2, 3});
  check_refused([&] { fill_diagonal_tensor(x, zeros({3})); }, ErrorCode::shape_mismatch, "have the shape [2]");
  check_refused([&] { fill_diagonal_tensor(x, zeros({2}), 0, 1, -1); }, ErrorCode::invalid_argument, "the same dim");
  check_refused([&] { fill_diagonal_tensor(x, zeros({2}), 0, 0, 2); }, ErrorCode::out_of_range, "dim2 is 2");
  check_refused([&] { fill_diagonal_tensor(x, zeros({0}), kEnd); }, ErrorCode::out_of_range, "offset is");
  check_refused([&] { fill_diagonal_tensor(x, zeros({2}, DType::int32)); }, ErrorCode::dtype_mismatch, "y");
  check_refused([] { fill_diagonal_tensor(zeros({2}), zeros({2})); }, ErrorCode::shape_mismatch, "two dims");
  CHECK(of(fill_diagonal_tensor(x, zeros({0}), 3)) == Values(6, 0));
  CHECK(of(fill_diagonal_tensor(x, zeros({0}), -7)) == Values(6, 0));
  CHECK(fill_diagonal_tensor(zeros({0, 3, 2}), zeros({0, 2}), 0, 1, 2).dims() == Dims{0, 3, 2});
}

TEST_CASE("view_dtype shares its buffer in both directions") {
  Tensor x = Tensor::from_data(std::vector<float>{1, -2}, {1, 2});
  Tensor bits = view_dtype(x, DType::int32);
  CHECK(bits.to_vector<int32_t>() == std::vector<int32_t>{0x3F800000, static_cast<int32_t>(0xC0000000)});
  CHECK(bits.shares_buffer_with(x));
  bits = view_dtype(x, DType::int64);
  CHECK(bits.dims() == Dims{1, 1});
  fill_(bits, 0x40000000);  // 2, and 0 above it
  CHECK(of(x) == Values{2, 0});
  CHECK(view_dtype(bits, DType::uint8).dims() == Dims{1, 8});
  CHECK(view_dtype(zeros({3, 0}), DType::float64).dims() == Dims{3, 0});
  CHECK(view_dtype(zeros({}), DType::int32).dims() == Dims{});
  view_dtype_(x, DType::uint8);
  CHECK(of(x) == Values{0, 0, 0, 64, 0, 0, 0, 0});
}

TEST_CASE("view_dtype refuses what has no whole elements, and bool") {
  check_refused([] { view_dtype(zeros({2, 3}), DType::float64); }, ErrorCode::shape_mismatch, "input is f32[2, 3]");
  check_refused([] { view_dtype(zeros({}), DType::uint8); }, ErrorCode::shape_mismatch, "input is f32[]");
  check_refused([] { view_dtype(zeros({2}, DType::uint8), DType::boolean); }, ErrorCode::dtype_mismatch, "bool");
  check_refused([] { view_dtype(zeros({2}, DType::boolean), DType::uint8); }, ErrorCode::dtype_mismatch, "bool");
}

TEST_CASE("a gradient goes through a view of the same dtype, and never through the bits of another one") {
  const Tensor x = iota<double>({2}).set_requires_grad(true);
  sum(view_dtype(x, DType::float64)).backward();
  CHECK(of(x.grad()) == Values{1, 1});
  const Tensor halves = zeros({2}, DType::float16).set_requires_grad(true);
  const char* const text = "the bits of one have no gradient in the other";
  check_refused([&] { sum(view_dtype(halves, DType::bfloat16)).backward(); }, ErrorCode::autograd, text);
  // A write to the one is seen by the other.
  const auto written = [&](bool through_view) {
    Tensor base = assign(halves), view = view_dtype(base, DType::bfloat16);
    scale_(through_view ? view : base, 2);
    sum(through_view ? base : view).backward();
  };
  check_refused([&] { written(true); }, ErrorCode::autograd, text);
  check_refused([&] { written(false); }, ErrorCode::autograd, text);
  Tensor base = assign(halves), bits = view_dtype(base, DType::int32);
  scale_(base, 2);
  check_refused([&] { fill_(bits, 0); }, ErrorCode::autograd, "cannot write argument");
}

TEST_CASE("a view of a resharded view of another dtype follows the source of both, and writes to it") {
  run_ranks(4, [](Rank& rank) {
    const PolicyScope sync(rank, {.view = ViewPolicy::sync});
    const ProcessMesh* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
    Tensor x = distribute(Tensor::from_data(std::vector<int64_t>(12, 1), {3, 4}), DistSpec::parse(mesh, "a, b"));
    const Tensor halves = view_dtype(x, DType::int32);  // of whole rows
    Tensor row = reshape(halves, {24});                 // of other shards than those of the rows
    std::vector<int32_t> expected(24, 0);
    for (size_t i = 0; i < 24; i += 2) expected[i] = 1;
    check(full_equals(row, expected), "the row");
    fill_(x, 5);
    for (size_t i = 0; i < 24; i += 2) expected[i] = 5;
    check(full_equals(row, expected), "the row after a write to x");
    check(full_equals(halves, expected), "the view after a write to x");
    fill_(row, 2);
    check(full_equals(x, std::vector<int64_t>(12, 0x0000000200000002)), "x after a write to the row");
    check(full_equals(halves, std::vector<int32_t>(24, 2)), "the view after a write to the row");
  });
}

TEST_CASE("average_accumulates_ moves sums, and begins windows of at most so many accumulates") {
  const auto step = [](int64_t count, int64_t updates, float window, int64_t most, int64_t least) {
    Tensor s1 = reals({1, 2}, {2}), s2 = reals({10, 20}, {2}), s3 = reals({100, 200}, {2});
    Tensor counts = whole({count}, {1}), old_counts = whole({5}, {1}), all = whole({updates}, {1});
    average_accumulates_(reals({3, 4}, {2}), s1, s2, s3, counts, old_counts, all, window, most, least);
    CHECK(of(all) == Values{static_cast<double>(updates) + 1});
    return std::vector<Values>{of(s1), of(s2), of(s3), of(counts), of(old_counts)};
  };
  CHECK(step(3, 9, 0.5f, 100, 2) == std::vector<Values>{{4, 6}, {10, 20}, {100, 200}, {4}, {5}});
  CHECK(step(4, 9, 0.5f, 100, 2) == std::vector<Values>{{0, 0}, {0, 0}, {14, 26}, {0}, {5}});
  CHECK(step(2, 9, 0.5f, 3, 2) == std::vector<Values>{{0, 0}, {0, 0}, {14, 26}, {0}, {3}});
  CHECK(step(4, 9, 0.5f, 100, 6) == std::vector<Values>{{4, 6}, {10, 20}, {100, 200}, {5}, {5}});
  CHECK(step(6, 9, 0.7f, 100, 2) == std::vector<Values>{{0, 0}, {0, 0}, {14, 26}, {0}, {7}});
  CHECK(step(1, 16383, 0.5f, 100, 50) == std::vector<Values>{{0, 0}, {14, 26}, {100, 200}, {2}, {5}});
}

TEST_CASE("average_accumulates_ refuses arguments that do not fit") {
  const auto refused = [](const Tensor& param, Tensor sum, Tensor count, int64_t least, ErrorCode code,
                          const char* text) {
    Tensor s2 = zeros({2}), s3 = zeros({2}), old = whole({0}, {1}), all = whole({0}, {1});
    check_refused([&] { average_accumulates_(param, sum, s2, s3, count, old, all, 0.5f, 100, least); }, code, text);
  };
  const Tensor x = zeros({2}), one = whole({0}, {1});
  refused(zeros({2}, DType::int32), x, one, 1, ErrorCode::dtype_mismatch, "param");
  refused(x, zeros({3}), one, 1, ErrorCode::shape_mismatch, "in_sum_1");
  refused(x, zeros({2}, DType::float64), one, 1, ErrorCode::dtype_mismatch, "in_sum_1");
  refused(x, x, zeros({1}), 1, ErrorCode::dtype_mismatch, "in_num_accumulates");
  refused(x, x, one, 101, ErrorCode::invalid_argument, "min_average_window is 101");
}

TEST_CASE("auc is the area that pairs of rows make up, and a sliding window forgets old calls") {
  const Tensor x = reals({0.9, 0.6, 0.55, 0.2}, {4, 1}), label = whole({1, 0, 1, 0}, {4});
  const Tensor none = zeros({1, 101}, DType::int64);
  const auto [area, positive, negative] = auc(x, label, none, none, {}, "ROC", 100, 0);
  CHECK(area.dtype() == DType::float64);
  CHECK(of(area) == Values{0.75});  // three of four pairs are in order
  CHECK(of(std::get<0>(auc(reals({0.5, 0.5}, {1, 2}), whole({1}, {1}), positive, negative, {}, "ROC", 100, 0))) ==
        Values{4.0 / 6});
  Tensor pos = zeros({2 * 11 + 1}, DType::int64), neg = pos;
  std::tie(std::ignore, pos, neg) = auc(x, label, pos, neg, {}, "ROC", 10, 1);
  CHECK(of(pos)[22] == 1);
  Tensor latest;
  std::tie(latest, pos, neg) = auc(reals({1, 0}, {2, 1}), whole({1, 0}, {2}), pos, neg, {}, "ROC", 10, 1);
  CHECK(of(latest) == Values{1});
  CHECK(of(std::get<0>(auc(zeros({0, 2}), zeros({0}, DType::int32), none, none, {}, "ROC", 100, 0))) == Values{0});
}

TEST_CASE("auc refuses arguments that do not fit") {
  const Tensor x = zeros({2, 2}), label = zeros({2}, DType::int64), stat = zeros({1, 4}, DType::int64);
  const auto refused = [&](const Tensor& x_, const Tensor& label_, const Tensor& stat_, const Tensor& weight,
                           const char* curve, int thresholds, int steps, ErrorCode code, const char* text) {
    check_refused([&] { auc(x_, label_, stat_, stat_, weight, curve, thresholds, steps); }, code, text);
  };
  refused(x, label, stat, {}, "PR", 3, 0, ErrorCode::invalid_argument, "curve is 'PR'");
  refused(x, label, stat, {}, "ROC", 0, 0, ErrorCode::invalid_argument, "num_thresholds is 0");
  refused(x, label, stat, {}, "ROC", 3, -1, ErrorCode::invalid_argument, "slide_steps -1");
  refused(x, label, stat, {}, "ROC", 3, 1, ErrorCode::shape_mismatch, "must be i64[9]");
  refused(x, label, cast(stat, DType::int32), {}, "ROC", 3, 0, ErrorCode::dtype_mismatch, "stat_pos");
  refused(zeros({2, 3}), label, stat, {}, "ROC", 3, 0, ErrorCode::shape_mismatch, "x is f32[2, 3]");
  refused(x, zeros({3}, DType::int64), stat, {}, "ROC", 3, 0, ErrorCode::shape_mismatch, "label is i64[3]");
  refused(x, x, stat, {}, "ROC", 3, 0, ErrorCode::dtype_mismatch, "label");
  refused(x, label, stat, zeros({2}), "ROC", 3, 0, ErrorCode::dtype_mismatch, "ins_tag_weight");
  refused(full({2, 2}, 1.5), label, stat, {}, "ROC", 3, 0, ErrorCode::out_of_range, "x is 1.5 at element [0, 1]");
  refused(full({2, 2}, std::numeric_limits<double>::quiet_NaN()), label, stat, {}, "ROC", 3, 0, ErrorCode::out_of_range,
          "nan");
  refused(x, label, full({9}, -1, DType::int64), {}, "ROC", 3, 1, ErrorCode::out_of_range, "the number of calls");
}

}  // namespace writing_test
