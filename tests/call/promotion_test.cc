// Plain tensors in distributed calls, item() and conditions: statements 4, 6, 12, 18 of docs/semantics.md.
#include <catch2/catch.hpp>

#include "shard/call/item.h"
#include "shard/call/plan_cache.h"
#include "shard/core/log.h"
#include "shard/shard.h"
#include "support/mesh_run.h"
#include "support/policies.h"

namespace promotion_test {

using namespace shard;
using namespace shard::test;

namespace {
const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
constexpr Policies kReplicate{.promotion = PromotionPolicy::replicate};
constexpr Policies kChecked{.promotion = PromotionPolicy::replicate_checked};
}  // namespace

TEST_CASE("6: a plain tensor in a distributed call is an error with both fixes, unless a scope promotes it") {
  run_ranks(3, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4, 3}), DistSpec::parse(line(2), "p, -"));
    const Tensor bias = iota<float>({3}, 10.0f);
    const std::string text = error_of([&] { add(x, bias); }, ErrorCode::layout);
    check_contains(text, "[add] argument 'y' (f32[3]) is a plain tensor");
    check_contains(text, "distribute(tensor, spec)");
    check_contains(text, "full_tensor(tensor)");
    const std::vector<float> expected = add(iota<float>({4, 3}), bias).to_vector<float>();
    {
      const PolicyScope scope(rank, kReplicate);
      check(full_equals(add(x, bias), expected), "promoted second");
      check(full_equals(add(bias, x), expected), "promoted first, before the mesh is known");
      check(call::plan_cache_stats(rank).promoted_arguments == 2, "counted");
      check(add(x, bias).dims() == Dims{4, 3}, "also outside of the mesh");
    }
    error_of([&] { add(x, bias); }, ErrorCode::layout);
  });
}

TEST_CASE("6: lists and optional arguments are promoted too, and share plans with replicated ones") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, kReplicate);
    const Tensor x = distribute(iota<float>({2, 3}), DistSpec::parse(line(2), "-, p"));
    const Tensor plain = iota<float>({2, 3}, 6.0f);
    check(full_equals(concat({plain, x, plain}, 0), concat({plain, iota<float>({2, 3}), plain}, 0).to_vector<float>()),
          "list");
    const Tensor scale = iota<float>({3}, 1.0f);
    const Tensor expected = std::get<0>(layer_norm_intermediate(iota<float>({2, 3}), scale, Tensor(), 1e-5f, 1));
    check(full_equals(std::get<0>(layer_norm_intermediate(x, scale, Tensor(), 1e-5f, 1)), expected.to_vector<float>()),
          "optional");
    const auto start = call::plan_cache_stats(rank);
    add(x, distribute(plain, DistSpec::parse(line(2), "-, -")));
    add(x, plain);
    const auto stats = call::plan_cache_stats(rank);
    check(stats.misses - start.misses == 1 && stats.hits - start.hits == 1, "one plan");
  });
}

TEST_CASE("6: a target is never promoted, and the error says why") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, kReplicate);
    const Tensor x = distribute(iota<float>({4}), DistSpec::parse(line(2), "p"));
    Tensor target = iota<float>({4});
    const std::string text = error_of([&] { add_(target, x); }, ErrorCode::layout);
    check_contains(text, "[add_] argument 'x' (f32[4]) is a plain tensor whose buffer output 'out' would share");
    check(target.to_vector<float>() == std::vector<float>{0, 1, 2, 3} && target.version() == 0, "unchanged");
    const Tensor images = distribute(iota<float>({4, 2}), DistSpec::parse(line(2), "p, -"));
    const Tensor statistics = iota<float>({2});
    check_contains(error_of(
                       [&] {
                         batch_norm(images, statistics, statistics, Tensor(), Tensor(), false, 0.9f, 1e-5f, "NCHW",
                                    false, false);
                       },
                       ErrorCode::layout),
                   "'mean_out' would share");
  });
}

