// In-place ops and views: statements 26 to 28 of docs/semantics.md.
#include <catch2/catch.hpp>

#include "shard/autograd/autograd.h"
#include "shard/shard.h"

namespace inplace_test {

using namespace shard;

namespace {

Tensor leaf(const std::vector<double>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())}).set_requires_grad(true);
}
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

TEST_CASE("26: an in-place op continues the history of its target") {
  const Tensor x = leaf({-1, 2, 3});
  Tensor y = multiply(x, x);
  scale_(y, Scalar(3), Scalar(0), true);
  relu_(y);
  total(y).backward();
  CHECK(values(x.grad()) == Values{-6, 12, 18});
}

TEST_CASE("26: an in-place op whose gradient needs the old value saves it first") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  Tensor y = assign(x);
  multiply_(y, w);
  multiply_(y, y);
  total(y).backward();
  // d/dx (x w)^2 = 2 x w^2
  CHECK(values(x.grad()) == Values{18, 64});
  CHECK(values(w.grad()) == Values{6, 32});
}

TEST_CASE("26: a leaf that requires a gradient, or a view of one, is not written where calls are recorded") {
  Tensor x = leaf({1, 2});
  const uint64_t before = x.version();
  CHECK_THAT(error_of([&] { add_(x, x); }),
             Catch::Contains("[add_] cannot write argument 'x'") && Catch::Contains("a leaf that requires a gradient"));
  Tensor view = reshape(x, {1, 2});
  CHECK_THAT(error_of([&] { relu_(view); }), Catch::Contains("a view of a leaf"));
  CHECK(x.version() == before);
  CHECK(values(x) == Values{1, 2});
  const NoGrad off;
  add_(x, x);
  CHECK(values(x) == Values{2, 4});
  CHECK(x.version() == before + 1);
}

TEST_CASE("26: an in-place write through a view reaches the gradient of what it is a view of") {
  const Tensor x = leaf({1, 2, 3, 4});
  Tensor base = multiply(x, x);
  Tensor view = reshape(base, {2, 2});
  Tensor other = flatten(view, 0, 1);
  scale_(view, Scalar(5), Scalar(0), true);
  total(base).backward(Tensor::from_data<double>({1}, {}), true);
  CHECK(values(x.grad()) == Values{10, 20, 30, 40});
  x.set_grad({});
  total(other).backward(Tensor::from_data<double>({1}, {}), true);
  CHECK(values(x.grad()) == Values{10, 20, 30, 40});
  x.set_grad({});
  square_(base);  // and a write to the base reaches the views: (5 x^2)^2
  total(view).backward();
  CHECK(values(x.grad()) == Values{100, 800, 2700, 6400});
}

TEST_CASE("26: a write of what needs a gradient into a view of what needed none") {
  const Tensor x = leaf({1, 2});
  Tensor base = Tensor::from_data<double>({10, 20}, {2});
  Tensor view = reshape(base, {1, 2});
  add_(view, reshape(multiply(x, x), {1, 2}));
  CHECK(base.requires_grad());
  total(base).backward();
  CHECK(values(x.grad()) == Values{2, 4});
}

TEST_CASE("26: a view that was made where nothing is recorded requires no gradient") {
  const Tensor x = leaf({1, 2});
  const Tensor y = multiply(x, x);
  const auto made = [&] {
    const NoGrad off;
    return reshape(y, {1, 2});
  };
  CHECK_FALSE(made().requires_grad());
  CHECK(reshape(y, {1, 2}).requires_grad());
}

TEST_CASE("26: another shape of a view is no write, and leaves the history of what it is a view of") {
  const Tensor x = leaf({1, 2});
  const Tensor y = multiply(x, x);
  Tensor view = reshape(y, {1, 2});
  reshape_(view, {2, 1});
  CHECK_FALSE(grad({total(y)}, {view}, {}, {.retain_graph = true}, true)[0].defined());
  CHECK(values(grad({total(view)}, {x})[0]) == Values{2, 4});
}

