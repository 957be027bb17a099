// User-defined functions and recomputed scopes.
#include <catch2/catch.hpp>
#include <thread>

#include "shard/autograd/autograd.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace custom_test {

using namespace shard;
using namespace shard::test;

namespace {

using Values = std::vector<double>;
using Tensors = std::vector<Tensor>;
Tensor leaf(const Values& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())}).set_requires_grad(true);
}
Values values(const Tensor& x) { return x.to_vector<double>(); }
Tensor total(const Tensor& x) { return sum(x, {}, false); }

/// exp(x) * y, with a gradient that reads the saved output.
CustomFunction exp_times() {
  CustomFunction function;
  function.name = "exp_times";
  function.forward = [](const Tensors& in) { return Tensors{multiply(exp(in[0]), in[1])}; };
  function.backward = [](const Tensors& in, const Tensors& out, const Tensors& grads) {
    return Tensors{multiply(grads[0], out[0]), multiply(grads[0], exp(in[0]))};
  };
  return function;
}

/// The text of the error of a call, with any code.
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

}  // namespace

TEST_CASE("autograd: a custom function has the gradient that it is given") {
  const Tensor x = leaf({0, 0}), y = leaf({2, 3});
  const Tensor out = apply(exp_times(), {x, y})[0];
  CHECK(values(out) == Values{2, 3});
  total(out).backward();
  CHECK(values(x.grad()) == Values{2, 3});
  CHECK(values(y.grad()) == Values{1, 1});
  const NoGrad off;
  CHECK_FALSE(apply(exp_times(), {x, y})[0].requires_grad());
}

TEST_CASE("autograd: the gradient of a custom function can be differentiated") {
  const Tensor x = leaf({0}), y = leaf({2});
  const Tensor out = apply(exp_times(), {x, y})[0];
  const Tensors first = grad({out}, {x}, {}, {.create_graph = true});
  const Tensors second = grad({first[0]}, {x, y});  // d/dx d/dx exp(x) y, d/dy d/dx exp(x) y
  CHECK(values(second[0]) == Values{2});
  CHECK(values(second[1]) == Values{1});
}

TEST_CASE("autograd: a custom function may return its input, and give no gradient for one") {
  CustomFunction reversed;
  reversed.name = "reversed";
  reversed.forward = [](const Tensors& in) { return Tensors{in[0], in[0]}; };
  reversed.backward = [](const Tensors&, const Tensors&, const Tensors& grads) {
    return Tensors{scale(add(grads[0], grads[1]), -1), Tensor()};
  };
  const Tensor x = leaf({1, 2}), unused = leaf({5});
  const Tensors out = apply(reversed, {x, unused});
  CHECK_FALSE(out[0].shares_buffer_with(x));
  CHECK_FALSE(out[0].shares_buffer_with(out[1]));
  total(add(out[0], scale(out[1], 3))).backward();
  CHECK(values(x.grad()) == Values{-4, -4});
  CHECK_FALSE(unused.grad().defined());
}

TEST_CASE("autograd: mistakes of a custom function are reported with its name") {
  const Tensor x = leaf({1, 2});
  CustomFunction function = exp_times();
  function.backward = [](const Tensors&, const Tensors&, const Tensors&) { return Tensors{}; };
  CHECK_THAT(message_of([&] {
               total(apply(function, {x, x})[0]).backward();
             }),
             Catch::Contains("[exp_times] backward has returned 0 gradients for 2 inputs"));
  function.backward = [](const Tensors&, const Tensors&, const Tensors& grads) {
    return Tensors{total(grads[0]), grads[0]};
  };
  CHECK_THAT(message_of([&] {
               total(apply(function, {x, x})[0]).backward();
             }),
             Catch::Contains("the gradient that [exp_times_grad] returned is f64[]"));
  function.forward = [](const Tensors&) { return Tensors{Tensor()}; };
  CHECK_THAT(message_of([&] {
               apply(function, {x, x});
             }),
             Catch::Contains("[exp_times] the function has returned an undefined tensor as output 0"));
  function.forward = nullptr;
  CHECK_THAT(message_of([&] { apply(function, {x, x}); }), Catch::Contains("[exp_times] a custom function needs both"));
  Tensor y = multiply(x, x);
  const Tensor out = apply(exp_times(), {y, x})[0];
  relu_(y);
  CHECK_THAT(message_of([&] { total(out).backward(); }),
             Catch::Contains("was saved by [exp_times] at ") && Catch::Contains("last by [relu_] at "));
}

