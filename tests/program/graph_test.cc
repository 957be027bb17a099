// Steps for a device that records run as graphs: with the values of eager calls, at any addresses of tensors, and
// with the same errors.
#include <catch2/catch.hpp>

#include "shard/call/dense_call.h"
#include "shard/program/capture/function.h"
#include "shard/program/exec/graph_step.h"
#include "shard/shard.h"
#include "support/recording_backend.h"

namespace graph_test {

using namespace shard;
using test::recording::state;

namespace {

using Tensors = std::vector<Tensor>;
using Values = std::vector<float>;

Device device() { return test::recording::device(); }
Tensor there(const Values& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())}).to(device());
}
Values values(const Tensor& x) { return x.to_vector<float>(); }

/// Resets the state: nothing has been done yet, and nothing fails.
void start() {
  REQUIRE(state.kept == 0);
  state = {};
}

/// relu((x + y) * x)
Tensors three_ops(const Tensors& in) { return {relu(multiply(add(in[0], in[1]), in[0]))}; }

/// The number of graphs of the function, and of the steps in them.
std::pair<size_t, size_t> graphs_of(const program::Function& function, const Tensors& inputs,
                                    bool device_graphs = true) {
  const program::Trace trace = program::trace(function, inputs);
  const program::Executor executor(trace.program, {inputs, {}}, {.device_graphs = device_graphs});
  return {executor.graphs().sequences, executor.graphs().steps};
}

}  // namespace

TEST_CASE("graphs: one is recorded in the second run, and launched from then on") {
  start();
  {
    const Tensor x = there({1, -2, 3}), y = there({1, 1, -5}), more = there({0.5f, 1, -1});
    CapturedFunction captured(three_ops, {});
    for (int run = 0; run < 5; ++run) {
      const Values expected = values(three_ops({x, y})[0]);
      CHECK(values(captured({x, y})[0]) == expected);
      CHECK(state.recordings == (run == 0 ? 0 : 1));
      CHECK(state.launches == run);
      Tensor written = x;
      add_(written, more);  // other values at the same address
    }
    CHECK(graphs_of(three_ops, {x, y}) == std::pair<size_t, size_t>(1, 3));
  }
  CHECK(state.kept == 0);
}

TEST_CASE("graphs: an executor tells how many there are, and what has been done with them") {
  start();
  const Tensor x = there({1, -2, 3}), y = there({1, 1, -5});
  const program::Trace trace = program::trace(three_ops, {x, y});
  program::Executor executor(trace.program, {{x, y}, {}});
  for (int run = 0; run < 4; ++run) executor.run({{x, y}, {}});
  const program::GraphReport report = executor.graphs();
  CHECK(report.sequences == 1);
  CHECK(report.steps == 3);
  CHECK(report.recordings == 1);
  CHECK(report.launches == 3);
}

TEST_CASE("graphs: four are kept, for as many sets of addresses") {
  start();
  Tensors inputs;
  for (int i = 0; i < 5; ++i) inputs.push_back(there({static_cast<float>(i), -1, 2}));
  const Tensor y = there({1, 1, -5});
  CapturedFunction captured(three_ops, {});
  const auto run = [&](size_t i) {
    CHECK(values(captured({inputs[i], y})[0]) == values(three_ops({inputs[i], y})[0]));
  };
  for (size_t i = 0; i < 13; ++i) run(i % 4);  // the first run is not recorded
  CHECK(state.recordings == 4);
  CHECK(state.launches == 12);
  run(4);  // replaces the least recently used one: of inputs[1]
  CHECK(state.recordings == 5);
  CHECK(state.kept == 4);
  for (const size_t i : {2u, 3u, 0u, 4u}) run(i);
  CHECK(state.recordings == 5);
  run(1);
  CHECK(state.recordings == 6);
  CHECK(state.kept == 4);
}

TEST_CASE("graphs: where addresses are new in each run, recording ends") {
  start();
  const Tensor x = there({1, -2, 3}), y = there({1, 1, -5});
  CapturedFunction captured(three_ops, {});
  const Values expected = values(three_ops({x, y})[0]);
  Tensors held;  // outputs, whose buffers are not available for the next run
  for (int run = 0; run < 20; ++run) held.push_back(captured({x, y})[0]);
  for (const Tensor& output : held) CHECK(values(output) == expected);
  CHECK(state.recordings == 8);
  CHECK(state.launches == 8);
  CHECK(state.kept == 0);
}

TEST_CASE("graphs: a caller who holds the last output sees its value after the next run") {
  start();
  const Tensor y = there({1, 1, -5});
  CapturedFunction captured(three_ops, {});
  Tensor last;
  Values expected;
  for (int run = 0; run < 12; ++run) {
    const Tensor x = there({static_cast<float>(run), -2, 3});
    const Tensor output = captured({x, y})[0];
    if (last.defined()) CHECK(values(last) == expected);
    last = output;
    expected = values(three_ops({x, y})[0]);
    CHECK(values(output) == expected);
  }
}

