// Gradients of distributed tensors.
#include <catch2/catch.hpp>

#include "shard/api/local_map.h"
#include "shard/autograd/autograd.h"
#include "shard/program.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace dist_test {

using namespace shard;
using namespace shard::test;

namespace {

Tensor total(const Tensor& x) { return sum(x, {}, false); }

/// For any rank, where assertions of the test library are not thread safe.
void require(bool holds, CallSite site = CallSite::here()) { check(holds, "the requirement" + site.text()); }

}  // namespace

TEST_CASE("autograd: gradients of a distributed layer equal those of one rank") {
  const std::vector<double> xs = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, ws = {1, -1, 2, 0, 3, 1};
  const auto run = [](const Tensor& x, const Tensor& w) { total(relu(matmul(x, w, false, false))).backward(); };
  const Tensor x1 = Tensor::from_data(xs, {4, 3}).set_requires_grad(true),
               w1 = Tensor::from_data(ws, {3, 2}).set_requires_grad(true);
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
          require(spec_of(x.grad()) == xl);
          require(spec_of(w.grad()) == wl);
          require(full_tensor(x.grad()).to_vector<double>() == x1.grad().to_vector<double>());
          require(full_tensor(w.grad()).to_vector<double>() == w1.grad().to_vector<double>());
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
    for (int i = 0; i < 3; ++i)
      weights.push_back(
          distribute(Tensor::from_data<double>({1}, {1, 1}), DistSpec::parse(mesh, "-, -")).set_requires_grad(true));
    const auto forward = [&] {
      Tensor y = x;
      for (const Tensor& w : weights) y = matmul(y, w, false, false);
      return total(y);
    };
    const Tensor loss = forward();
    const uint64_t before = rank.stats().collectives;
    loss.backward();
    require(rank.stats().collectives - before == 1);
    for (const Tensor& w : weights) require(full_tensor(w.grad()).to_vector<double>() == std::vector<double>{10});
    set_grad_layout(weights[0], GradLayout::as_is);
    weights[0].set_grad({});
    forward().backward();
    require(spec_of(weights[0].grad())->text() == "[-, -] sum(p)");
    require(full_tensor(weights[0].grad()).to_vector<double>() == std::vector<double>{10});
  });
}

TEST_CASE("autograd: the gradient of a reshard is a reshard") {
  World::local(2)->run([&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const DistSpec* rows = DistSpec::parse(mesh, "p, -");
    const DistSpec* columns = DistSpec::parse(mesh, "-, p");
    const Tensor whole = Tensor::from_data<double>({1, 2, 3, 4, 5, 6}, {3, 2});
    const Tensor x = distribute(whole, rows).set_requires_grad(true);
    const Tensor y = reshard(x, columns);
    const Tensor stays = reshard(x, rows);
    require(stays.is_leaf());
    Tensor seen;
    add_hook(x, [&](const Tensor& gradient) { return seen = gradient, Tensor(); });
    total(multiply(y, y)).backward();
    require(spec_of(x.grad()) == rows);
    require(full_tensor(x.grad()).to_vector<double>() == std::vector<double>{2, 4, 6, 8, 10, 12});
    const std::vector<Tensor> both = reshard(std::vector<Tensor>{x, x}, {columns, rows});
    x.set_grad({});
    total(multiply(both[0], reshard(both[1], columns))).backward();
    require(full_tensor(x.grad()).to_vector<double>() == std::vector<double>{2, 4, 6, 8, 10, 12});
  });
}

TEST_CASE("autograd: gradients go into and out of a mesh") {
  World::local(2)->run([&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x = Tensor::from_data<double>({1, 2, 3}, {3}).set_requires_grad(true);
    const Tensor out =
        full_tensor(multiply(distribute(x, DistSpec::parse(mesh, "p")), distribute(x, DistSpec::parse(mesh, "-"))));
    total(out).backward();
    require(x.grad().to_vector<double>() == std::vector<double>{2, 4, 6});
  });
}

TEST_CASE("autograd: a local shard has no gradient, and says so") {
  World::local(2)->run([&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x =
        distribute(Tensor::from_data<double>({1, 2, 3}, {3}), DistSpec::parse(mesh, "p")).set_requires_grad(true);
    const Tensor shard = local(x);
    check_contains(error_of([&] { total(shard).backward(); }, ErrorCode::autograd), "[local] has no gradient");
  });
}