TEST_CASE("autograd: a recomputed scope gives the gradients that it gives without, to inputs and to what it captures") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4}), b = leaf({0.5, -1});
  const Tensor hidden = multiply(x, x);
  int calls = 0;
  const auto layer = [&](const Tensors& in) {
    ++calls;
    return Tensors{tanh(add(multiply(in[0], w), b)),
                   multiply(hidden, in[0])};  // captures leaves, and a tensor that is not a leaf
  };
  const auto run = [&](bool again) {
    const Tensors out = again ? recompute(layer, {multiply(x, w)}) : layer({multiply(x, w)});
    total(add(out[0], out[1])).backward(Tensor::from_data<double>({1}, {}), true);
    std::vector<Values> gradients;
    for (const Tensor& leaf : {x, w, b}) {
      gradients.push_back(values(leaf.grad()));
      leaf.set_grad({});
    }
    return gradients;
  };
  const auto expected = run(false);
  calls = 0;
  CHECK(run(true) == expected);
  CHECK(calls == 2);
}

TEST_CASE("autograd: recomputed scopes lie in each other") {
  const Tensor x = leaf({0.5, -0.25}), w = leaf({3, 4});
  const auto inner = [&](const Tensors& in) { return Tensors{tanh(multiply(in[0], w))}; };
  const auto outer = [&](const Tensors& in) {
    return Tensors{multiply(recompute(inner, {multiply(in[0], in[0])})[0], w)};
  };
  const auto run = [&](const Tensor& out) {
    const Tensors gradients = grad({total(out)}, {x, w});
    return std::pair(values(gradients[0]), values(gradients[1]));
  };
  const Tensor plain = multiply(tanh(multiply(multiply(x, x), w)), w);
  CHECK(run(recompute(outer, {x})[0]) == run(plain));
}

TEST_CASE("autograd: the gradient of a recomputed scope can be differentiated") {
  const Tensor x = leaf({0.5}), w = leaf({3});
  const auto cube = [&](const Tensors& in) { return Tensors{multiply(multiply(in[0], in[0]), multiply(in[0], w))}; };
  const Tensor first = grad({recompute(cube, {x})[0]}, {x}, {}, {.create_graph = true})[0];  // 3 w x^2
  CHECK(values(first) == Values{2.25});
  const Tensors second = grad({first}, {x, w});
  CHECK(values(second[0]) == Values{9});
  CHECK(values(second[1]) == Values{0.75});
}

TEST_CASE("autograd: a recomputed scope draws the same random numbers, and leaves the generator as it was") {
  const Tensor x = Tensor::from_data(Values(64, 1.0), {64}).set_requires_grad(true);
  const auto drop = [](const Tensors& in) { return Tensors{dropout(in[0], {}, Scalar(0.5f))}; };
  const Tensor out = recompute(drop, {x})[0];
  const NoGrad off;
  const Tensor next = dropout(x, {}, Scalar(0.5f));
  out.backward(Tensor::from_data(Values(64, 1.0), {64}));
  CHECK(values(x.grad()) == values(out));  // each is 0 or 2, by the same mask
  CHECK(values(dropout(x, {}, Scalar(0.5f))) != values(next));
}

TEST_CASE("autograd: a recomputed scope that does something else the second time is an error") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4}), v = leaf({5, 6});
  int calls = 0;
  const auto changing = [&](const Tensors& in) { return Tensors{multiply(in[0], ++calls == 1 ? w : v)}; };
  CHECK_THAT(message_of([&] { total(recompute(changing, {x})[0]).backward(); }),
             Catch::Contains("made by [leaf], that it did not use in forward"));
  const auto growing = [&](const Tensors& in) { return calls++ == 2 ? Tensors{in[0]} : Tensors{in[0], in[0]}; };
  CHECK_THAT(message_of([&] { total(recompute(growing, {x})[0]).backward(); }),
             Catch::Contains("[recompute] the function has returned 2 tensors in backward, but 1 in forward"));
}

TEST_CASE("autograd: recompute keeps no tensor of the scope") {
  struct Watch : GradExtra {
    explicit Watch(int& alive) : alive(alive) { ++alive; }
    ~Watch() override { --alive; }
    int& alive;
  };
  const Tensor x = leaf({1, 2});
  int alive = 0, made = 0;
  const auto chain = [&](const Tensors& in) {
    const Tensor inner = multiply(in[0], in[0]);
    inner.impl()->grad.extra = std::make_unique<Watch>(alive);
    made = alive;
    return Tensors{multiply(inner, inner)};
  };
  const Tensor out = recompute(chain, {x})[0];
  CHECK(made == 1);
  CHECK(alive == 0);
  total(out).backward();
  CHECK(alive == 0);
  CHECK(values(x.grad()) == Values{4, 32});
}