TEST_CASE("6: replicate_checked finds a rank that gives another value or shape") {
  run_ranks(4, [](Rank& rank) {
    const auto* mesh = line(3);
    const PolicyScope scope(rank, kChecked);
    const Tensor x = distribute(iota<float>({4, 3}), DistSpec::parse(mesh, "p, -"));
    const Tensor same = iota<float>({3});
    check(full_equals(add(x, same), add(iota<float>({4, 3}), same).to_vector<float>()), "equal");
    const Tensor differs = iota<float>({3}, rank.id() == 1 ? 5.0f : 0.0f);
    const RandomKey before = rank.generator.state();
    const std::string text = error_of([&] { add(x, differs); }, ErrorCode::layout);
    check_contains(text, "argument 'y' (f32[3]) was promoted to replicated, but is not the same on all ranks");
    check_contains(text, "ranks 1 have another value than rank 0");
    check(rank.generator.state().offset == before.offset, "nothing drawn");
    // The value on ranks outside the mesh is ignored.
    add(x, iota<float>({3}, rank.id() == 3 ? 5.0f : 0.0f));
    error_of([&] { add(x, rank.id() == 2 ? iota<float>({1}) : same); }, ErrorCode::layout);
  });
}

TEST_CASE("6: item reduces, gathers, and gives every rank of the world the value") {
  run_ranks(4, [](Rank& rank) {
    const auto* mesh = line(3);
    const Tensor pending = from_local(rank.id() < 3 ? full({1}, rank.id() + 1.0, DType::float32) : Tensor(),
                                      DistSpec::parse(mesh, "- | sum(p)"), {1}, DType::float32);
    check(item(pending).to<double>() == 6, "the sum, not a contribution");
    const Tensor sharded = distribute(Tensor::from_data(std::vector<int64_t>{(int64_t{1} << 60) + 1}, {1, 1}),
                                      DistSpec::parse(mesh, "-, p"));
    check(item(sharded).is_integer() && item(sharded).to<int64_t>() == (int64_t{1} << 60) + 1, "the element, exactly");
    check(item(distribute(full({}, 2.5), DistSpec::parse(mesh, ""))).to<double>() == 2.5, "replicated");
    check(is_true(pending) && !is_true(distribute(full({1}, 0.0), DistSpec::parse(mesh, "p"))), "conditions");
    const Tensor x = distribute(iota<float>({6}), DistSpec::parse(mesh, "p"));
    int steps = 0;
    for (Tensor value = sum(x); item(value).to<double>() > 1; value = scale(value, 0.5)) ++steps;
    check(steps == 4, "all ranks take the same branches");
    const std::string text = error_of([&] { item(x); }, ErrorCode::shape_mismatch);
    check_contains(text, "[item] argument 'tensor' (f32[6], layout [p] on mesh(p=3)) has 6 elements");
  });
  CHECK(item(full({1, 1}, 7, DType::int32)).to<int64_t>() == 7);
  CHECK(is_true(Tensor::from_data(std::vector<bool>{true}, {})));
  CHECK_FALSE(is_true(full({}, 0.0)));
}

TEST_CASE("20: item is traced, and CommPolicy applies to it") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({1}), DistSpec::parse(line(2), "p"));
    {
      const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
      const std::string text = error_of([&] { item(x); }, ErrorCode::policy);
      check_contains(text, "[item] would communicate");
      check_contains(text, "from [p] to [-]");
      check(rank.stats().bytes_sent == 0, "nothing was sent");
      item(distribute(iota<float>({1}), DistSpec::parse(line(2), "-")));
    }
    rank.trace_calls = true;
    item(x);
    const auto events = rank.trace.events();
    check(events.back().kind == TraceEvent::Kind::call && events.back().op == "item", "the call");
    check(events[events.size() - 2].kind == TraceEvent::Kind::collective && events[events.size() - 2].op == "item",
          "its collective");
  });
}

