// Scheduling: reshards on the cheaper side of an op, ops in one loop, and concurrent ops.
#include <catch2/catch.hpp>

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/program/ir/live.h"
#include "shard/program/ir/refusals.h"
#include "support/tensors.h"

namespace schedule_test {

using namespace shard;
using namespace shard::test;
using program::Program;

namespace {

std::vector<std::string> op_names(const Program& program) {
  std::vector<std::string> all;
  for (const program::Op& op : program.ops) all.push_back(fmt::format("{}{}", op.name(), op.joins ? "+" : ""));
  return all;
}
using Names = std::vector<std::string>;

Program traced(const program::Function& function, const Tensors& inputs) {
  return program::trace(function, inputs).program;
}

Tensor large(double start) {
  Values values(20000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = start + 1e-4 * static_cast<double>(i % 577);
  return Tensor::from_data(values, {100, 200});
}

/// Runs `program` on plain inputs; sets `together` to the number of steps that ran concurrently with others.
std::vector<Values> run(const Program& program, const Tensors& inputs, double parallel_ns, size_t& together) {
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  std::vector<Values> all;
  tbb::task_arena(4).execute([&] {  // also on a machine with fewer cores
    program::Executor executor(program, {inputs, {}}, {.parallel_ns = parallel_ns});
    for (int run = 0; run < 3; ++run) {
      for (const Tensor& output : executor.run({inputs, {}})) all.push_back(values(output));
    }
    together = executor.parallel_steps();
  });
  return all;
}

}  // namespace

TEST_CASE("hoist: a cast to a larger dtype runs after the move, one to a smaller before it") {
  run_ranks(4, [](Rank&) {
    const Tensor x = cast(on("a, -", {5, 4}), DType::float32);
    const auto gather = [](const Tensor& x) { return reshard(x, DistSpec::parse(mesh22(), "-, b")); };
    const auto larger = [&](const Tensors& in) -> Tensors { return {gather(cast(in[0], DType::float64))}; };
    const auto smaller = [&](const Tensors& in) -> Tensors { return {cast(gather(in[0]), DType::bfloat16)}; };
    check(op_names(program::hoist_reshards(traced(larger, {x}))) == Names{"reshard", "cast"}, "moved as float32");
    check(op_names(program::hoist_reshards(traced(smaller, {x}))) == Names{"cast", "reshard"}, "moved as bfloat16");
    for (const program::Function& function : {program::Function(larger), program::Function(smaller)}) {
      CapturedFunction captured = capture(function, {x});
      check(whole(cast(captured({x})[0], DType::float64)) == whole(cast(function({x})[0], DType::float64)),
            "the same elements");
      check(spec_of(captured({x})[0]) == spec_of(function({x})[0]), "in the same layout");
    }
  });
}

TEST_CASE(
    "hoist: the order stays where somebody else sees what is between, where nothing is saved, and where a sum is "
    "pending") {
  run_ranks(4, [](Rank&) {
    const Tensor x = cast(on("a, -", {5, 4}), DType::float32);
    const auto to = [](const Tensor& x, const char* layout) { return reshard(x, DistSpec::parse(mesh22(), layout)); };
    const auto unchanged = [&](const program::Function& function, const Names& expected) {
      check(op_names(traced(function, {x})) == expected, "captured so");
      check(op_names(program::hoist_reshards(traced(function, {x}))) == expected, "and left so");
    };
    unchanged(
        [&](const Tensors& in) -> Tensors {
          const Tensor between = cast(in[0], DType::float64);
          return {to(between, "-, b"), between};
        },
        {"cast", "reshard"});
    unchanged([&](const Tensors& in) -> Tensors { return {to(exp(in[0]), "-, b")}; }, {"exp", "reshard"});
    unchanged([&](const Tensors& in) -> Tensors { return {to(cast(sum(in[0], IntArray{0}), DType::float64), "b")}; },
              {"sum", "cast", "reshard"});
  });
}

TEST_CASE("reshards: along an axis of one process nothing is copied, unless somebody could tell") {
  run_ranks(2, [](Rank&) {
    const ProcessMesh* const mesh = ProcessMesh::make({2, 1}, {}, {"a", "b"});
    const auto to = [&](const Tensor& x, const char* layout) { return reshard(x, DistSpec::parse(mesh, layout)); };
    const auto placed = [&](const program::Function& function, const Names& expected) {
      const Tensor x = on("a, -", {5, 4}, 0, mesh), y = on("a, -", {5, 4}, 0, mesh);
      const Program program = program::place_reshards(traced(function, {x}));
      program.verify();
      check(op_names(program) == expected, to_text(program));
      CapturedFunction captured(function, {});
      for (int run = 0; run < 2; ++run) {
        const Tensors ours = captured({x}), theirs = function({y});
        for (size_t i = 0; i < ours.size(); ++i) {
          check(whole(ours[i]) == whole(theirs[i]), "the same elements");
          check(spec_of(ours[i]) == spec_of(theirs[i]), "in the same layout");
          check(!ours[i].shares_buffer_with(x), "in buffers of their own");
        }
        check(whole(x) == whole(y), "the same input");
      }
    };
    placed([&](const Tensors& in) -> Tensors { return {exp(to(in[0], "a, b"))}; }, {"alias", "exp"});
    // Written after it has been read, and before.
    const auto write = [](const Tensors& in) {
      Tensor x = in[0];
      add_(x, x);
    };
    placed(
        [&](const Tensors& in) -> Tensors {
          const Tensor early = exp(to(in[0], "a, b"));
          write(in);
          return {early};
        },
        {"alias", "exp", "add_"});
    placed(
        [&](const Tensors& in) -> Tensors {
          const Tensor moved = to(in[0], "a, b");
          write(in);
          return {exp(moved)};
        },
        {"reshard", "add_", "exp"});
    // The caller gets it, so it stays.
    placed([&](const Tensors& in) -> Tensors { return {to(in[0], "a, b")}; }, {"reshard"});
    // A reshard along the other axis stays.
    placed([&](const Tensors& in) -> Tensors { return {exp(to(in[0], "b, a"))}; }, {"reshard", "exp"});
  });
}

TEST_CASE("loops: elementwise ops of one size that follow each other join, and text says so") {
  const auto function = [](const Tensors& in) -> Tensors {
    const Tensor y = exp(multiply(in[0], in[1]));
    return {add(y, sum(y, {}, false)), relu(in[1])};
  };
  const Program program = program::fuse_loops(traced(function, {vec({1, 2}), vec({3, 4})}));
  program.verify();
  CHECK(op_names(program) == Names{"multiply", "exp+", "sum", "add", "relu+"});
  CHECK(to_text(program).find("exp(x: %3) with the one before") != std::string::npos);
  // Not for a smaller tensor, alone or on a mesh.
  const auto mixed = [](const Tensors& in) -> Tensors { return {exp(in[0]), exp(in[1])}; };
  CHECK(op_names(program::fuse_loops(traced(mixed, {vec({1, 2}), vec({3})}))) == Names{"exp", "exp"});
}

TEST_CASE("parallel steps: ops that need nothing of each other run at the same time, with the same bits") {
  const auto branches = [](const Tensors& in) -> Tensors {
    const Tensor a = sum(exp(in[0]), {1}), b = sum(sin(in[1]), {1});
    const Tensor c = softmax(in[0]), d = transpose(in[1], {1, 0});
    return {a, b, c, d, matmul(c, d)};
  };
  const Tensors inputs = {large(0), large(-1)};
  const Program program = traced(branches, inputs);
  size_t one_by_one = 0, together = 0;
  const std::vector<Values> expected = run(program, inputs, 0, one_by_one);
  CHECK(run(program, inputs, 1, together) == expected);
  CHECK(one_by_one == 0);
  // exp of one runs alone; its sum waits for it, and runs with sin of the other; the sum of that with softmax and
  // transpose.
  CHECK(together >= 4);
}

TEST_CASE("parallel steps: what one op writes and another reads or writes keeps its order") {
  const auto writes = [](const Tensors& in) -> Tensors {
    Tensor x = exp(in[0]);
    const Tensor before = sum(x, {0});
    relu_(x);  // after it has been read
    const Tensor view = reshape(x, {-1});
    add_(x, in[1]);                             // after the first write
    const Tensor after = sum(view, {}, false);  // of the last
    return {before, after, x};
  };
  const Tensors inputs = {large(-2), large(1)};
  const Program program = traced(writes, inputs);
  size_t none = 0, together = 0;
  CHECK(run(program, inputs, 1, together) == run(program, inputs, 0, none));
  CHECK(together == 0);
}

TEST_CASE("parallel steps: an op that refuses its arguments fails alone, and the first one's error is thrown") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor before = in[0], table = in[1], after = in[3];
    scale_(before, Scalar(2), Scalar(0), true);
    const Tensor rows = gather(table, in[2], Scalar(0));
    scale_(after, Scalar(2), Scalar(0), true);
    return {rows};
  };
  const auto indices = [](int64_t last) { return Tensor::from_data(std::vector<int64_t>{0, 1, last}, {3}); };
  const Tensors good = {large(1), large(2), indices(2), large(3)};
  const Program program = traced(function, good);
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  tbb::task_arena(4).execute([&] {
    program::Executor executor(program, {good, {}}, {.parallel_ns = 1});
    REQUIRE(executor.parallel_steps() == 2);  // what is written after the op that may refuse waits for it
    const Tensors bad = {large(1), large(2), indices(1000), large(3)};
    CHECK_THROWS_WITH(executor.run({bad, {}}), Catch::Contains("gather"));
    // Nothing is poisoned: the refusing op writes no argument, and the one before it has run.
    for (const size_t i : {size_t{0}, size_t{3}}) {
      CHECK(values(bad[i])[0] == (i == 0 ? 2 : 3));
      CHECK(bad[i].version() == (i == 0 ? 1 : 0));
    }
    CHECK(values(executor.run({good, {}})[0]).size() == 600);
  });
}

