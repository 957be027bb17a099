// The recompute pass: fewer live bytes, the same bits.
#include <catch2/catch.hpp>

#include <algorithm>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/program/capture/split.h"
#include "shard/program/ir/live.h"
#include "shard/program/passes/rematerialize.h"
#include "support/tensors.h"

namespace rematerialize_test {

using namespace shard;
using namespace shard::test;

namespace {

int64_t most_live(const program::Program& program) {
  const std::vector<int64_t> live = program::live_bytes(program);
  return *std::max_element(live.begin(), live.end());
}

size_t count(const program::Program& program, std::string_view name) {
  return static_cast<size_t>(
      std::count_if(program.ops.begin(), program.ops.end(), [&](const program::Op& op) { return op.name() == name; }));
}

/// Blocks with a matrix product, a view that is written, dropout and batch_norm, whose running mean and variance
/// are parameters; and their training.
struct Model {
  const ProcessMesh* mesh;
  bool running;  // means and variances
  Tensors weights, means, variances;
  Tensor rate, none;

  Model(int layers, const ProcessMesh* mesh, bool running = true)
      : mesh(mesh), running(running), rate(put(vec({0.01}), "-")) {
    for (int i = 0; i < layers; ++i) {
      Values elements;
      for (int k = 0; k < 36; ++k) elements.push_back(0.05 * ((k * 7 + i * 5) % 11) - 0.2);
      weights.push_back(put(Tensor::from_data(elements, {6, 6}), i % 2 == 0 ? "-, b" : "b, -").set_requires_grad(true));
      means.push_back(put(vec(Values(6, 0)), "-"));
      variances.push_back(put(vec(Values(6, 1)), "-"));
    }
  }
  Tensor put(const Tensor& x, const char* layout) const {
    return mesh == nullptr ? x : distribute(x, DistSpec::parse(mesh, layout));
  }

