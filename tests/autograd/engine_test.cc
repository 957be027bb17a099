// Recording and backward on plain tensors.
#include <catch2/catch.hpp>

#include "shard/autograd/autograd.h"
#include "shard/shard.h"

namespace engine_test {

using namespace shard;

namespace {

Tensor leaf(const std::vector<double>& values, const Dims& dims) {
  return Tensor::from_data(values, dims).set_requires_grad(true);
}
Tensor leaf(const std::vector<double>& values) { return leaf(values, {static_cast<int64_t>(values.size())}); }
using Values = std::vector<double>;
Values values(const Tensor& x) { return x.to_vector<double>(); }
Tensor total(const Tensor& x) { return sum(x, {}, false); }

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::autograd);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("A leaf keeps the buffer of a gradient that nothing else refers to, and copies that of another") {
  const Tensor x = Tensor::from_data<float>({1, 2, 3}, {3});
  x.set_requires_grad(true);
  const Storage* made = nullptr;
  add_hook(x, [&](const Tensor& gradient) {
    made = gradient.get().value.storage().get();
    return Tensor();
  });
  sum(multiply(x, x)).backward();
  CHECK(x.grad().get().value.storage().get() == made);
  CHECK(x.grad().to_vector<float>() == std::vector<float>{2, 4, 6});
  const Tensor y = Tensor::from_data<float>({1, 2, 3}, {3}), given = Tensor::from_data<float>({4, 5, 6}, {3});
  y.set_requires_grad(true);
  y.backward(given);
  CHECK(y.grad().get().value.storage() != given.get().value.storage());
}

TEST_CASE("autograd: the gradient of a product") {
  const Tensor x = leaf({1, 2, 3}), y = leaf({4, 5, 6});
  const Tensor z = multiply(x, y);
  CHECK(z.requires_grad());
  CHECK_FALSE(z.is_leaf());
  total(z).backward();
  CHECK(values(x.grad()) == Values{4, 5, 6});
  CHECK(values(y.grad()) == Values{1, 2, 3});
}

TEST_CASE("autograd: gradients add up in leaves, over uses and over passes") {
  const Tensor x = leaf({1, 2});
  total(add(multiply(x, x), x)).backward();
  CHECK(values(x.grad()) == Values{3, 5});
  total(x).backward();
  CHECK(values(x.grad()) == Values{4, 6});
  x.set_grad({});
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("autograd: a gradient that was given is not written when the leaf gets more") {
  const Tensor x = leaf({1, 2});
  const Tensor given = Tensor::from_data<double>({10, 20}, {2});
  assign(x).backward(given);
  assign(x).backward(given);
  CHECK(values(x.grad()) == Values{20, 40});
  CHECK(values(given) == Values{10, 20});
}

TEST_CASE("autograd: what requires no gradient gets none") {
  const Tensor x = leaf({1, 2}), y = Tensor::from_data<double>({3, 4}, {2});
  total(multiply(x, y)).backward();
  CHECK(values(x.grad()) == Values{3, 4});
  CHECK_FALSE(y.grad().defined());
  CHECK_FALSE(multiply(y, y).requires_grad());
}

TEST_CASE("autograd: nothing is recorded under NoGrad and after detach") {
  const Tensor x = leaf({1, 2});
  {
    const NoGrad off;
    CHECK_FALSE(multiply(x, x).requires_grad());
  }
  CHECK(multiply(x, x).requires_grad());
  const Tensor d = x.detach();
  CHECK(d.shares_buffer_with(x));
  CHECK_FALSE(d.requires_grad());
  total(multiply(x, d)).backward();
  CHECK(values(x.grad()) == Values{1, 2});
}

TEST_CASE("autograd: backward twice is an error unless the graph is retained") {
  const Tensor x = leaf({3});
  const Tensor y = multiply(x, x);
  y.backward(Tensor::from_data<double>({1}, {1}), true);
  y.backward();
  CHECK(values(x.grad()) == Values{12});
  CHECK(error_of([&] { y.backward(); }) ==
        "[multiply_grad] the tensors that [multiply] saved were freed by an earlier backward. Set retain_graph in that "
        "backward, or compute the result again");
}

TEST_CASE("autograd: backward of what needs a gradient given, or has none") {
  const Tensor x = leaf({1, 2});
  CHECK_THAT(error_of([&] { multiply(x, x).backward(); }),
             Catch::Contains("has 2 elements") && Catch::Contains("grad_outputs"));
  CHECK_THAT(error_of([&] { Tensor::from_data<double>({1}, {1}).backward(); }),
             Catch::Contains("requires no gradient"));
  CHECK_THAT(error_of([&] { multiply(x, x).backward(Tensor::from_data<double>({1}, {1})); }),
             Catch::Contains("f64[1]") && Catch::Contains("f64[2]"));
}

TEST_CASE("autograd: only leaves of floating dtypes can be told to require a gradient") {
  const Tensor x = leaf({1, 2});
  CHECK_THAT(error_of([&] { multiply(x, x).set_requires_grad(false); }),
             Catch::Contains("it can be set only on a leaf"));
  CHECK_THAT(error_of([&] { Tensor::from_data<int64_t>({1}, {1}).set_requires_grad(true); }),
             Catch::Contains("no floating-point dtype"));
}

TEST_CASE("autograd: grad gives gradients of any tensors and adds nothing to leaves") {
  const Tensor x = leaf({1, 2}), unused = leaf({1});
  const Tensor y = multiply(x, x);
  const Tensor z = total(multiply(y, y));
  const std::vector<Tensor> all = grad({z}, {x, y}, {}, {.retain_graph = true});
  CHECK(values(all[0]) == Values{4, 32});
  CHECK(values(all[1]) == Values{2, 8});
  CHECK_FALSE(x.grad().defined());
  CHECK_THAT(error_of([&] { grad({z}, {unused}, {}, {.retain_graph = true}); }),
             Catch::Contains("no output depends on input 0"));
  CHECK_FALSE(grad({z}, {unused}, {}, {}, true)[0].defined());
}

TEST_CASE("autograd: gradients can be differentiated") {
  const Tensor x = leaf({2, 3});
  const Tensor y = total(multiply(multiply(x, x), x));
  const Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
  CHECK(values(first) == Values{12, 27});
  const Tensor second = grad({total(first)}, {x}, {}, {.create_graph = true})[0];
  CHECK(values(second) == Values{12, 18});
  CHECK(values(grad({total(second)}, {x})[0]) == Values{6, 6});
}

TEST_CASE("autograd: hooks see gradients and may replace them") {
  const Tensor x = leaf({1, 2});
  const Tensor y = multiply(x, x);
  Values seen;
  const uint64_t hook = add_hook(y, [&](const Tensor& gradient) {
    seen = values(gradient);
    return scale(gradient, Scalar(10), Scalar(0), true);
  });
  retain_grad(y);
  total(y).backward(Tensor::from_data<double>({1}, {}), true);
  CHECK(seen == Values{1, 1});
  CHECK(values(x.grad()) == Values{20, 40});
  CHECK(values(y.grad()) == Values{10, 10});
  remove_hook(y, hook);
  x.set_grad({});
  int calls = 0;
  add_hook(x, [&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  total(y).backward();
  CHECK(calls == 1);
  CHECK(values(x.grad()) == Values{2, 4});
}

TEST_CASE("autograd: a graph of 100000 steps is built, run and freed without recursion", "[slow_in_tsan]") {
  const Tensor x = leaf({1});
  for (const bool run : {false, true}) {
    Tensor y = x;
    for (int i = 0; i < 100000; ++i) y = scale(y, Scalar(1), Scalar(0), true);
    if (run) y.backward();
  }
  CHECK(values(x.grad()) == Values{1});
}

TEST_CASE("autograd: a step that saves its own output owns no cycle") {
  Tensor x = leaf({1, 2});
  Storage* buffer = nullptr;
  Ref<Storage> held;
  {
    const Tensor y = exp(x);
    held = y.impl()->value.storage();
    buffer = held.get();
    CHECK_FALSE(buffer->unique());
  }
  CHECK(buffer->unique());
}

TEST_CASE("autograd: what only needs a shape keeps no buffer") {
  const Tensor x = leaf({1, 2});
  Tensor big = multiply(x, x);
  const Ref<Storage> held = big.impl()->value.storage();
  const Tensor y = reshape(assign(big), {1, 2});
  const Tensor z = total(big);
  big = {};
  CHECK(held->unique());
  z.backward();
  CHECK(values(x.grad()) == Values{2, 4});
}

TEST_CASE("autograd: an op without a gradient is an error where one is wanted through it, and only there") {
  const Tensor x = leaf({3, 1, 2});
  const Tensor picked = std::get<0>(unique(x, true, true, true, DType::int64));
  const std::string text = error_of([&] { total(picked).backward(); });
  CHECK_THAT(text, Catch::Contains("[unique] has no gradient") && Catch::Contains("detach()"));
  CHECK_FALSE(greater_than(x, x).requires_grad());
  CHECK_FALSE(full_like(x, Scalar(1)).requires_grad());
}

}  // namespace engine_test