TEST_CASE("parallel steps: training steps on two ranks with several threads are eager's") {
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  run_ranks(2, [](Rank&) {
    const ProcessMesh* const mesh = ProcessMesh::make({2}, {}, {"x"});
    const auto make = [&] { return distribute(large(0.25), DistSpec::parse(mesh, "x, -")).set_requires_grad(true); };
    Tensor a = make(), b = make();
    const auto step = [](Tensor& w) {
      return [&w](const Tensors& in) -> Tensors {
        const Tensor left = sin(multiply(w, in[0])), right = cos(add(w, in[0]));
        const Tensor loss = total(multiply(left, right));
        loss.backward();
        const NoGrad off;
        add_(w, scale(w.grad(), Scalar(-1e-6), Scalar(0), true));
        w.set_grad({});
        return {loss.detach()};
      };
    };
    CapturedFunction captured(step(a), {.executor = {.parallel_ns = 1}});
    const auto eager = step(b);
    for (int run = 0; run < 3; ++run) {
      const Tensor x = distribute(large(run), DistSpec::parse(mesh, "-, x"));
      check(whole(captured({x})[0]) == whole(eager({x})[0]), "losses");
      check(whole(a) == whole(b), "parameters");
    }
  });
}

TEST_CASE("order: what frees more than it takes runs first, and never before what it needs") {
  const auto function = [](const Tensors& in) -> Tensors {
    const Tensor wide = exp(in[0]);
    const Tensor other = sin(in[0]);  // as wide
    const Tensor view = reshape(wide, {-1});
    const Tensor narrow = sum(view, {}, false);  // the last use of the first
    Tensor written = cos(in[0]);
    const Tensor before = sum(written, {}, false);
    relu_(written);
    return {sum(multiply(other, written), {}, false), narrow, before};
  };
  const Tensors inputs = {large(-1)};
  const Program captured = traced(function, inputs), ordered = program::schedule(captured);
  ordered.verify();
  CHECK(op_names(captured) == Names{"exp", "sin", "reshape", "sum", "cos", "sum", "relu_", "multiply", "sum"});
  CHECK(op_names(ordered) == Names{"exp", "reshape", "sum", "sin", "cos", "sum", "relu_", "multiply", "sum"});
  const auto most = [](const Program& program) {
    const std::vector<int64_t> live = program::live_bytes(program);
    return *std::max_element(live.begin(), live.end());
  };
  CHECK(most(ordered) <= most(captured));
  size_t none = 0;
  CHECK(run(ordered, inputs, 0, none) == run(captured, inputs, 0, none));
}