TEST_CASE("26: a saved view of a resharded temporary stays valid when the original is written") {
  World::local(2)->run([&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor w = distribute(Tensor::from_data<double>({1, 1, 1, 1, 1, 1}, {6}), DistSpec::parse(mesh, "-"))
                         .set_requires_grad(true);
    Tensor x = distribute(Tensor::from_data<double>({1, 2, 3, 4, 5, 6}, {3, 2}), DistSpec::parse(mesh, "-, p"));
    const Tensor view = reshape(x, {6});
    require(!(view.shares_buffer_with(x)));
    const Tensor out = multiply(view, w);
    add_(x, x);
    total(out).backward();
    require(full_tensor(w.grad()).to_vector<double>() == std::vector<double>{1, 2, 3, 4, 5, 6});
  });
}

TEST_CASE("autograd: the gradient of local_map is that of the function on shards, summed where shards are shared") {
  const std::vector<double> xs = {1, -2, 3, -4, 5}, ws = {2, 3, 4, 5, 6};
  // sum(x) * x * s: a function on local shards that has a pending sum, a sharded and a replicated argument, and
  // returns all three kinds.
  run_ranks(3, [&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({3}, {}, {"p"});
    const DistSpec *sharded = DistSpec::parse(mesh, "p"), *whole = DistSpec::parse(mesh, "-"),
                   *pending = DistSpec::parse(mesh, "- | sum(p)");
    const Tensor x = distribute(Tensor::from_data(xs, {5}), sharded).set_requires_grad(true);
    const Tensor s = distribute(Tensor::from_data<double>({2}, {1}), whole).set_requires_grad(true);
    const auto function = local_map(
        [](const Tensor& shard, const Tensor& factor) {
          return std::tuple(multiply(multiply(shard, shard), factor), multiply(sum(shard, {0}, true), factor),
                            multiply(factor, factor));
        },
        {sharded, whole}, {sharded, pending, whole});
    const auto [squares, sums, square] = function(x, s);
    // sum(x^2 s) + 3 sum(x) s + 10 s^2
    total(add(add(total(squares), scale(sums, 3)), scale(square, 10))).backward();
    std::vector<double> dx;
    double ds = 10 * 2 * 2;
    for (const double v : xs) dx.push_back(2 * v * 2 + 3 * 2), ds += v * v + 3 * v;
    check(spec_of(x.grad()) == sharded && full_tensor(x.grad()).to_vector<double>() == dx,
          "the gradient of the sharded input");
    check(spec_of(s.grad()) == whole && full_tensor(s.grad()).to_vector<double>() == std::vector<double>{ds},
          "the gradient of the replicated input");
  });
}

TEST_CASE("autograd: the gradient of local_map on some of the ranks, with an input that is moved and one that stays") {
  run_ranks(3, [&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const DistSpec *sharded = DistSpec::parse(mesh, "p"), *whole = DistSpec::parse(mesh, "-");
    const Tensor x = distribute(Tensor::from_data<double>({1, 2, 3}, {3}), whole).set_requires_grad(true);
    const Tensor y = distribute(Tensor::from_data<double>({4, 5, 6}, {3}), sharded).set_requires_grad(true);
    const auto function =
        local_map([](const Tensor& a, const Tensor& b) { return multiply(a, b); }, {sharded, nullptr}, {sharded});
    total(function(x, y)).backward();
    check(full_equals<double>(x.grad(), {4, 5, 6}), "the gradient of the input that is resharded");
    check(full_equals<double>(y.grad(), {1, 2, 3}), "the gradient of the one that stays");
  });
}

TEST_CASE("autograd: local_map refuses what it has no gradient for, before it runs") {
  run_ranks(2, [&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const DistSpec* whole = DistSpec::parse(mesh, "-");
    const Tensor x = distribute(Tensor::from_data<double>({1, 2}, {2}), whole).set_requires_grad(true);
    const Tensor plain = Tensor::from_data<double>({1, 2}, {2}).set_requires_grad(true);
    const auto product = [](const Tensor& a, const Tensor& b) { return multiply(a, b); };
    const auto refused = [](const auto& call, const char* part) {
      check_contains(error_of(call, ErrorCode::autograd), part);
    };
    refused(
        [&] {
          local_map(product, {whole, nullptr}, {whole})(x, plain);
        },
        "[local_map] argument 'input 1' is a plain tensor");
    refused([&] { local_map([&](const Tensor& a) { return multiply(a, plain); }, {whole}, {whole})(x); },
            "is not one of its inputs");
    refused([&] { local_map([](const Tensor& a) { return a; }, {whole}, {DistSpec::parse(mesh, "- | max(p)")})(x); },
            "a pending reduction other than sum");
  });
}