TEST_CASE("20: CommPolicy::forbid_reshards refuses a slice, which sends nothing, too") {
  run_ranks(2, [](Rank& rank) {
    const Tensor rows = distribute(iota<float>({4, 4}), DistSpec::parse(line(2), "p, -"));
    const Tensor whole = distribute(iota<float>({4, 4}), DistSpec::parse(line(2), "-, -"));
    {
      const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
      add(rows, whole);
    }
    const PolicyScope scope(rank, {.comm = CommPolicy::forbid_reshards});
    const std::string text = error_of([&] { add(rows, whole); }, ErrorCode::policy);
    check_contains(text,
                   "[add] would change layouts on mesh(p=2): argument 'y' (f32[4, 4]) from [-, -] to [p, -] (0 bytes)");
    add(rows, rows);
    add(whole, whole);
  });
}

TEST_CASE("12: the plan that was used least recently goes first") {
  run_ranks(2, [](Rank& rank) {
    call::set_plan_cache_capacity(rank, 2);
    const auto spec = DistSpec::parse(line(2), "p");
    const Tensor x = distribute(full({4}, 1.0), spec);
    const auto misses = [&](const std::function<void()>& call) {
      const uint64_t before = call::plan_cache_stats(rank).misses;
      call();
      return call::plan_cache_stats(rank).misses - before;
    };
    const auto first = [&] { relu(x); };
    const auto second = [&] { exp(x); };
    const auto third = [&] { tanh(x); };
    check(misses(first) == 1 && misses(second) == 1 && misses(first) == 0, "two plans, the first used last");
    check(misses(third) == 1 && misses(first) == 0, "the second is evicted");
    check(misses(second) == 1, "and is made again");
    check(misses(third) == 1, "for which the third had to go");
  });
}

TEST_CASE("12: a plan is found again under the policies that it was made by, and under those that are not part of it") {
  run_ranks(2, [](Rank& rank) {
    const auto spec = DistSpec::parse(line(2), "p");
    const Tensor x = distribute(full({4}, 1.0), spec);
    const auto misses = [&](const Policies& policies) {
      const PolicyScope scope(rank, policies);
      const uint64_t before = call::plan_cache_stats(rank).misses;
      relu(x);
      relu(x);
      return call::plan_cache_stats(rank).misses - before;
    };
    check(misses({}) == 1, "the first time");
    for (const Changed& changed : each_policy_changed()) {
      check(misses(changed.policies) == (changed.use == PolicyUse::plan ? 1 : 0), changed.name);
      check(misses(changed.policies) == 0 && misses({}) == 0, changed.name);
    }
    check(misses({.view = ViewPolicy::temporary}) == 1 && misses({.inplace = InplacePolicy::adopt}) == 1,
          "each value of a policy has plans of its own");
  });
}

TEST_CASE("12: changing shapes keep the cache at its capacity, which each rank sets") {
  run_ranks(2, [](Rank& rank) {
    call::set_plan_cache_capacity(rank, 50);
    const auto spec = DistSpec::parse(line(2), "p");
    for (int64_t i = 0; i < 3000; ++i) relu(distribute(full({i % 1000 + 1}, 1.0), spec));
    auto stats = call::plan_cache_stats(rank);
    check(stats.entries == 50 && stats.misses == 3000 && stats.evictions == 2950 && stats.hits == 0, "flat");
    const Tensor x = distribute(full({5}, 1.0), spec);
    for (int i = 0; i < 10; ++i) concat({x, x, x}, 0);
    stats = call::plan_cache_stats(rank);
    check(stats.misses == 3001 && stats.hits == 9, "lists hit");
    call::set_plan_cache_capacity(rank, 1);
    check(call::plan_cache_stats(rank).entries == 1, "evicted at once");
    concat({x, x, x}, 0);
    check(call::plan_cache_stats(rank).hits == 10, "the last used stays");
    error_of([&] { call::set_plan_cache_capacity(rank, 0); }, ErrorCode::invalid_argument);
  });
}

}  // namespace promotion_test