TEST_CASE("graphs: what draws random numbers or moves stands between them") {
  start();
  const Tensor x = there({0.2f, 0.5f, 0.7f, 0.9f}), y = there({1, 1, 2, 2});
  const auto random = [](const Tensors& in) -> Tensors {
    const Tensor a = multiply(add(in[0], in[1]), in[1]);
    return {relu(multiply(a, bernoulli(in[0])))};
  };
  CHECK(graphs_of(random, {x, y}) == std::pair<size_t, size_t>(2, 4));
  Generator& generator = call::thread_generator();
  CapturedFunction captured(random, {});
  for (int run = 0; run < 5; ++run) {
    const RandomKey before = generator.state();
    const Values expected = values(random({x, y})[0]);
    const RandomKey after = generator.state();
    generator.set_state(before);
    CHECK(values(captured({x, y})[0]) == expected);
    CHECK(generator.state().offset == after.offset);
  }
  CHECK(state.recordings == 2);
  CHECK(state.launches == 8);
  const auto moved = [](const Tensors& in) -> Tensors {
    const Tensor a = multiply(add(in[0], in[1]), in[1]);
    const Tensor host = add(a.to(kCpu), a.to(kCpu));
    return {add(relu(multiply(host.to(in[0].device()), in[1])),
                in[0])};  // the resharded tensor is freed after multiply, its last use
  };
  CHECK(graphs_of(moved, {x, y}) == std::pair<size_t, size_t>(2, 4));
  CapturedFunction on_both(moved, {});
  for (int run = 0; run < 4; ++run) CHECK(values(on_both({x, y})[0]) == values(moved({x, y})[0]));
  // A step that stands alone, and steps on the CPU.
  CHECK(graphs_of([](const Tensors& in) -> Tensors { return {relu(bernoulli(relu(in[0])))}; }, {x}) ==
        std::pair<size_t, size_t>(0, 0));
  CHECK(graphs_of(three_ops, {x.to(kCpu), y.to(kCpu)}) == std::pair<size_t, size_t>(0, 0));
  CHECK(graphs_of(three_ops, {x, y}, false) == std::pair<size_t, size_t>(0, 0));
}

TEST_CASE("graphs: kernels of lists and copies are part of them, and so are in-place ops") {
  start();
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor x = in[0];
    softmax_(x, 0);  // into a new buffer, and then a copy
    add_(x, in[1]);
    return {concat({x, in[1], x}, Scalar(0))};
  };
  const Tensor y = there({1, 0.5f, 2});
  const Tensor eager = there({1, 2, 3}), x = there({1, 2, 3});
  CHECK(graphs_of(function, {x, y}) == std::pair<size_t, size_t>(1, 4));
  CapturedFunction captured(function, {});
  for (int run = 0; run < 5; ++run) {
    const Values expected = values(function({eager, y})[0]);
    CHECK(values(captured({x, y})[0]) == expected);
    CHECK(values(x) == values(eager));
    CHECK(x.version() == eager.version());
  }
  CHECK(state.recordings == 1);
  CHECK(state.launches == 4);
}

TEST_CASE("graphs: backward programs run as graphs, too") {
  start();
  const auto function = [](const Tensors& in) -> Tensors {
    return {multiply(multiply(add(in[0], in[1]), in[0]), in[1])};
  };
  const Tensor seed = there({1, 0.5f, -2});
  Tensor eager = there({1, -2, 3}), x = there({1, -2, 3});
  const Tensor y = there({1, 1, -5});
  CapturedFunction captured(function, {});
  for (int run = 0; run < 6; ++run) {
    for (const Tensor& leaf : {eager, x}) leaf.set_requires_grad(true).set_grad({});
    function({eager, y})[0].backward(seed);
    captured({x, y})[0].backward(seed);
    CHECK(values(x.grad()) == values(eager.grad()));
    for (Tensor* leaf : {&eager, &x}) *leaf = add(leaf->detach(), leaf->grad());
  }
  CHECK(state.launches > 5);  // more than forward's
}

TEST_CASE("graphs: with device_graphs off nothing is recorded") {
  start();
  const Tensor x = there({1, -2, 3}), y = there({1, 1, -5});
  CapturedFunction captured(three_ops, {.executor = {.device_graphs = false}});
  for (int run = 0; run < 3; ++run) CHECK(values(captured({x, y})[0]) == values(three_ops({x, y})[0]));
  CHECK(state.recordings == 0);
}

