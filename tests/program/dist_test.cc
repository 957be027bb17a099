// Programs on meshes: reshards and write-backs are ops of their own, and every rank runs the same program on its
// local shards.
#include <catch2/catch.hpp>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace dist_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Runs `function` captured and eagerly on the ranks of a world, each `runs` times on tensors that `make` makes,
/// and compares outputs, inputs and layouts.
void compare(int ranks, const program::Function& function, const std::function<Tensors(int run)>& make, int runs = 3) {
  run_ranks(ranks, [&](Rank& rank) {
    CapturedFunction captured(function, {});
    for (int run = 0; run < runs; ++run) {
      const Tensors a = make(run), b = make(run);
      rank.generator.set_seed(static_cast<uint64_t>(run));
      const Tensors out = captured(a);
      rank.generator.set_seed(static_cast<uint64_t>(run));
      const Tensors expected = function(b);
      check(out.size() == expected.size(), "as many outputs");
      for (size_t i = 0; i < out.size(); ++i) {
        check(
            out[i].is_dist() == expected[i].is_dist() && (!out[i].is_dist() || spec_of(out[i]) == spec_of(expected[i])),
            "the layout of output " + std::to_string(i));
        check(whole(out[i]) == whole(expected[i]), "output " + std::to_string(i));
      }
      for (size_t i = 0; i < a.size(); ++i) {
        check(whole(a[i]) == whole(b[i]), "input " + std::to_string(i));
        check(a[i].version() == b[i].version(), "version of input " + std::to_string(i));
      }
    }
    check(captured.stats().misses == 1, "captured once");
  });
}

}  // namespace

TEST_CASE("33: a distributed tensor that outlives its capture is found out by calls, moves and reads") {
  run_ranks(2, [](Rank&) {
    const ProcessMesh* const mesh = ProcessMesh::make({2}, {}, {"a"});
    Tensor kept;
    CapturedFunction captured([&](const Tensors& in) -> Tensors { return {kept = relu(in[0])}; }, {});
    const Tensor x = on("a, -", {4, 4}, 0, mesh);
    captured({x});
    const std::function<void()> uses[] = {
        [&] { add(x, kept); },        [&] { relu_(kept); },
        [&] { reshape(kept, {16}); }, [&] { reshard(kept, DistSpec::parse(mesh, "-, a")); },
        [&] { full_tensor(kept); },   [&] { captured({kept}); }};
    for (const auto& use : uses)
      check_contains(error_of(use, ErrorCode::no_data), "was made while a function was captured, so it has no value");
    check_contains(to_text(kept), "of a captured function");
  });
}

TEST_CASE("29: reshards are ops of the program, and layouts stand on every value") {
  run_ranks(4, [](Rank&) {
    CapturedFunction captured(
        [](const Tensors& in) -> Tensors {
          return {matmul(in[0], in[1]), relu(matmul(in[0], in[1]))};
        },
        {});
    const Tensors in = {on("a, b", {4, 6}), on("b, -", {6, 2})};
    const std::string text = to_text(captured.trace(in).program);
    check_contains(text, "input input_0 %1: f64[4, 6] [a, b]");
    check_contains(text, "%3: f64[4, 2] [a, -] sum(b) = matmul(x: %1, y: %2");
    check_contains(text, "= reshard(%4, layout=");
    check_contains(text, "# for relu x");
    const int64_t before = captured.stats().misses;
    check(whole(captured(in)[1]) == whole(relu(matmul(in[0], in[1]))), "the value");
    check(captured.stats().misses == static_cast<uint64_t>(before), "found again");
  });
}

TEST_CASE("29: programs on meshes do what eager calls do, for uneven shards and ranks outside the mesh") {
  for (const int ranks : {4, 5}) {
    compare(
        ranks,
        [](const Tensors& in) -> Tensors {
          Tensor y = matmul(in[0], in[1]);
          Tensor z = softmax(add(y, in[2]), 1);
          return {y,
                  z,
                  sum(z, {0}, false),
                  reshape(z, {3, 5}),
                  reshape(in[0], {14, 1, 5}),
                  expand(sum(in[2], {1}, true), {5, 4})};
        },
        [](int run) -> Tensors {
          return {on("a, b", {5, 14}, run), on("b, -", {14, 3}, 2 * run), on("-, a", {5, 3})};
        });
  }
}

