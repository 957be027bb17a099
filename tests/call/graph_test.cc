// Ops of graph.yaml: what their cases do not show, which are errors, ends, ties, and values that are not numbers.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "shard/shard.h"
#include "support/mesh_run.h"
#include "support/sanitized.h"

namespace graph_test {

using namespace shard;
using namespace shard::test;

namespace {

Tensor reals(const std::vector<double>& values, const Dims& dims) { return Tensor::from_data(values, dims); }
Tensor ints(const std::vector<int64_t>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
}
std::vector<double> of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

using Values = std::vector<double>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("send_u_recv reduces the rows that arrive and has zeros where none does") {
  const Tensor x = reals({0, 2, 3, 1, 4, 5, 2, 6, 7}, {3, 3});
  const Tensor from = ints({0, 1, 2, 0}), to = ints({1, 2, 1, 0});
  CHECK(of(send_u_recv(x, from, to)) == Values{0, 2, 3, 2, 8, 10, 1, 4, 5});
  CHECK(of(send_u_recv(x, from, to, "MEAN")) == Values{0, 2, 3, 1, 4, 5, 1, 4, 5});
  CHECK(of(send_u_recv(x, from, to, "MIN", {4})) == Values{0, 2, 3, 0, 2, 3, 1, 4, 5, 0, 0, 0});
  CHECK(of(send_u_recv(x, from, to, "MAX")) == Values{0, 2, 3, 2, 6, 7, 1, 4, 5});
  CHECK(of(send_u_recv(cast(scale(x, -1), DType::int32), from, ints({0, 0, 1, 1}), "MEAN", {2})) ==
        Values{0, -3, -4, -1, -4, -5});
}

TEST_CASE("messages of rows with other dims are broadcast") {
  const Tensor x = reals({1, 2}, {2, 1}), y = reals({10, 20, 30, 40, 50, 60}, {3, 2});
  const Tensor from = ints({0, 1, 1}), to = ints({1, 1, 0});
  CHECK(of(send_ue_recv(x, y, from, to)) == Values{52, 62, 43, 63});
  CHECK(of(send_ue_recv(x, y, from, to, "MUL")) == Values{100, 120, 70, 100});
  CHECK(of(send_uv(x, reals({1, 2, 3, 4}, {2, 2}), from, to)) == Values{4, 5, 5, 6, 3, 4});
  CHECK(send_uv(zeros({2, 3}), zeros({5, 4, 1, 1}), from, to).dims() == Dims{3, 4, 1, 3});
}

TEST_CASE("NaN wins among messages, and an infinity of another row does not reach a row") {
  const Tensor x = reals({kNaN, 1, 2, std::numeric_limits<double>::infinity()}, {4});
  for (const char* const reduce_op : {"MIN", "MAX"}) {
    const Values out = of(send_u_recv(x, ints({1, 0, 2, 3}), ints({0, 0, 1, 2}), reduce_op));
    CHECK(std::isnan(out[0]));
    CHECK(out[1] == 2);
    CHECK(std::isinf(out[2]));
  }
}

TEST_CASE("each of several equal messages gets all of the gradient of a minimum or maximum") {
  const Tensor x = reals({5, 5, 1}, {3}).set_requires_grad(true);
  send_u_recv(x, ints({0, 1, 2}), ints({0, 0, 0}), "MAX").backward(reals({2, 0, 0}, {3}));
  CHECK(of(x.grad()) == Values{2, 2, 0});
  const Tensor z = reals({5, 5, 1}, {3}).set_requires_grad(true);
  segment_pool(z, ints({0, 0, 0}), "MAX").backward(reals({2}, {1}));
  CHECK(of(z.grad()) == Values{2, 2, 0});
  // An edge that is there twice passes it twice.
  const Tensor w = reals({5}, {1}).set_requires_grad(true);
  send_u_recv(w, ints({0, 0}), ints({0, 0}), "MIN").backward(reals({1}, {1}));
  CHECK(of(w.grad()) == Values{2});
}

TEST_CASE("gradients of means pass rows where nothing arrives") {
  const Tensor x = reals({1, 2, 3}, {3}).set_requires_grad(true);
  const Tensor out = send_u_recv(x, ints({0, 1}), ints({2, 2}), "MEAN", {5});
  CHECK(of(out) == Values{0, 0, 1.5, 0, 0});
  out.backward(reals({7, std::numeric_limits<double>::infinity(), 4, 8, 9}, {5}));
  CHECK(of(x.grad()) == Values{2, 2, 0});
}

TEST_CASE("segment_pool has a row for each id up to the last") {
  const Tensor x = reals({1, 2, 3, 4, 5, 7}, {3, 2}), ids = cast(ints({1, 1, 3}), DType::int32);
  CHECK(of(segment_pool(x, ids)) == Values{0, 0, 4, 6, 0, 0, 5, 7});
  CHECK(of(segment_pool(x, ids, "MEAN")) == Values{0, 0, 2, 3, 0, 0, 5, 7});
  CHECK(of(segment_pool(x, ids, "MIN")) == Values{0, 0, 1, 2, 0, 0, 5, 7});
  CHECK(of(segment_pool(x, ids, "MAX")) == Values{0, 0, 3, 4, 0, 0, 5, 7});
  CHECK(segment_pool(zeros({0, 4}), ints({})).dims() == Dims{0, 4});
}

TEST_CASE("segment_pool refuses ids that are negative, too large, or not in order") {
  const Tensor x = zeros({3, 2});
  const auto refused = [&](const Tensor& ids, ErrorCode code, const char* text) {
    check_refused([&] { segment_pool(x, ids); }, code, text);
  };
  refused(ints({0, -1, 2}), ErrorCode::out_of_range, "segment_ids is -1 at element 1");
  refused(ints({0, 2, 1}), ErrorCode::invalid_argument, "segment_ids is 1 at element 2, after 2");
  refused(ints({0, 1, std::numeric_limits<int64_t>::max()}), ErrorCode::out_of_range, "at element 2");
  refused(ints({0, 1}), ErrorCode::shape_mismatch, "must be [3]");
  refused(x, ErrorCode::dtype_mismatch, "segment_ids");
  check_refused([&] { segment_pool(x, ints({0, 0, 0}), "PROD"); }, ErrorCode::invalid_argument, "pooltype is 'PROD'");
}

TEST_CASE("scratch of ops of graphs that does not fit into memory is an error of the library") {
  if (test::kSanitized) return test::skip_kept_memory();  // they end the process instead
  const Tensor x = zeros({3, 0});                         // so that results have no elements, whatever their rows
  const int64_t rows = int64_t{1} << 50;
  check_refused([&] { segment_pool(x, ints({0, 1, rows})); }, ErrorCode::device, "out of memory for scratch");
  check_refused(
      [&] {
        send_u_recv(x, ints({0, 1}), ints({0, 1}), "SUM", {rows});
      },
      ErrorCode::device, "out of memory for scratch");
}

TEST_CASE("ops of graphs refuse arguments that do not fit") {
  const Tensor x = zeros({3, 2}), two = ints({0, 1});
  const auto bad_index = [&](const Tensor& from, const Tensor& to, ErrorCode code, const char* text) {
    check_refused([&] { send_u_recv(x, from, to, "SUM", {2}); }, code, text);
  };
  bad_index(ints({0, 3}), two, ErrorCode::out_of_range, "src_index is 3 at element 1");
  bad_index(ints({-1, 0}), two, ErrorCode::out_of_range, "src_index is -1 at element 0");
  bad_index(two, ints({0, 2}), ErrorCode::out_of_range, "dst_index is 2 at element 1, but must be from 0 to 1");
  bad_index(two, ints({0}), ErrorCode::shape_mismatch, "both must be [edges]");
  bad_index(reshape(two, {2, 1}), reshape(two, {2, 1}), ErrorCode::shape_mismatch, "both must be [edges]");
  bad_index(x, two, ErrorCode::dtype_mismatch, "src_index");
  check_refused([&] { send_u_recv(x, two, two, "sum"); }, ErrorCode::invalid_argument, "reduce_op is 'sum'");
  check_refused([&] { send_u_recv(x, two, two, "SUM", {1, 2}); }, ErrorCode::invalid_argument, "out_size");
  check_refused([&] { send_u_recv(zeros({}), two, two); }, ErrorCode::shape_mismatch, "x is");
  check_refused([&] { send_u_recv(zeros({3}, DType::boolean), two, two); }, ErrorCode::dtype_mismatch, "numbers");
  check_refused([&] { send_ue_recv(x, x, two, two); }, ErrorCode::shape_mismatch, "a row for each edge");
  check_refused([&] { send_ue_recv(x, zeros({2, 3}), two, two); }, ErrorCode::shape_mismatch, "a row of y");
  check_refused([&] { send_ue_recv(x, zeros({2}, DType::int32), two, two); }, ErrorCode::dtype_mismatch, "y");
  check_refused([&] { send_ue_recv(x, zeros({2}), two, two, "SUB"); }, ErrorCode::invalid_argument, "is 'SUB'");
  check_refused([&] { send_ue_recv(x, zeros({2}), two, ints({0, 5})); }, ErrorCode::out_of_range, "dst_index is 5");
  check_refused([&] { send_uv(x, zeros({1}), two, two); }, ErrorCode::out_of_range, "dst_index is 1 at element 1");
  check_refused([&] { send_uv(x, x, two, two, "DIV"); }, ErrorCode::invalid_argument, "message_op is 'DIV'");
}

TEST_CASE("ops of graphs take empty ones") {
  const Tensor none = ints({});
  CHECK(of(send_u_recv(zeros({2, 1}), none, none, "MAX")) == Values{0, 0});
  CHECK(send_u_recv(zeros({0, 3}), none, none, "MEAN").dims() == Dims{0, 3});
  CHECK(send_uv(zeros({2, 3}), zeros({0, 3}), none, none).dims() == Dims{0, 3});
  const Tensor x = zeros({0, 2}, DType::float64).set_requires_grad(true), y = zeros({3, 2}, DType::float64);
  sum(send_uv(x, y, none, none, "MUL")).backward();
  CHECK(x.grad().dims() == Dims{0, 2});
}

TEST_CASE("results of ops of graphs do not depend on the number of threads") {
  const int64_t nodes = 500, edges = 20000;
  std::vector<int64_t> from, to;
  std::vector<float> values;
  for (int64_t i = 0; i < edges; ++i) {
    from.push_back(i * 7919 % nodes);
    to.push_back(i * i % 97);  // few rows get many messages
  }
  for (int64_t i = 0; i < nodes * 33; ++i) values.push_back(1.0f / static_cast<float>(i + 1));
  const Tensor x = Tensor::from_data(values, {nodes, 33});
  const Tensor out = send_u_recv(x, ints(from), ints(to));
  std::vector<float> expected(static_cast<size_t>(nodes * 33), 0.0f);
  for (size_t e = 0; e < from.size(); ++e) {
    for (size_t c = 0; c < 33; ++c)
      expected[static_cast<size_t>(to[e]) * 33 + c] += values[static_cast<size_t>(from[e]) * 33 + c];
  }
  CHECK(out.to_vector<float>() == expected);  // added up in the order of the edges
}

}  // namespace graph_test
