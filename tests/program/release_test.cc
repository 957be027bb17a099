// After a capture nothing of it is held: no examples, parameters or gradients.
#include <catch2/catch.hpp>

#include <malloc.h>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace release_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Bytes that the process has allocated and not freed. 0 where malloc is not glibc's, as under sanitizers.
int64_t live_bytes() {
  const auto info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

uint32_t holders(const Tensor& x) { return x.impl()->value.storage()->use_count(); }

}  // namespace

TEST_CASE("33: a capture that is over holds none of its inputs, parameters and gradients") {
  const Tensor x = leaf({1, 2}), p = vec({3, 4}), w = leaf({5, 6});
  w.set_grad(vec({7, 8}));
  const Tensor gradient = w.grad();
  const Tensors all = {x, p, w, gradient};
  for (const bool fails : {false, true}) {
    const auto function = [&](const Tensors& in) -> Tensors {
      const Tensor out = multiply(multiply(in[0], p), w);
      total(multiply(out, w)).backward();
      if (fails) values(out);
      return {multiply(in[0], w)};
    };
    try {
      CapturedFunction(function, {}).trace({x});
      CHECK(!fails);
    } catch (const Error& error) {
      CHECK(fails);
      CHECK(error.code() == ErrorCode::capture);
    }
    for (const Tensor& each : all) CHECK(holders(each) == 1);
  }
}

TEST_CASE("33: a program that is kept holds no gradient that a leaf had") {
  const Tensor w = leaf({5, 6}), x = leaf({1, 2});
  for (const Tensor& each : {w, x}) each.set_grad(vec({7, 8}));
  const Tensors gradients = {w.grad(), x.grad()};
  const CapturedFunction captured =
      capture([&](const Tensors& in) -> Tensors { return total(multiply(in[0], w)).backward(), Tensors{}; }, {x});
  for (const Tensor& each : {w, x}) each.set_grad({});
  for (const Tensor& each : gradients) CHECK(holders(each) == 1);
}

TEST_CASE("33: a tensor that outlives its capture holds no other of it") {
  const Tensor x = vec({1, 2}), p = vec({3, 4});
  Tensors kept;
  CapturedFunction([&](const Tensors& in) -> Tensors { return kept.push_back(multiply(in[0], p)), Tensors{}; }, {})
      .trace({x});
  CHECK(holders(x) == 1);
  CHECK(holders(p) == 1);
  CHECK_THROWS_WITH(values(kept[0]), Catch::Contains("was made while a function was captured"));
}

TEST_CASE("33: captures that are dropped, and programs that others push out, leave no bytes behind") {
  constexpr int64_t kElements = 1 << 15;  // 256 KiB
  const auto once = [] {
    const Tensor w = full({kElements}, Scalar(2), DType::float64).set_requires_grad(true);
    CapturedFunction captured([&](const Tensors& in) -> Tensors { return {multiply(in[0], w)}; }, {});
    captured({full({kElements}, Scalar(1), DType::float64)});
  };
  CapturedFunction shapes([](const Tensors& in) -> Tensors { return {add(exp(in[0]), in[0])}; }, {.capacity = 4});
  const auto all_shapes = [&] {
    for (int64_t n = 1; n <= 64; ++n) shapes({full({n, 64}, Scalar(1), DType::float64)});
  };
  for (int i = 0; i < 5; ++i) once();
  all_shapes();
  const int64_t before = live_bytes();
  for (int i = 0; i < 50; ++i) once();
  for (int i = 0; i < 5; ++i) all_shapes();
  CHECK(live_bytes() - before < kElements * 8);
}

}  // namespace release_test