TEST_CASE("29: a target that has to move is moved, written and written back, as ops of the program") {
  compare(
      4,
      [](const Tensors& in) -> Tensors {
        Tensor x = in[0], y = in[1];
        softmax_(x, 0);
        relu_(y);
        return {x, multiply(x, y)};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 3}, run), on("a, - | sum(b)", {5, 3}, -7.0 + run)};
      });
}

TEST_CASE("31: under ViewPolicy::sync writes through views of resharded inputs reach the source in programs too") {
  run_ranks(4, [](Rank& rank) {
    Policies policies;
    policies.view = ViewPolicy::sync;
    const PolicyScope scope(rank, policies);
    const auto function = [](const Tensors& in) -> Tensors {
      Tensor view = reshape(in[0], {15});  // which reshards rows of uneven shards
      scale_(view, Scalar(2), Scalar(1), true);
      return {add(in[0], in[0]), assign(view)};
    };
    CapturedFunction captured(function, {});
    for (int run = 0; run < 3; ++run) {
      const Tensor a = on("-, a", {5, 3}, run), b = on("-, a", {5, 3}, run);
      const Tensors out = captured({a}), expected = function({b});
      check(whole(a) == whole(b), "the source");
      for (size_t i = 0; i < 2; ++i) check(whole(out[i]) == whole(expected[i]), "output " + std::to_string(i));
    }
  });
}

TEST_CASE("31: under ViewPolicy::sync writes through views of views reach the source in programs too") {
  run_ranks(4, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::sync, .inplace = InplacePolicy::adopt});
    const auto function = [](const Tensors& in) -> Tensors {
      Tensor source = scale(in[0], Scalar(2));
      Tensor view = reshape(source, {15});  // which reshards rows of uneven shards
      relu_(view);                          // which adopts the layout of the result
      Tensor inner = reshape(view, {5, 3});
      scale_(inner, Scalar(2), Scalar(1), true);
      scale_(view, Scalar(3));
      Tensor replaced = assign(source);
      const Tensor former = reshape(replaced, {1, 5, 3});
      reshape_(replaced, {15});
      scale_(replaced, Scalar(5));
      reshape_(replaced, {3, 5});
      scale_(replaced, Scalar(7));
      return {assign(source), assign(view), assign(inner), assign(former), assign(replaced)};
    };
    CapturedFunction captured(function, {});
    for (const char* layout : {"-, a", "a, - | sum(b)"}) {
      for (int run = 0; run < 3; ++run) {
        const Tensor x = on(layout, {5, 3}, run - 7);
        const Tensors out = captured({x}), expected = function({x});
        for (size_t i = 0; i < out.size(); ++i)
          check(whole(out[i]) == whole(expected[i]), layout + std::string(" output ") + std::to_string(i));
      }
    }
  });
}

TEST_CASE("35: random ops on meshes draw what eager calls draw") {
  compare(
      4,
      [](const Tensors& in) -> Tensors {
        return {multiply(in[0], uniform({5, 4}, DistSpec::parse(mesh22(), "b, a"), DType::float64)),
                std::get<0>(std::tuple(dropout(in[0], {}, Scalar(0.5))))};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 4}, run)};
      });
}

TEST_CASE("29: creation in a pending layout, distribute and full are ops of the program") {
  compare(
      4,
      [](const Tensors& in) -> Tensors {
        const Tensor pending = full({5, 4}, Scalar(3), DistSpec::parse(mesh22(), "-, a | sum(b)"), DType::float64);
        return {add(pending, in[0]), distribute(full_tensor(in[0]), DistSpec::parse(mesh22(), "b, -"))};
      },
      [](int run) -> Tensors {
        return {on("a, b", {5, 4}, run)};
      });
}