TEST_CASE(
    "26: under ViewPolicy::sync a view that was resharded has the history of its source, and its source that of writes "
    "through it") {
  World::local(2)->run([&](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::sync});
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x = distribute(Tensor::from_data<double>({1, 2, 3, 4, 5, 6}, {3, 2}), DistSpec::parse(mesh, "-, p"))
                         .set_requires_grad(true);
    const auto gradient = [&](const Tensor& out) {
      return full_tensor(grad({total(out)}, {x})[0]).to_vector<double>();
    };
    Tensor base = assign(x);
    Tensor view = reshape(base, {6});
    require(!(view.shares_buffer_with(base)));
    square_(base);
    require(gradient(view) == std::vector<double>{2, 4, 6, 8, 10, 12});
    base = assign(x);
    view = reshape(base, {6});
    square_(view);
    require(gradient(base) == std::vector<double>{2, 4, 6, 8, 10, 12});
    // The old value is needed, which the write through the view will change.
    base = assign(x);
    view = reshape(base, {6});
    multiply_(view, reshape(base, {6}));
    require(gradient(base) == std::vector<double>{2, 4, 6, 8, 10, 12});
  });
}

TEST_CASE("28: a saved view that was brought up to date since is an error") {
  World::local(2)->run([&](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::sync});
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor w = distribute(Tensor::from_data<double>({1, 1, 1, 1, 1, 1}, {6}), DistSpec::parse(mesh, "-"))
                         .set_requires_grad(true);
    Tensor x = distribute(Tensor::from_data<double>({1, 2, 3, 4, 5, 6}, {3, 2}), DistSpec::parse(mesh, "-, p"));
    const Tensor view = reshape(x, {6});
    const Tensor before = multiply(view, w);
    add_(x, x);
    const Tensor after = multiply(view, w);
    require(full_tensor(grad({total(after)}, {w})[0]).to_vector<double>() == std::vector<double>{2, 4, 6, 8, 10, 12});
    const std::string text = error_of([&] { total(before).backward(); }, ErrorCode::autograd);
    for (const char* part : {"'x'", "has been written since", "[add_]"}) check_contains(text, part);
  });
}

TEST_CASE("autograd: gradients are not added up in the buffer of a view that was resharded") {
  for (const ViewPolicy view : {ViewPolicy::strict, ViewPolicy::sync}) {
    World::local(2)->run([&](Rank& rank) {
      const PolicyScope scope(rank, {.view = view});
      const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
      const Tensor x = distribute(Tensor::from_data<double>({1, 2, 3, 4, 5, 6}, {2, 3}), DistSpec::parse(mesh, "-, -"))
                           .set_requires_grad(true);
      const Tensor y = square(x), flat = reshape(y, {6});
      // The gradient of y by flat is a view of the first one, and that of the square is added to it.
      const Tensor given = distribute(Tensor::from_data<double>({1, 1, 1, 1, 1, 1}, {6}), DistSpec::parse(mesh, "p"));
      backward(
          {square(y), flat},
          {distribute(Tensor::from_data<double>({1, 1, 1, 1, 1, 1}, {2, 3}), DistSpec::parse(mesh, "-, p")), given});
      require(full_tensor(x.grad()).to_vector<double>() == std::vector<double>{6, 36, 114, 264, 510, 876});
      require(full_tensor(given).to_vector<double>() == std::vector<double>(6, 1));
    });
  }
}