TEST_CASE("26: a leaf that was given another shape since it was recorded is an error") {
  Tensor x = leaf({1, 2});
  const Tensor out = total(multiply(x, x));
  {
    const NoGrad off;
    reshape_(x, {2, 1});
  }
  CHECK_THAT(error_of([&] { out.backward(); }), Catch::Contains("f64[2, 1] was f64[2] when it was recorded"));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("27: two batch_norms that update the same statistics can both be gone through backwards") {
  const Tensor mean = Tensor::from_data<double>({0, 0}, {2}), variance = Tensor::from_data<double>({1, 1}, {2});
  const auto forward = [&](const Tensor& x) { return std::get<0>(batch_norm(x, mean, variance, {}, {})); };
  const std::vector<double> first = {1, 2, 3, 5, 8, 13}, second = {4, 1, 1, 2, 7, 3}, weights = {1, -2, 3, 0.5, 2, -1};
  const Tensor weight = Tensor::from_data(weights, {3, 2});
  const auto alone = [&](const std::vector<double>& data) {
    const Tensor x = Tensor::from_data(data, {3, 2}).set_requires_grad(true);
    total(multiply(forward(x), weight)).backward();
    return values(x.grad());
  };
  const Values first_alone = alone(first), second_alone = alone(second);
  const Tensor a = Tensor::from_data(first, {3, 2}).set_requires_grad(true),
               b = Tensor::from_data(second, {3, 2}).set_requires_grad(true);
  const Tensor loss_a = total(multiply(forward(a), weight)), loss_b = total(multiply(forward(b), weight));
  loss_a.backward();
  loss_b.backward();
  CHECK(values(a.grad()) == first_alone);  // in training the statistics are those of the batch
  CHECK(values(b.grad()) == second_alone);
}

TEST_CASE("27: what only an unwanted gradient reads is not saved") {
  const Tensor w = leaf({3, 4}), x = Tensor::from_data<double>({1, 2}, {2});
  Tensor y = multiply(w, w);
  const Tensor product = multiply(y, x);  // the gradient of y reads x, and that of x is not wanted
  relu_(y);
  total(product).backward();
  CHECK(values(w.grad()) == Values{6, 16});
  Tensor quotient = divide(w, x);  // the result is read for the gradient of x alone
  relu_(quotient);
  total(quotient).backward();
  CHECK(values(w.grad()) == Values{7, 16.5});
  Tensor other = divide(x, w);
  scale_(other, Scalar(2), Scalar(0), true);
  CHECK_THAT(error_of([&] { total(other).backward(); }),
             Catch::Contains("[divide_grad] output 'out'") && Catch::Contains("last by [scale_]"));
}

TEST_CASE("28: a saved tensor that was written since is an error that names who saved, who wrote, and from where") {
  const Tensor x = leaf({1, 2});
  Tensor y = multiply(x, x);
  const int saved = __LINE__ + 1;
  const Tensor z = multiply(y, y);
  const int written = __LINE__ + 1;
  relu_(y);
  const std::string text = error_of([&] { total(z).backward(); });
  CHECK_THAT(
      text, Catch::Contains("[multiply_grad] argument '") && Catch::Contains("' (f64[2]) was saved by [multiply] at "));
  CHECK_THAT(text, Catch::Contains("inplace_test.cc:" + std::to_string(saved) +
                                   " for its gradient and has been written since, last by [relu_] at "));
  CHECK_THAT(text, Catch::Contains("inplace_test.cc:" + std::to_string(written) + ": it was at version 0 and is at 1"));
}

TEST_CASE("28: the error tells the views between, of who saved and of who wrote") {
  const Tensor x = leaf({1, 2});
  Tensor y = multiply(x, x);
  const Tensor view = flatten(reshape(y, {1, 2}), 0, 1);
  const Tensor z = multiply(view, view);
  Tensor other = squeeze(unsqueeze(y, {1}), {1});
  const int written = __LINE__ + 1;
  relu_(other);
  const std::string text = error_of([&] { total(z).backward(); });
  CHECK_THAT(text, Catch::Contains("which is a view by flatten of reshape, was saved by [multiply] at "));
  CHECK_THAT(text, Catch::Contains("inplace_test.cc:" + std::to_string(written) +
                                   " through a view by squeeze of unsqueeze: "));
}

TEST_CASE("28: an op that is made of others is called where the program calls it") {
  Tensor x = leaf({1, 2});
  Tensor y = multiply(x, x);
  const Tensor z = multiply(y, y);
  const auto halve = [](Tensor& target, CallSite site = CallSite::here()) {
    scale_(target, Scalar(0.5), Scalar(0), true, site);
  };
  const int written = __LINE__ + 1;
  halve(y);
  CHECK_THAT(error_of([&] { total(z).backward(); }),
             Catch::Contains("last by [scale_] at ") && Catch::Contains("inplace_test.cc:" + std::to_string(written)));
}

TEST_CASE("28: a write under NoGrad is found out too") {
  const Tensor x = leaf({1, 2});
  Tensor w = Tensor::from_data<double>({3, 4}, {2});
  const Tensor z = multiply(x, w);
  add_(w, w);
  CHECK_THAT(error_of([&] { total(z).backward(); }), Catch::Contains("argument 'y'") && Catch::Contains("[add_]"));
}

TEST_CASE("26: a view has the history of the writes before its source got a buffer of its own") {
  const Tensor x = leaf({1, 2});
  Tensor base = multiply(x, x);
  const Tensor view = reshape(base, {1, 2});
  scale_(base, Scalar(5), Scalar(0), true);
  cast_(base, DType::float32);
  CHECK(values(view) == Values{5, 20});
  total(view).backward();
  CHECK(values(x.grad()) == Values{10, 20});
}

TEST_CASE("26: a retained gradient is that of the value which the tensor has now, as grad has it") {
  const Tensor x = leaf({1, 2});
  Tensor h = multiply(x, x);
  retain_grad(h);
  scale_(h, Scalar(3), Scalar(0), true);
  multiply_(h, x);
  const Tensor loss = total(multiply(h, h));
  const Values expected = values(grad({loss}, {h}, {}, {.retain_graph = true})[0]);
  CHECK(expected == Values{6, 48});  // 2 h, and h is 3 x^3
  h.set_grad({});
  loss.backward();
  CHECK(values(h.grad()) == expected);
  CHECK(values(x.grad()) == Values{54, 1728});
}

TEST_CASE("26: a retained gradient follows a write through a view, and a view follows a write of its base") {
  const Tensor x = leaf({1, 2});
  Tensor base = multiply(x, x);
  Tensor view = reshape(base, {2, 1});
  retain_grad(base);
  retain_grad(view);
  scale_(view, Scalar(3), Scalar(0), true);
  const Tensor first = total(multiply(base, base));
  CHECK(values(grad({first}, {view}, {}, {.retain_graph = true})[0]) ==
        Values{6, 24});  // the base is what was written through the view
  view.set_grad({});
  first.backward(Tensor::from_data<double>({1}, {}), true);
  CHECK(values(base.grad()) == Values{6, 24});
  CHECK(values(view.grad()) == Values{6, 24});
  base.set_grad({});
  view.set_grad({});
  scale_(base, Scalar(2), Scalar(0), true);
  const Tensor loss = total(multiply(view, view));
  CHECK(values(grad({loss}, {view}, {}, {.retain_graph = true})[0]) == Values{12, 48});
  loss.backward();
  CHECK(values(view.grad()) == Values{12, 48});
  CHECK(values(base.grad()) == Values{12, 48});
}

TEST_CASE("26: a retained gradient can be cleared, and is kept for no value without one") {
  const Tensor x = leaf({1, 2}), y = Tensor::from_data<double>({5, 6}, {2});
  Tensor h = multiply(x, x);
  retain_grad(h);
  const Tensor old = total(h);
  old.backward(Tensor::from_data<double>({1}, {}), true);
  CHECK(values(h.grad()) == Values{1, 1});
  h.set_grad({});
  CHECK_FALSE(h.grad().defined());
  less_than_(h, y);  // the history of h ends
  old.backward();
  CHECK_FALSE(h.grad().defined());
}

TEST_CASE(
    "26: a hook stays with the value that the tensor had, sees its gradient before retain_grad does, and can be "
    "removed after a write") {
  const Tensor x = leaf({1, 2});
  Tensor h = multiply(x, x);
  int calls = 0;
  const auto doubled = [&](const Tensor& gradient) { return ++calls, scale(gradient, Scalar(2), Scalar(0), true); };
  const uint64_t first = add_hook(h, doubled);
  scale_(h, Scalar(3), Scalar(0), true);
  retain_grad(h);
  const uint64_t second = add_hook(h, doubled);
  const Tensor loss = total(h);
  const auto backward = [&] {
    x.set_grad({});
    loss.backward(Tensor::from_data<double>({1}, {}), true);
    return values(x.grad());
  };
  CHECK(backward() == Values{24, 48});
  CHECK(values(h.grad()) == Values{2, 2});
  CHECK(calls == 2);
  remove_hook(h, first);
  CHECK(backward() == Values{12, 24});
  remove_hook(h, second);
  CHECK(backward() == Values{6, 12});
}

TEST_CASE("26: an op in place that gives a dtype without gradients ends the history") {
  const Tensor x = leaf({1, 2}), y = Tensor::from_data<double>({5, 6}, {2});
  const auto check_ended = [&](const char* op, const std::function<void(Tensor&)>& write) {
    INFO(op);
    for (const bool recorded : {true, false}) {
      Tensor h = multiply(x, x);
      const Tensor view = reshape(h, {2, 1});
      {
        const GradMode mode(recorded);
        write(h);
      }
      CHECK_FALSE(is_floating(h.dtype()));
      CHECK_FALSE(h.requires_grad());
      CHECK(h.is_leaf());
      CHECK_FALSE(cast(h, DType::float64).requires_grad());
      CHECK_THAT(error_of([&] { add_hook(h, [](const Tensor&) { return Tensor(); }); }),
                 Catch::Contains("requires no gradient"));
    }
  };
  check_ended("equal_", [&](Tensor& h) { equal_(h, y); });
  check_ended("less_than_", [&](Tensor& h) { less_than_(h, y); });
  check_ended("logical_not_", [&](Tensor& h) { logical_not_(h); });
  check_ended("cast_", [&](Tensor& h) { cast_(h, DType::int64); });
}

TEST_CASE("26: the message about a leaf that is written reads well") {
  Tensor x = leaf({1, 2});
  CHECK_THAT(error_of([&] { add_(x, x); }), Catch::Contains("it is a leaf that requires a gradient, so") &&
                                                Catch::Contains("Write it under NoGrad, as optimizers do"));
  Tensor view = reshape(x, {1, 2});
  CHECK_THAT(error_of([&] { relu_(view); }), Catch::Contains("it is a view of a leaf that requires a gradient, so"));
}

}  // namespace inplace_test