TEST_CASE("32: a training step on a mesh is one program, equal to eager after each of 5 steps") {
  run_ranks(4, [](Rank&) {
    const auto make = [] {
      Tensors state = {on("-, b", {4, 6}, -3), on("b, -", {6, 3}, 1)};
      for (const Tensor& w : state) w.set_requires_grad(true);
      return state;
    };
    Tensors a = make(), b = make();
    const Tensor rate = distribute(vec({1e-4}), DistSpec::replicated(mesh22(), 1));
    const auto step = [&](Tensors& weights) {
      return [&](const Tensors& in) -> Tensors {
        const Tensor y = matmul(relu(matmul(in[0], weights[0])), weights[1]);
        const Tensor loss = mean(multiply(y, y), {}, false);
        for (const Tensor& w : weights) w.set_grad({});
        loss.backward();
        const NoGrad off;
        Tensor none;
        for (Tensor& w : weights) sgd_(w, rate, w.grad(), none);
        return {loss};
      };
    };
    CapturedFunction captured(step(a), {});
    const auto eager = step(b);
    for (int run = 0; run < 5; ++run) {
      const Tensor x = on("a, -", {5, 4}, run);
      check(whole(captured({x})[0]) == whole(eager({x})[0]), "the loss");
      for (size_t i = 0; i < 2; ++i) {
        check(whole(a[i]) == whole(b[i]), "weight " + std::to_string(i));
        check(whole(a[i].grad()) == whole(b[i].grad()), "gradient " + std::to_string(i));
        check(spec_of(a[i].grad()) == spec_of(b[i].grad()), "layout of gradient " + std::to_string(i));
      }
    }
  });
}

TEST_CASE("32: backward of a captured function on a mesh, called outside") {
  run_ranks(5, [](Rank&) {
    Tensors grads[2];
    for (const bool use_capture : {false, true}) {
      const Tensor x = on("a, -", {5, 4}, -2).set_requires_grad(true),
                   w = on("-, b", {4, 6}, 1).set_requires_grad(true);
      const program::Function function = [&](const Tensors& in) -> Tensors {
        const Tensor y = tanh(scale(matmul(in[0], w), Scalar(0.01), Scalar(0), true));
        return {y, sum(multiply(y, y), {1}, false)};
      };
      CapturedFunction captured(function, {});
      const Tensors out = use_capture ? captured({x}) : function({x});
      backward({sum(out[0], {}, false), sum(multiply(out[1], out[1]), {}, false)});
      grads[use_capture] = {x.grad(), w.grad()};
    }
    for (size_t i = 0; i < 2; ++i) {
      check(spec_of(grads[0][i]) == spec_of(grads[1][i]), "layout of gradient " + std::to_string(i));
      const auto a = whole(grads[0][i]), b = whole(grads[1][i]);
      check(a.size() == b.size(), "size");
      for (size_t k = 0; k < a.size(); ++k)
        check(std::abs(a[k] - b[k]) <= 1e-12 * (1 + std::abs(a[k])), "gradient " + std::to_string(i));
    }
  });
}

TEST_CASE("31: a view that was resharded is an input or parameter as it is an argument of eager calls") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    for (const bool closure : {false, true}) {
      const Tensor q = on("-", {6}, 1, mesh).set_requires_grad(true);
      Tensor base = on("-,p", {2, 3}, 1, mesh);
      const Tensor view = reshape(base, {6});
      check(!view.shares_buffer_with(base), "the view was resharded");
      CapturedFunction captured([&](const Tensors& in) -> Tensors { return {multiply(in[0], closure ? view : in[1])}; },
                                {});
      const Tensors inputs = closure ? Tensors{q} : Tensors{q, view};
      const Tensor out = captured(inputs)[0];
      check(whole(out.detach()) == Values{1, 4, 9, 16, 25, 36}, "the value");
      scale_(base, Scalar(2), Scalar(0), true);
      total(out).backward();  // the view is a snapshot
      check(whole(q.grad()) == Values{1, 2, 3, 4, 5, 6}, "the gradient");
      check_contains(error_of([&] { captured(inputs); }, ErrorCode::stale_view), "[reshape] made it from a copy");
    }
    Tensor base = on("-,p", {2, 3}, 1, mesh), other = on("-,p", {2, 3}, 1, mesh);
    Tensor view = reshape(base, {6});
    CapturedFunction writes(
        [&](const Tensors& in) -> Tensors {
          return {scale_(view, Scalar(2), Scalar(0), true), in[0]};
        },
        {});
    error_of([&] { writes({base}); }, ErrorCode::view_of_copy);
    CapturedFunction reads_old(
        [&](const Tensors& in) -> Tensors {
          Tensor target = in[0];
          scale_(target, Scalar(2), Scalar(0), true);
          return {add(in[1], in[1])};
        },
        {});
    check(whole(reads_old({other, view})[0]) == Values{2, 4, 6, 8, 10, 12}, "another tensor is written");
    error_of([&] { reads_old({base, view}); }, ErrorCode::stale_view);
    check(whole(base) == Values{1, 2, 3, 4, 5, 6}, "nothing was written");
    const PolicyScope policies(rank, {.view = ViewPolicy::sync});
    const Tensor synced = reshape(base, {6});
    CapturedFunction reads([&](const Tensors& in) -> Tensors { return {add(in[0], synced)}; }, {});
    for (int run = 1; run <= 3; ++run) {
      check(whole(reads({synced})[0]) == whole(add(synced, synced)), "in step");
      scale_(base, Scalar(2), Scalar(0), true);
    }
    check(whole(reads({synced})[0]) == Values{16, 32, 48, 64, 80, 96}, "brought up to date before the run");
  });
}