TEST_CASE(
    "autograd: what a recomputed scope returns shares its buffer with nothing outside, also where it returns what it "
    "captures") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  Tensor hidden = multiply(w, w);
  const Tensors out = recompute(
      [&](const Tensors& in) {
        return Tensors{hidden, reshape(hidden, {2, 1}), multiply(in[0], in[0])};
      },
      {x});
  const auto backward = [&] { add(total(out[0]), total(out[2])).backward(Tensor::from_data<double>({1}, {}), true); };
  backward();
  CHECK(values(w.grad()) == Values{6, 8});
  CHECK(values(x.grad()) == Values{2, 4});
  scale_(hidden, Scalar(2), Scalar(0), true);
  CHECK(values(out[0]) == Values{9, 16});
  CHECK(values(out[1]) == Values{9, 16});
  CHECK_THAT(message_of(backward),
             Catch::Contains("[recompute_grad] a tensor that the function reads but that is not an input") &&
                 Catch::Contains("last by [scale_] at "));
}

TEST_CASE("autograd: a recomputed scope on a mesh, with random numbers and parameters that are captured") {
  run_ranks(3, [](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({3}, {}, {"p"});
    const Tensor x = distribute(Tensor::from_data(Values{1, 2, 3, 4, 5, 6, 7}, {7}), DistSpec::parse(mesh, "p"))
                         .set_requires_grad(true);
    const Tensor w = distribute(Tensor::from_data(Values{2}, {1}), DistSpec::parse(mesh, "-")).set_requires_grad(true);
    const auto layer = [&](const Tensors& in) { return Tensors{dropout(multiply(in[0], w), {}, Scalar(0.5f))}; };
    const Tensor out = recompute(layer, {x})[0];
    total(out).backward();
    const Values result = values(full_tensor(out.detach())), dx = values(full_tensor(x.grad()));
    double dw = 0;
    for (size_t i = 0; i < result.size(); ++i) {
      const double value = static_cast<double>(i + 1);
      check(dx[i] == result[i] / value, "the gradient of x has the mask of the output");
      dw += result[i] / 2;
    }
    check(values(full_tensor(w.grad())) == Values{dw}, "the gradient of w");
  });
}

TEST_CASE(
    "autograd: a tensor that a recomputed scope takes from outside is not written before backward, whether it requires "
    "a gradient or not") {
  const Tensor q = leaf({1, 2}), w = leaf({7, 8});
  Tensor c = Tensor::from_data<double>({2, 3}, {2});
  const auto refused = [&](const std::function<Tensor(const Tensor&)>& scope, const std::function<void()>& write) {
    const Tensor out = recompute([&](const Tensors& in) { return Tensors{scope(in[0])}; }, {q})[0];
    write();
    return message_of([&] { total(out).backward(); });
  };
  const auto write_c = [&] { scale_(c, Scalar(5), Scalar(0), true); };
  const int line = __LINE__ - 1;
  const std::string text = refused([&](const Tensor& in) { return multiply(in, c); }, write_c);
  CHECK_THAT(text, Catch::Contains("[recompute_grad] a tensor that the function reads but that is not an input "
                                   "(f64[2]) was saved by [recompute] at "));
  CHECK_THAT(text, Catch::Contains("last by [scale_] at ") &&
                       Catch::Contains("custom_test.cc:" + std::to_string(line) + ": it was at version 0 and is at 1"));
  // Tensors that only steps without a gradient read; through a view; under NoGrad; in a nested scope.
  CHECK_THAT(refused([&](const Tensor& in) { return multiply(in, scale(c, Scalar(2), Scalar(1), true)); }, write_c),
             Catch::Contains("has been written since"));
  CHECK_THAT(refused(
                 [&](const Tensor& in) {
                   return multiply(in, where(greater_than(c, in), in, scale(in, Scalar(3), Scalar(0), true)));
                 },
                 write_c),
             Catch::Contains("has been written since"));
  CHECK_THAT(refused(
                 [&](const Tensor& in) {
                   return multiply(in, flatten(reshape(c, {1, 2}), 0, 1));
                 },
                 write_c),
             Catch::Contains("has been written since"));
  CHECK_THAT(refused(
                 [&](const Tensor& in) {
                   Tensor doubled;
                   {
                     const NoGrad off;
                     doubled = add(c, c);
                   }
                   return multiply(in, doubled);
                 },
                 write_c),
             Catch::Contains("has been written since"));
  CHECK_THAT(refused(
                 [&](const Tensor& in) {
                   return recompute([&](const Tensors& inner) { return Tensors{multiply(inner[0], c)}; }, {in})[0];
                 },
                 write_c),
             Catch::Contains("has been written since"));
  const auto write_w = [&] {
    const NoGrad off;
    Tensor target = w;
    scale_(target, Scalar(2), Scalar(0), true);
  };
  CHECK_THAT(refused([&](const Tensor& in) { return multiply(in, w); }, write_w),
             Catch::Contains("has been written since"));
  CHECK_FALSE(q.grad().defined());
}