TEST_CASE(
    "autograd: gradients of leaves are still under way when backward returns, and are waited for when they are read") {
  World::local(2)->run([&](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x = distribute(Tensor::from_data<double>({1, 2, 3, 4}, {4, 1}), DistSpec::parse(mesh, "p, -"));
    const auto weight = [&] {
      return distribute(Tensor::from_data<double>({2}, {1, 1}), DistSpec::parse(mesh, "-, -")).set_requires_grad(true);
    };
    const Tensor a = weight(), b = weight(), c = weight();
    const auto before = rank.stats().collectives;
    // Buckets of one gradient of 8 bytes: three collectives, the first of which starts while the others are still
    // to be computed.
    backward({total(matmul(matmul(matmul(x, a), b), c))}, {}, {.bucket_bytes = 8});
    require(rank.stats().collectives - before == 3);
    bool under_way = false;
    for (const Tensor& leaf : {a, b, c}) under_way = under_way || leaf.grad().impl()->value.storage()->pending();
    require(under_way);
    for (const Tensor& leaf : {a, b, c})
      require(full_tensor(leaf.grad()).to_vector<double>() == std::vector<double>{40});
    require(!(a.grad().impl()->value.storage()->pending()));
  });
}

TEST_CASE("25: a leaf that requires a gradient does not adopt the layout of a result") {
  World::local(2)->run([&](Rank& rank) {
    const PolicyScope scope(rank, {.inplace = InplacePolicy::adopt});
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const DistSpec* rows = DistSpec::parse(mesh, "p, -");
    const Tensor value = Tensor::from_data<double>({4, 2, 1, 3}, {2, 2});
    Tensor x = distribute(value, rows).set_requires_grad(true), other = distribute(value, rows),
           same = distribute(value, rows).set_requires_grad(true);
    const NoGrad off;
    lu_(other);  // takes the whole matrix
    require(spec_of(other) != rows);
    check_contains(error_of([&] { lu_(x); }, ErrorCode::policy), "it is a leaf that requires a gradient");
    require(spec_of(x) == rows && x.version() == 0 && full_equals<double>(x, {4, 2, 1, 3}));
    add_(same, same);
    require(spec_of(same) == rows && same.version() == 1);
  });
}

TEST_CASE("26: SavePolicy resharded keeps what the call has moved, so that backward sends less") {
  const auto run = [](Rank& rank, SavePolicy policy) {
    const PolicyScope scope(rank, {.save = policy});
    const ProcessMesh* mesh = ProcessMesh::make({3}, {}, {"p"});
    const Tensor value = Tensor::from_data<double>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {5, 2});
    const Tensor x = distribute(value, DistSpec::parse(mesh, "p, -")).set_requires_grad(true);
    const Tensor w = distribute(value, DistSpec::parse(mesh, "-, p")).set_requires_grad(true);
    const Tensor out = multiply(x, scale(w, 2));  // reshards one of the two
    const auto sent = rank.stats().bytes_sent;
    const std::vector<Tensor> gradients = grad({total(out)}, {x, w});
    require(full_equals<double>(gradients[0], {2, 4, 6, 8, 10, 12, 14, 16, 18, 20}) &&
            full_equals<double>(gradients[1], {2, 4, 6, 8, 10, 12, 14, 16, 18, 20}));
    return rank.stats().bytes_sent - sent;
  };
  std::array<std::array<int64_t, 2>, 3> bytes{};
  run_ranks(3, [&](Rank& rank) {
    bytes[static_cast<size_t>(rank.id())] = {run(rank, SavePolicy::original), run(rank, SavePolicy::resharded)};
  });
  int64_t original = 0, resharded = 0;
  for (const auto& [a, b] : bytes) original += a, resharded += b;
  CHECK(resharded < original);
}

TEST_CASE("autograd: a gradient that set_grad has left in another layout is added to in the layout of the leaf") {
  World::local(2)->run([&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    for (const char* leaf_layout : {"p", "-"}) {
      for (const char* layout : {"-", "p", "-|sum(p)"}) {
        for (const bool create_graph : {false, true}) {
          const Tensor x = distribute(Tensor::from_data<double>({1, 2, 3, 4}, {4}), DistSpec::parse(mesh, leaf_layout))
                               .set_requires_grad(true);
          const Tensor given =
              reshard(distribute(Tensor::from_data<double>({10, 20, 30, 40}, {4}), DistSpec::parse(mesh, "-")),
                      DistSpec::parse(mesh, layout));
          x.set_grad(given);
          backward({total(multiply(x, x))}, {}, {.create_graph = create_graph});
          require(spec_of(x.grad()) == spec_of(x));
          require(full_tensor(x.grad().detach()).to_vector<double>() == std::vector<double>{12, 24, 36, 48});
          if (spec_of(given) != spec_of(x))
            require(full_tensor(given).to_vector<double>() == std::vector<double>{10, 20, 30, 40});
          x.set_grad({});
        }
      }
    }
  });
}