TEST_CASE("graphs: what cannot be recorded runs all the same") {
  const Tensor x = there({1, -2, 3}), y = there({1, 1, -5});
  const Values expected = values(three_ops({x, y})[0]);
  SECTION("a kernel throws only while it is recorded") {
    start();
    CapturedFunction captured(three_ops, {});
    captured({x, y});
    state.refused_relu = 1;
    for (int run = 0; run < 3; ++run) CHECK(values(captured({x, y})[0]) == expected);
    CHECK(state.abandoned == 1);
  }
  SECTION("no graph can be made") {
    start();
    state.refuses_end = true;
    CapturedFunction captured(three_ops, {});
    for (int run = 0; run < 4; ++run) CHECK(values(captured({x, y})[0]) == expected);
    CHECK(state.abandoned == 0);
  }
  CHECK(state.recordings == 0);
  CHECK(state.launches == 0);
  CHECK(!test::recording::journal);
}

TEST_CASE("graphs: a kernel that throws leaves what it does in eager calls") {
  // Writes w, then v by the op that throws, then u.
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor w = in[0], v = in[1], u = in[2];
    add_(w, in[3]);
    relu_(v);
    add_(u, in[3]);
    return {};
  };
  const auto poisoned = [](const Tensor& x) -> bool {
    try {
      x.to_vector<float>();
      return false;
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::poisoned);
      return true;
    }
  };
  for (const bool checks : {false, true}) {
    for (const int failing_run : {0, 1}) {  // the one that is not recorded, and the one that is
      start();
      const Tensors eager{there({1}), there({-2}), there({3}), there({4})},
          inputs{there({1}), there({-2}), there({3}), there({4})};
      CapturedFunction captured(function, {});
      for (int run = 0; run < failing_run; ++run) {
        function(eager);
        captured(inputs);
      }
      state.checks = checks;
      state.refused_relu = 1;
      CHECK_THROWS_WITH(function(eager), Catch::StartsWith("relu refuses"));
      state.refused_relu = 2;
      CHECK_THROWS_WITH(captured(inputs), Catch::StartsWith("relu refuses"));
      CHECK(state.abandoned == failing_run);
      state.refused_relu = 0;
      for (size_t i = 0; i < 4; ++i) {
        if (i != 1) CHECK(inputs[i].version() == eager[i].version());
        CHECK(poisoned(inputs[i]) == poisoned(eager[i]));
        if (!poisoned(eager[i])) CHECK(values(inputs[i]) == values(eager[i]));
      }
      CHECK(poisoned(eager[1]) == !checks);
      if (!checks) continue;
      function(eager);  // nothing is poisoned: it can continue
      captured(inputs);
      for (size_t i = 0; i < 4; ++i) CHECK(values(inputs[i]) == values(eager[i]));
    }
  }
  SECTION("a launch that fails poisons all that the graph writes") {
    start();
    const Tensors inputs{there({1}), there({-2}), there({3}), there({4})};
    CapturedFunction captured(function, {});
    captured(inputs);
    captured(inputs);
    state.refuses_launch = true;
    CHECK_THROWS_WITH(captured(inputs), "the graph cannot be launched");
    for (size_t i = 0; i < 3; ++i) CHECK(poisoned(inputs[i]));
    CHECK(!poisoned(inputs[3]));
  }
}

TEST_CASE("graphs: steps that reduce over ranks or draw are not recorded, nor those of two devices") {
  class Reducer final : public AxisReducer {
   public:
    void all_reduce(DenseTensor&, ReduceType) override {}
    Gathered all_gather(const DenseTensor& value) override { return {value}; }
  };
  MemoryMeter meter;
  const auto tensor = [&](Device where) {
    return DenseTensor(Storage::unallocated(where, 4, meter), {{1}, DType::float32});
  };
  void (*const kernel)(const OpContext&, const DenseTensor&, DenseTensor&) = [](const OpContext&, const DenseTensor&,
                                                                                DenseTensor&) {};
  void (*const random)(const OpContext&, RandomKey, DenseTensor&) = [](const OpContext&, RandomKey, DenseTensor&) {};
  Reducer reducer;
  LocalCall local;
  const OpContext alone{"op"}, on_mesh{"op", &local};
  DenseTensor out = tensor(device()), host = tensor(kCpu), absent;
  call::Binder binder(meter);
  binder.add(kernel, alone, out, out);
  binder.add(kernel, on_mesh, out, out);
  binder.add(kernel, alone, absent, out);
  binder.copy(out, out);
  for (const auto& step : binder.steps) CHECK(program::recorded_on(*step) == device());
  binder.steps.clear();
  local.reducer = &reducer;
  binder.add(kernel, on_mesh, out, out);
  binder.add(kernel, alone, host, out);
  binder.add(kernel, alone, host, host);
  binder.add(random, alone, RandomKey(), out);
  binder.copy(out, host);
  for (const auto& step : binder.steps) CHECK(!program::recorded_on(*step));
}

}  // namespace graph_test