TEST_CASE("order: writes stay between the reads before and after them, and random ops draw in their order") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor x = exp(in[0]);
    const Tensor first = dropout(x, {}, Scalar(0.5));
    const Tensor sum_before = sum(x, {}, false);
    add_(x, in[0]);
    const Tensor second = dropout(x, {}, Scalar(0.25));
    return {sum_before, sum(first, {}, false), sum(second, {}, false), sum(x, {}, false)};
  };
  const Tensors inputs = {large(0)};
  const Program captured = traced(function, inputs), ordered = program::schedule(captured);
  ordered.verify();
  std::vector<uint64_t> draws;
  for (const program::Op& op : ordered.ops) {
    if (op.kind == program::Kind::call && op.entry->op->random) draws.push_back(op.draw);
  }
  CHECK(std::is_sorted(draws.begin(), draws.end()));
  const auto values_of = [&](const Program& program) {
    call::thread_generator().set_seed(3);
    size_t none = 0;
    return run(program, inputs, 0, none);
  };
  CHECK(values_of(ordered) == values_of(captured));
}

TEST_CASE("order: a write that outlives the run does not pass an op that may refuse values, either way") {
  const Tensor table = leaf(Values(64, 1)), other = vec({1, 2, 3});
  const auto make = [] { return Tensors{leaf(Values(4096, 1)), leaf(Values(4096, 2))}; };
  // A training step whose updates free gradients early, and an index that is wrong after the first of them.
  const auto step = [&](const Tensors& weights) {
    return [&, weights](const Tensors& in) -> Tensors {
      Tensor x = in[0], none;
      for (const Tensor& w : weights) w.set_grad({});
      for (const Tensor& w : weights) x = tanh(multiply(x, w));
      total(x).backward();
      const NoGrad off;
      Tensor first = weights[0], second = weights[1];
      sgd_(first, vec({0.1}), first.grad(), none);
      const Tensor picked = gather(other, in[1]);
      sgd_(second, vec({0.1}), second.grad(), none);
      for (const Tensor& w : weights) w.set_grad({});
      return {picked};
    };
  };
  const Tensor x = vec(Values(4096, 0.5));
  const auto index = [](int64_t last) { return Tensor::from_data(std::vector<int64_t>{0, last}, {2}); };
  for (const double parallel_ns : {0.0, 1.0}) {
    const Tensors a = make(), b = make();
    CapturedFunction captured(step(a), {.executor = {.parallel_ns = parallel_ns}});
    const auto eager = step(b);
    captured({x, index(2)});
    eager({x, index(2)});
    CHECK_THROWS_AS(captured({x, index(9)}), Error);
    CHECK_THROWS_AS(eager({x, index(9)}), Error);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(values(a[i]) == values(b[i]));
      CHECK(a[i].version() == b[i].version());
    }
  }
}

