// Gradients of distributed tensors.
#include <catch2/catch.hpp>

#include "api.h"
#include "autograd/autograd.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

namespace {

Tensor total(const Tensor& x) { return sum(x, {}, false); }

}  // namespace

TEST_CASE("autograd: gradients of a distributed layer equal those of one rank") {
  const std::vector<double> xs = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, ws = {1, -1, 2, 0, 3, 1};
  const auto run = [](const Tensor& x, const Tensor& w) { total(relu(matmul(x, w, false, false))).backward(); };
  const Tensor x1 = Tensor::from_data(xs, {4, 3}).set_requires_grad(true), w1 = Tensor::from_data(ws, {3, 2}).set_requires_grad(true);
  run(x1, w1);
  for (const char* x_layout : {"-, -", "p, -", "-, p"}) {
    for (const char* w_layout : {"-, -", "p, -", "-, p"}) {
      for (const int ranks : {2, 3}) {
        World::local(ranks)->run([&](Rank&) {
          const ProcessMesh* mesh = ProcessMesh::make({ranks}, {}, {"p"});
          const DistSpec* xl = DistSpec::parse(mesh, x_layout);
          const DistSpec* wl = DistSpec::parse(mesh, w_layout);
          const Tensor x = distribute(Tensor::from_data(xs, {4, 3}), xl).set_requires_grad(true);
          const Tensor w = distribute(Tensor::from_data(ws, {3, 2}), wl).set_requires_grad(true);
          run(x, w);
          REQUIRE(spec_of(x.grad()) == xl);
          REQUIRE(spec_of(w.grad()) == wl);
          REQUIRE(full(x.grad()).to_vector<double>() == x1.grad().to_vector<double>());
          REQUIRE(full(w.grad()).to_vector<double>() == w1.grad().to_vector<double>());
        });
      }
    }
  }
}

TEST_CASE("autograd: a leaf may keep its gradient pending, and buckets move several at once") {
  World::local(2)->run([&](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x = distribute(Tensor::from_data<double>({1, 2, 3, 4}, {4, 1}), DistSpec::parse(mesh, "p, -"));
    std::vector<Tensor> weights;
    for (int i = 0; i < 3; ++i) weights.push_back(distribute(Tensor::from_data<double>({1}, {1, 1}), DistSpec::parse(mesh, "-, -")).set_requires_grad(true));
    const auto forward = [&] {
      Tensor y = x;
      for (const Tensor& w : weights) y = matmul(y, w, false, false);
      return total(y);
    };
    const Tensor loss = forward();
    const uint64_t before = rank.stats().collectives;
    loss.backward();
    REQUIRE(rank.stats().collectives - before == 1);
    for (const Tensor& w : weights) REQUIRE(full(w.grad()).to_vector<double>() == std::vector<double>{10});
    set_grad_layout(weights[0], GradLayout::as_is);
    weights[0].set_grad({});
    forward().backward();
    REQUIRE(spec_of(weights[0].grad())->text() == "[-, -] sum(p)");
    REQUIRE(full(weights[0].grad()).to_vector<double>() == std::vector<double>{10});
  });
}