  Tensor loss(const Tensor& in) const {
    Tensor x = in;
    for (size_t i = 0; i < weights.size(); ++i) {
      Tensor y = gelu(matmul(x, weights[i]));
      if (running) y = std::get<0>(batch_norm(y, means[i], variances[i], none, none));
      Tensor z = multiply(y, y);
      relu_(z);
      x = add(x, dropout(exp(scale(z, Scalar(-0.5), Scalar(0), true)), {}, Scalar(0.25)));
    }
    return total(multiply(x, x));
  }
  Tensors step(const Tensors& in) {
    const Tensor loss = this->loss(in[0]);
    loss.backward();
    const NoGrad off;
    for (Tensor& weight : weights) {
      sgd_(weight, rate, weight.grad(), none);
      weight.set_grad({});
    }
    return {loss.detach()};
  }
};

/// Trains the same model by eager calls and by a captured function with this goal; returns the program of the latter.
program::Program train_both(const ProcessMesh* mesh, bool running, int64_t goal) {
  Model a(8, mesh, running), b(8, mesh, running);
  std::vector<program::Program> after;
  CapturedFunction captured(
      [&](const Tensors& in) { return a.step(in); },
      {.memory_goal = goal,
       .observer = [&](std::string_view, const program::Program&, const program::Program& to) { after = {to}; }});
  for (int run = 0; run < 5; ++run) {
    const Tensor x = a.put(add(scale(iota<double>({8, 6}), Scalar(0.02), Scalar(0), true),
                               full({8, 6}, Scalar(0.1 * run), DType::float64)),
                           "a, -");
    const auto seeded = [&](const auto& call) {
      call::thread_generator().set_seed(static_cast<uint64_t>(run));
      if (mesh != nullptr) current_rank_or_null()->generator.set_seed(static_cast<uint64_t>(run));
      return whole(call()[0]);
    };
    check(seeded([&] { return captured({x}); }) == seeded([&] { return b.step({x}); }), "losses are equal");
    for (size_t i = 0; i < a.weights.size(); ++i) {
      for (const auto& [ours, theirs] : {std::pair(a.weights[i], b.weights[i]), std::pair(a.means[i], b.means[i]),
                                         std::pair(a.variances[i], b.variances[i])}) {
        check(whole(ours) == whole(theirs), "weights and running values are equal");
        check(ours.version() == theirs.version(), "and as often written");
      }
    }
  }
  check(captured.stats().misses == 1, "one program");
  return after.at(0);
}

}  // namespace

TEST_CASE(
    "recompute: a training step in fewer bytes is eager's, bit for bit, with dropout, written values and running "
    "means") {
  const program::Program plain = train_both(nullptr, true, 0), small = train_both(nullptr, true, 1);
  CHECK(most_live(small) < most_live(plain));
  CHECK(small.ops.size() > plain.ops.size());
  // It writes its running values, so it must not run twice.
  CHECK(count(small, "batch_norm") == 8);
}

TEST_CASE("recompute: a chain of layers needs less than 0.6 of its bytes, and not more than it is given") {
  const program::Program plain = train_both(nullptr, false, 0);
  const int64_t before = most_live(plain);
  CHECK(most_live(train_both(nullptr, false, 1)) <= before * 6 / 10);
  const int64_t goal = before * 8 / 10;
  const program::Program enough = train_both(nullptr, false, goal);
  CHECK(most_live(enough) <= goal);
  // Matrix products are recomputed last.
  CHECK(count(enough, "matmul") == count(plain, "matmul"));
  CHECK(to_text(train_both(nullptr, false, 2 * before)) == to_text(plain));
}

TEST_CASE("recompute: on meshes moves are not repeated, and all ranks have the same program") {
  std::mutex mutex;
  std::vector<std::string> texts;
  run_ranks(4, [&](Rank&) {
    const program::Program plain = train_both(mesh22(), false, 0), small = train_both(mesh22(), false, 1);
    check(most_live(small) < most_live(plain), "fewer bytes");
    check(count(small, "reshard") == count(plain, "reshard"), "as many moves");
    const std::lock_guard lock(mutex);
    texts.push_back(to_text(small));
  });
  for (const std::string& text : texts) CHECK(text == texts[0]);
}

TEST_CASE(
    "recompute: what reduces over ranks is not repeated, and plain values, which may differ from rank to rank, decide "
    "nothing") {
  run_ranks(4, [](Rank& rank) {
    const Tensor x = on("a, b", {64, 64});
    const auto function = [&](const Tensors& in) -> Tensors {
      const Tensor norm = frobenius_norm(in[0], {0, 1}, true, true);
      if (rank.id() == 0) total(multiply(vec(Values(100000, 1)), vec(Values(100000, 2))));
      Tensor y = divide(in[0], norm), kept = y;
      for (int i = 0; i < 4; ++i) y = sin(add(y, cos(y)));
      return {total(multiply(multiply(y, kept), norm))};
    };
    std::vector<program::Program> after;
    CapturedFunction captured(
        function,
        {.memory_goal = 1, .observer = [&](std::string_view pass, const program::Program&, const program::Program& to) {
           if (pass == "rematerialize") after = {to};
         }});
    check(whole(captured({x})[0]) == whole(function({x})[0]), "the same bits");
    check(count(after.at(0), "frobenius_norm") == 1, "one norm");
    check(count(after.at(0), "divide") > 1, "other values are made again");
  });
}

TEST_CASE("recompute: what a function keeps for its gradient becomes less") {
  Model a(8, nullptr), b(8, nullptr);
  CapturedFunction captured([&](const Tensors& in) -> Tensors { return {a.loss(in[0])}; }, {.memory_goal = 1});
  CapturedFunction whole_one([&](const Tensors& in) -> Tensors { return {b.loss(in[0])}; }, {});
  for (int run = 0; run < 5; ++run) {
    const auto go = [&](CapturedFunction& function) {
      call::thread_generator().set_seed(static_cast<uint64_t>(run));
      const Tensor x = iota<double>({8, 6}, 0.125 * run).set_requires_grad(true);
      const Tensor loss = function({x})[0];
      loss.backward();
      return std::pair(values(loss), values(x.grad()));
    };
    CHECK(go(captured) == go(whole_one));
    for (size_t i = 0; i < a.weights.size(); ++i) {
      CHECK(values(a.weights[i].grad()) == values(b.weights[i].grad()));
      CHECK(values(a.means[i]) == values(b.means[i]));
    }
  }
  const auto held = [](CapturedFunction& function) {
    const program::Split split = program::split(function.trace({iota<double>({8, 6}).set_requires_grad(true)}));
    int64_t bytes = 0;
    for (const program::Residual& middle : split.residuals) {
      if (middle.held == program::Held::own)
        bytes += program::bytes_of(
            split.forward.value(split.forward.outputs[static_cast<size_t>(middle.output)].value).type);
    }
    return bytes;
  };
  CHECK(held(captured) < held(whole_one));
}

TEST_CASE("recompute: values are kept where their arguments have been written since") {
  const auto run = [](int64_t goal) {
    Tensor w = vec(Values(64, 2)), x = vec(Values(64, 3));
    CapturedFunction captured(
        [&](const Tensors& in) -> Tensors {
          const Tensor early = exp(multiply(w, in[0]));  // of the value of w before the write
          add_(w, in[0]);
          Tensor y = in[0];
          for (int i = 0; i < 6; ++i) y = sin(add(y, concat({y, y}, 0).dims()[0] == 128 ? in[0] : y));
          return {total(multiply(early, y))};
        },
        {.memory_goal = goal});
    const Values first = values(captured({x})[0]), second = values(captured({x})[0]);
    return std::pair(first, second);
  };
  CHECK(run(1) == run(0));
}

}  // namespace rematerialize_test
