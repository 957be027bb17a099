// margin_cross_entropy: what its cases do not show, which are ends of the cosines, 16 bits, sharded classes, and errors.
#include <catch2/catch.hpp>

#include <cmath>
#include <vector>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace margin_test {

using namespace shard;
using namespace shard::test;

namespace {

using Values = std::vector<double>;

Tensor reals(const Values& values, const Dims& dims) { return Tensor::from_data(values, dims); }
Tensor labels(const std::vector<int64_t>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
}
Values of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }
Tensor loss_of(const Tensor& logits, const Tensor& label, float margin1, float margin2, float margin3, float scale) {
  return std::get<1>(margin_cross_entropy(logits, label, false, 0, 0, 1, margin1, margin2, margin3, scale));
}

bool near(const Values& a, const Values& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= tolerance)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("margin_cross_entropy without margins is the cross entropy of scaled logits") {
  const Tensor x = reals({0.5, -0.25, 2, -3, 0, 1}, {2, 3}), label = labels({2, 0});
  const Tensor scaled = scale(x, 4);
  CHECK(of(loss_of(x, label, 1, 0, 0, 4)) == of(std::get<1>(cross_entropy_with_softmax(scaled, label))));
}

TEST_CASE("margin_cross_entropy turns the angle of the label alone") {
  // cos(2 * 60 degrees) is -1/2, minus 1/2 is -1: the loss is log(1 + exp(0.5 + 1)).
  const Tensor x = reals({0.5, 0.5}, {1, 2});
  const auto [softmax, loss] = margin_cross_entropy(x, labels({1}), true, 0, 0, 1, 2, 0, 0.5f, 1);
  CHECK(loss.dims() == Dims{1, 1});
  CHECK(near(of(loss), {std::log1p(std::exp(1.5))}, 1e-14));
  CHECK(near(of(softmax), {1 / (1 + std::exp(-1.5)), 1 / (1 + std::exp(1.5))}, 1e-14));
}

TEST_CASE("margin_cross_entropy of cosines of 1 is finite and has an infinite slope, and beyond it is NaN") {
  const Tensor x = reals({1, 0, -1, 0, 2, 0}, {3, 2}).set_requires_grad(true);
  const Tensor loss = loss_of(x, labels({0, 0, 0}), 1, 0.5f, 0, 1);
  const Values losses = of(loss);
  CHECK(near({losses[0]}, {std::log1p(std::exp(-std::cos(0.5)))}, 1e-12));
  CHECK(std::isfinite(losses[1]));
  CHECK(std::isnan(losses[2]));
  sum(loss).backward();
  const Values slopes = of(x.grad());
  CHECK(std::isinf(slopes[0]));
  CHECK(std::isfinite(slopes[1]));
  CHECK(std::isnan(slopes[4]));
}

TEST_CASE("margin_cross_entropy of a cosine of 1 has a finite slope where an angle is only multiplied") {
  for (const bool recorded : {false, true}) {
    const Tensor x = reals({1, 0}, {1, 2}).set_requires_grad(true);
    const Tensor slopes = grad({sum(loss_of(x, labels({0}), 2, 0, 0, 1))}, {x}, {}, {.create_graph = recorded})[0];
    // cos(2 t) is 2 x^2 - 1, whose slope is 4 at 1; of the loss it is softmax - 1 there.
    CHECK(near({of(slopes.detach())[0]}, {4 * (1 / (1 + std::exp(-1.0)) - 1)}, 1e-12));
  }
}

TEST_CASE("margin_cross_entropy of 16 bits does not round what it multiplies by the scale") {
  const Values values = {0.3, 0.28, -0.9, 0.1, 0.05, 0.7};
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const Tensor x = cast(reals(values, {2, 3}), dtype), label = labels({0, 2});
    const Values expected = of(loss_of(cast(x, DType::float64), label, 1, 0.5f, 0, 64));
    const Values got = of(loss_of(x, label, 1, 0.5f, 0, 64));
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= 0.01 * expected[i]);
  }
}

TEST_CASE("margin_cross_entropy of sharded classes is that of whole ones, and so are its gradients") {
  const Values values = {0.5, -0.25, 0.1, -0.9, 0.3, 0.75, 0, 0.2, -0.6, 0.8};
  const auto results = [](const Tensor& logits, const Tensor& label) {
    const auto [softmax, loss] = margin_cross_entropy(logits, label, true, 0, 0, 1, 1.25f, 0.25f, 0.125f, 8);
    sum(loss).backward();
    return std::vector<Tensor>{softmax, loss, logits.grad()};
  };
  const std::vector<Tensor> whole = results(reals(values, {2, 5}).set_requires_grad(true), labels({4, 0}));
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Rank&) {
      const ProcessMesh* mesh = ProcessMesh::make({ranks}, {}, {"a"});
      for (const char* layout : {"-, a", "a, -"}) {
        const Tensor x = distribute(reals(values, {2, 5}), DistSpec::parse(mesh, layout)).set_requires_grad(true);
        const std::vector<Tensor> got = results(x, distribute(labels({4, 0}), DistSpec::parse(mesh, "-")));
        for (size_t i = 0; i < got.size(); ++i)
          check(near(of(full_tensor(got[i])), of(whole[i]), 1e-13),
                std::string(layout) + ", result " + std::to_string(i));
      }
    });
  }
}

TEST_CASE("margin_cross_entropy refuses labels and shapes that do not fit and takes no rows") {
  const Tensor x = zeros({2, 3});
  check_refused([&] { margin_cross_entropy(x, labels({0, 3})); }, ErrorCode::out_of_range, "label is 3 at element 1");
  check_refused([&] { margin_cross_entropy(x, labels({-100, 0})); }, ErrorCode::out_of_range, "from 0 to 2");
  check_refused([&] { margin_cross_entropy(x, labels({0})); }, ErrorCode::shape_mismatch, "[n] or [n, 1]");
  check_refused([] { margin_cross_entropy(zeros({2}), labels({0, 0})); }, ErrorCode::shape_mismatch, "[n, c]");
  check_refused([&] { margin_cross_entropy(x, zeros({2})); }, ErrorCode::dtype_mismatch, "label");
  check_refused(
      [&] {
        margin_cross_entropy(x, labels({0, 1}), false, 0, 1, 4);
      },
      ErrorCode::invalid_argument, "nranks is 4");
  const auto [softmax, loss] = margin_cross_entropy(zeros({0, 3}), labels({}));
  CHECK(softmax.dims() == Dims{0, 3});
  CHECK(loss.dims() == Dims{0, 1});
}

}  // namespace margin_test