TEST_CASE("order: integers that an op has accepted do not hold updates back that its gradient follows") {
  const Tensor table = leaf(Values(64, 1)), w = leaf(Values(4096, 1));
  const Tensor x = vec(Values(4096, 0.5)), index = Tensor::from_data(std::vector<int64_t>{0, 3}, {2});
  const Program program = traced(
      [&](const Tensors& in) -> Tensors {
        Tensor weight = w, none;
        const Tensor picked = embedding(in[1], reshape(table, {16, 4}));
        const Tensor loss = add(total(tanh(multiply(in[0], weight))), total(picked));
        loss.backward();
        const NoGrad off;
        sgd_(weight, vec({0.1}), weight.grad(), none);
        weight.set_grad({});
        return {assign(table.grad())};
      },
      {x, index});
  const Names names = op_names(program);
  const std::vector<bool> refuses = program::find_refusals(program);
  const auto at = [&](const char* name) {
    const auto found = std::find(names.begin(), names.end(), name);
    REQUIRE(found != names.end());
    return static_cast<size_t>(found - names.begin());
  };
  CHECK(refuses[at("embedding")]);
  CHECK(!refuses[at("embedding_grad")]);
}

TEST_CASE("order: an op that reads integers without a look at them has accepted none") {
  const auto function = [](const Tensors& in) -> Tensors {
    Tensor after = in[2];
    const Tensor other = add(in[0], in[1]);  // of the same table and integers as gather
    const Tensor rows = gather(in[0], in[1], Scalar(0));
    scale_(after, Scalar(2), Scalar(0), true);
    return {other, rows};
  };
  const auto integers = [](int64_t last) {
    std::vector<int64_t> all(20000, 1);
    all.back() = last;
    return Tensor::from_data(all, {20000});
  };
  const Tensors good = {integers(2), integers(2), large(3)};
  const Program program = traced(function, good);
  const std::vector<bool> refuses = program::find_refusals(program);
  const Names names = op_names(program);
  REQUIRE(names == Names{"add", "gather", "scale_"});
  CHECK(refuses[1]);
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  tbb::task_arena(4).execute([&] {
    program::Executor executor(program, {good, {}}, {.parallel_ns = 1});
    const Tensors bad = {integers(2), integers(100000), large(3)};
    CHECK_THROWS_WITH(executor.run({bad, {}}), Catch::Contains("gather"));
    CHECK(values(bad[2])[0] == 3);
    CHECK(bad[2].version() == 0);
  });
}

}  // namespace schedule_test