TEST_CASE("32: on meshes too a leaf in two places has one gradient, and constants are each run's own") {
  run_ranks(2, [](Rank&) {
    const ProcessMesh* const mesh = ProcessMesh::make({2}, {}, {"a"});
    const auto function = [&](const Tensors& in) -> Tensors {
      Tensor constant = distribute(iota<double>({4, 4}, 1), DistSpec::parse(mesh, "-, a"));
      add_(constant, in[0]);
      return {constant, matmul(in[0], constant)};
    };
    CapturedFunction captured(function, {});
    for (int run = 0; run < 3; ++run) {
      const Tensor x = on("a, -", {4, 4}, run, mesh);
      const Tensors out = captured({x}), expected = function({x});
      for (size_t i = 0; i < out.size(); ++i)
        check(whole(out[i]) == whole(expected[i]) && spec_of(out[i]) == spec_of(expected[i]), "outputs");
    }
    const auto make = [&] { return on("a, -", {4, 4}, 1, mesh).set_requires_grad(true); };
    const auto step = [](const Tensor& w) {
      return [w](const Tensors& in) -> Tensors {
        return sum(multiply(in[0], multiply(in[1], w))).backward(), Tensors{assign(w.grad())};
      };
    };
    const Tensor a = make(), b = make();
    CapturedFunction trained(step(a), {});
    const program::Function eager = step(b);
    for (int run = 0; run < 3; ++run) {
      check(whole(trained({a, a})[0]) == whole(eager({b, b})[0]), "gradient inside");
      check(whole(a.grad()) == whole(b.grad()) && spec_of(a.grad()) == spec_of(b.grad()), "gradient outside");
    }
  });
}

TEST_CASE("33: a captured convolution of an image with a sharded space dim fetches what windows read of other ranks") {
  const ProcessMesh* const mesh = ProcessMesh::make({3}, {}, {"a"});
  const auto function = [](const Tensors& in) -> Tensors {
    const Tensor out = conv2d(in[0], in[1], {2, 1}, {1, 1});
    const Tensor pooled = pool2d(out, {2, 3}, {1, 1}, {0, 1}, false, true, "NCHW", "max");
    const Tensor larger = conv2d_transpose(pooled, in[1], {2, 1}, {1, 1}),
                 places = cast(std::get<1>(max_pool2d_with_index(larger, {2, 2})), larger.dtype());
    const Tensor smooth = bilinear_interp(larger, {}, {}, {}, "NCHW", 0, 9, 6);
    Tensors results = grad({total(multiply(smooth, smooth))}, {in[0], in[1]});
    results.insert(results.end(), {out, pooled, larger, places, smooth});
    return results;
  };
  compare(3, function, [&](int run) {
    Tensors inputs = {on("-, -, a, -", {1, 2, 13, 4}, run, mesh), on("-, -, -, -", {2, 2, 3, 3}, run - 5, mesh)};
    for (Tensor& input : inputs) input = input.set_requires_grad(true);
    return inputs;
  });
}

}  // namespace dist_test