TEST_CASE(
    "autograd: a gradient that a hook has given in another layout ends in that of the leaf, and a plain one is "
    "refused") {
  World::local(2)->run([&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor x =
        distribute(Tensor::from_data<double>({1, 2, 3, 4}, {4}), DistSpec::parse(mesh, "p")).set_requires_grad(true);
    add_hook(x, [&](const Tensor& gradient) { return reshard(gradient, DistSpec::parse(mesh, "-")); });
    total(multiply(x, x)).backward();
    require(spec_of(x.grad()) == spec_of(x));
    require(full_tensor(x.grad()).to_vector<double>() == std::vector<double>{2, 4, 6, 8});
    const Tensor plain = Tensor::from_data<double>({1, 2, 3, 4}, {4});
    check_contains(error_of([&] { x.set_grad(plain); }, ErrorCode::layout), "[set_grad] the gradient of f64[4]");
    check_contains(error_of([&] { Tensor(plain).set_requires_grad(true).set_grad(x); }, ErrorCode::layout),
                   "must be a plain tensor like it");
  });
}

TEST_CASE(
    "autograd: a view that was resharded is checked in a recomputed scope under ViewPolicy::sync, where it follows its "
    "source") {
  World::local(2)->run([&](Rank& rank) {
    const PolicyScope policies(rank, {.view = ViewPolicy::sync});
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"p"});
    const Tensor q = distribute(Tensor::from_data<double>({1, 2, 3, 4, 5, 6}, {6}), DistSpec::parse(mesh, "-"))
                         .set_requires_grad(true);
    Tensor base = distribute(Tensor::from_data<double>({1, 2, 3, 4, 5, 6}, {2, 3}), DistSpec::parse(mesh, "-, p"));
    const Tensor view = reshape(base, {6});
    const auto scope = [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{multiply(in[0], view)}; };
    const Tensor out = recompute(scope, {q})[0];
    scale_(base, Scalar(2), Scalar(0), true);
    check_contains(error_of([&] { total(out).backward(); }, ErrorCode::autograd), "its source was");
    total(recompute(scope, {q})[0]).backward();
    require(full_tensor(q.grad()).to_vector<double>() == std::vector<double>{2, 4, 6, 8, 10, 12});
  });
}

TEST_CASE("an observer sees the reductions of gradients, item, sends from one rank and reshards, but no capture") {
  run_ranks(2, [&](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2});
    const Tensor x = ones({4, 2}, DistSpec::parse(mesh, "a, -"));
    const Tensor w = ones({2}, DistSpec::parse(mesh, "-"));
    w.set_requires_grad(true);
    std::vector<CallRecord> records;
    rank.observer = [&](const CallRecord& record) { records.push_back(record); };
    const auto seen = [&](const std::string& op) {
      int64_t bytes = -1;
      for (const CallRecord& record : records) {
        if (record.op == op) bytes = std::max(bytes, record.bytes);
      }
      return bytes;
    };
    sum(multiply(x, w)).backward();
    check(seen("reshard") == 2 * 8, "the gradient of w is reduced: 8 bytes from each rank");
    records.clear();
    check(item(sum(x)).to<double>() == 8, "the sum");
    check(seen("item") > 0, "item reduces");
    distribute(ones({4}), DistSpec::parse(mesh, "a"), from_rank(0));
    check(seen("distribute") == 16, "one rank sends 16 bytes");
    full_tensor(x);
    check(seen("full_tensor") == 32, "each rank sends its 16 bytes");
    reshard(x, DistSpec::parse(mesh, "-, a"));
    check(seen("reshard") > 0, "asked for");
    records.clear();
    capture(
        [&](const std::vector<Tensor>& t) { return std::vector<Tensor>{reshard(t[0], DistSpec::parse(mesh, "-, -"))}; },
        {x});
    check(records.empty(), "a capture sends nothing");
    rank.observer = {};
  });
}

}  // namespace dist_test
