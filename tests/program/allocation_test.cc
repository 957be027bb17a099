// What runs of captured functions allocate: the numbers do not depend on the program, except for results that the
// caller gets.
#include <catch2/catch.hpp>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/allocations.h"
#include "support/tensors.h"

namespace allocation_test {

using namespace shard;
using namespace shard::test;

namespace {

/// The allocations of one more call, after a few.
Allocations of_a_run(CapturedFunction& captured, const Tensors& inputs) {
  for (int run = 0; run < 3; ++run) captured(inputs);
  return allocated([&] { captured(inputs); });
}

enum class Gradients { added, dropped, made };

/// Training steps of linear layers on one rank: gradients are added to those of the run before, dropped after use,
/// or left to the caller.
Allocations of_training(int layers, bool on_mesh, Gradients gradients) {
  Allocations found;
  run_ranks(1, [&](Rank&) {
    const auto make = [&](const Dims& dims, double start) {
      return on_mesh ? distribute(iota<double>(dims, start), DistSpec::replicated(ProcessMesh::make({1}), dims.rank()))
                     : iota<double>(dims, start);
    };
    Tensors weights;
    for (int i = 0; i < layers; ++i) {
      weights.push_back(make({3, 3}, -4).set_requires_grad(true));
      weights.push_back(make({3}, -1).set_requires_grad(true));
    }
    const Tensor rate = make({1}, 1e-3);
    CapturedFunction captured(
        [&](const Tensors& in) -> Tensors {
          Tensor x = in[0], none;
          for (size_t i = 0; i < weights.size(); i += 2) x = tanh(add(matmul(x, weights[i]), weights[i + 1]));
          const Tensor loss = mean(multiply(x, x), {}, false);
          for (const Tensor& w : weights) {
            if (gradients == Gradients::made) w.set_grad({});
          }
          loss.backward();
          const NoGrad off;
          for (Tensor& w : weights) {
            sgd_(w, rate, w.grad(), none);
            if (gradients == Gradients::dropped) w.set_grad({});
          }
          return {loss};
        },
        {});
    found = of_a_run(captured, {make({4, 3}, 0)});
  });
  return found;
}

}  // namespace

TEST_CASE(
    "29: a run of 100 ops allocates what one of 10 does: two lists of tensors, one of buffers, and the output's "
    "handle") {
  if (counting_is_skipped()) return;
  for (const int64_t size : {16, 6000}) {  // the larger ones run in loops, and are too small for the cache of blocks
    for (const int ops : {10, 100}) {
      CapturedFunction captured(
          [&](const Tensors& in) -> Tensors {
            Tensor x = in[0];
            for (int i = 0; i < ops; ++i) x = i % 2 == 0 ? tanh(x) : add(x, in[1]);
            return {x};
          },
          {});
      const Tensors in = {iota<double>({size}), iota<double>({size})};
      CHECK(of_a_run(captured, in) == Allocations{3, 1});
      const Tensor held = captured(in)[0];  // its buffer is held by the caller
      // Of a large one the storage and its bytes, which a small one has in one block.
      CHECK(allocated([&] { captured(in); }) == Allocations{3, size == 16 ? 2 : 3});
    }
  }
}

TEST_CASE(
    "32: a training step of 6 layers allocates what one of 2 does, and each gradient that it leaves a handle and a "
    "buffer") {
  if (counting_is_skipped()) return;
  for (const bool on_mesh : {false, true}) {
    for (const int layers : {2, 6}) {
      CHECK(of_training(layers, on_mesh, Gradients::added) == Allocations{4, 1});
      CHECK(of_training(layers, on_mesh, Gradients::dropped) == Allocations{4, 1});
      const Allocations left = of_training(layers, on_mesh, Gradients::made);
      CHECK(left.buffers == 4 * layers + 1);  // of two gradients for each layer
      CHECK(left.objects <= 4 + 5);           // a list of them, which grows
    }
  }
}

}  // namespace allocation_test