TEST_CASE("autograd: what a recomputed scope makes itself may be written, and what it only writes") {
  const Tensor q = leaf({1, 2});
  Tensor c = Tensor::from_data<double>({2, 3}, {2});
  Tensor calls = Tensor::from_data<double>({0}, {1});
  const auto scope = [&](const Tensors& in) {
    Tensor inner = add(c, c);
    scale_(inner, Scalar(2), Scalar(0), true);
    scale_(calls, Scalar(1), Scalar(1), true);
    return Tensors{multiply(in[0], inner), inner};
  };
  Tensors out = recompute(scope, {q});
  const Tensors again = recompute(scope, {q});
  scale_(out[1], Scalar(0), Scalar(0), true);
  total(out[0]).backward();
  total(again[0]).backward();
  CHECK(values(q.grad()) == Values{16, 24});
}

TEST_CASE("autograd: null functions are refused by name") {
  const Tensor x = leaf({1, 2});
  CHECK_THAT(message_of([&] { add_hook(x, nullptr); }), Catch::Contains("[add_hook] the hook is a null function"));
  CHECK_THAT(message_of([&] { recompute(nullptr, {x}); }),
             Catch::Contains("[recompute] the function is a null function"));
  CHECK_THAT(message_of([&] { apply({}, {x}); }),
             Catch::Contains("[custom] a custom function needs both forward and backward"));
}

TEST_CASE("autograd: what one thread has recorded, another one goes on with, after it has waited for the first") {
  const Tensor x = leaf({2}), w = leaf({3});
  Tensor y;
  std::thread([&] {
    for (int i = 0; i < 100; ++i)
      multiply(x, x);  // so that its steps have higher numbers than those of the other threads
    y = multiply(multiply(x, x), w);
  }).join();
  std::thread([&] {
    const Tensor loss = multiply(
        recompute([&](const Tensors& in) { return Tensors{multiply(multiply(in[0], y), w)}; }, {y})[0], y);  // y^3 w
    total(loss).backward();
  }).join();
  // x^6 w^4: 6 x^5 w^4, 4 x^6 w^3
  CHECK(values(x.grad()) == Values{6 * 32 * 81});
  CHECK(values(w.grad()) == Values{4 * 64 * 27});
}

TEST_CASE("autograd: a hook that has detach() of its tensor does not keep it") {
  struct Watch : GradExtra {
    explicit Watch(int& alive) : alive(alive) { ++alive; }
    ~Watch() override { --alive; }
    int& alive;
  };
  int alive = 0;
  {
    const Tensor x = leaf({1, 2});
    const Tensor h = multiply(x, x), watched = scale(h, Scalar(1), Scalar(0), true);
    watched.impl()->grad.extra = std::make_unique<Watch>(alive);
    add_hook(h, [value = h.detach(), watched = watched.detach()](const Tensor& gradient) {
      return multiply(gradient, value);
    });
  }
  CHECK(alive == 0);
}

TEST_CASE(
    "autograd: a view whose base was written before is brought up to date outside of the recomputed scopes that use "
    "it") {
  const auto gradients = [](int scopes) {
    const Tensor w = leaf({1, 2, 3, 4}), x = leaf({2, 3, 4, 5});
    Tensor base = multiply(w, w);
    const Tensor view = reshape(base, {2, 2});
    multiply_(base, w);  // the view follows: w^3
    std::function<Tensors(const Tensors&)> function = [&](const Tensors& in) -> Tensors {
      return {total(multiply(reshape(in[0], {2, 2}), view))};
    };
    for (int i = 0; i < scopes; ++i) function = [inner = function](const Tensors& in) { return recompute(inner, in); };
    const Tensor out = function({multiply(x, x)})[0];
    add(out, total(view)).backward();  // which is used outside of them, too
    return std::vector<Values>{values(out.detach()), values(w.grad()), values(x.grad())};
  };
  for (const int scopes : {1, 2}) CHECK(gradients(scopes) == gradients(0));
}

}  // namespace custom_test
