// Views that had to move under ViewPolicy::sync and temporary, and what of a call CommPolicy, traces and observers see
// (statements 20, 22, 24).
#include <catch2/catch.hpp>

#include <atomic>
#include <numeric>

#include "shard/api/local_map.h"
#include "shard/call/dense_call.h"
#include "shard/call/dist_call.h"
#include "shard/call/dry_report.h"
#include "shard/call/item.h"
#include "shard/call/plan_cache.h"
#include "shard/kernels/registry.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace sync_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(const char* text) { return DistSpec::parse(line(2), text); }
const DistSpec* square(const char* text) { return DistSpec::parse(ProcessMesh::make({2, 2}, {}, {"a", "b"}), text); }
const Policies kSync{.view = ViewPolicy::sync};
const Policies kSyncForbid{.view = ViewPolicy::sync, .comm = CommPolicy::forbid};

std::vector<float> numbers(size_t count, float factor = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = factor * static_cast<float>(i);
  return values;
}

/// The bytes that observers see, and those that all ranks have sent, in the calls of `program`.
struct Traffic {
  std::atomic<int64_t> told = 0, sent = 0;
};
void count(Rank& rank, Traffic& traffic, const std::function<void()>& program) {
  const int64_t before = rank.stats().bytes_sent;
  rank.observer = [&](const CallRecord& record) {
    if (rank.id() == 0) traffic.told += record.bytes;
  };
  program();
  rank.observer = {};
  traffic.sent += rank.stats().bytes_sent - before;
}

/// frobenius_norm with kernels of our own: one without a dry twin, and one that does not combine.
constexpr OpDef norm_op(std::string_view name) {
  return {.name = name,
          .inputs = slots<"x">,
          .attrs = names<"axis", "keep_dim", "reduce_all">,
          .outputs = slots<"out">,
          .rule = "FrobeniusNormInferSpmd",
          .kernel = name};
}
constexpr OpDef kUntold = norm_op("untold_norm"), kLocal = norm_op("local_norm");

using NormKernel = void(const OpContext&, const DenseTensor&, DenseTensor&);

void sum_of_shard(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  *out.data<float>() = std::accumulate(x.data<float>(), x.data<float>() + x.numel(), 0.0f);
}

Tensor norm_of(const OpDef& op, const Tensor& x) {
  register_kernel("untold_norm", 0, DType::float32,
                  static_cast<NormKernel*>([](const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
                    sum_of_shard(ctx, x, out);
                    ctx.all_reduce(out, ReduceType::sum);
                  }));
  register_kernel("local_norm", 0, DType::float32, sum_of_shard);
  register_dry_kernel("local_norm",
                      static_cast<NormKernel*>([](const OpContext& ctx, const DenseTensor&, DenseTensor& out) {
                        ctx.all_reduce(out, ReduceType::sum);
                      }));
  const IntArray axis{};
  const bool keepdim = false, all = true;
  call::DistCall call(op, x, axis, keepdim, all);
  constexpr auto infer = [](const OpContext&, const Meta&, const IntArray&, bool, bool) {
    return Meta{Dims(), DType::float32};
  };
  return call.run(+infer, [&] {
    const OpContext& ctx = call;
    const auto kernel = kernel_table(op.kernel.data()).find<NormKernel>(ctx, kCpu, DType::float32);
    DenseTensor out = call::allocate(ctx, kCpu, {Dims(), DType::float32});
    call::run(kernel, ctx, call[0], out);
    return out;
  });
}

}  // namespace

TEST_CASE(
    "20: CommPolicy::forbid sees the refresh of a stale view and the write through one, and a refused call changes "
    "nothing") {
  run_ranks(3, [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<float>({5, 4}), spec("-, p"));
    Tensor y = reshape(x, {20});
    scale_(x, 2.0);
    const int64_t sent = rank.stats().bytes_sent;
    {
      const PolicyScope forbid(rank, kSyncForbid);
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { relu(y); }, [&] { scale_(y, 2.0); }, [&] { softmax_(y, 0); },
               [&] { local_map([](const Tensor& shard) { return relu(shard); }, {spec("p")}, {spec("p")})(y); }}) {
        const std::string text = error_of(call, ErrorCode::policy);
        check_contains(text, "would communicate on mesh(p=2): ");
        check_contains(text, "the refresh of a view by [reshape] (f32[5, 4]) from [-, p] to [p] (");
      }
      error_of([&] { item(sum(y)); }, ErrorCode::policy);
      check(rank.stats().bytes_sent == sent && y.version() == 0 && x.version() == 1, "nothing was sent or changed");
    }
    check(full_equals(relu(y), numbers(20, 2)), "allowed, it is refreshed");
    const PolicyScope forbid(rank, kSyncForbid);
    const uint64_t before = y.version();
    check_contains(error_of([&] { scale_(y, 2.0); }, ErrorCode::policy), "the write through a view by [reshape]");
    check(y.version() == before && x.version() == 1, "not written");
  });
}

TEST_CASE("20: the bytes of refreshes, of writes through views and of kernels are those that observers are told") {
  Traffic views, kernels;
  run_ranks(4, [&](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<float>({5, 4}), square("-, a+b"));
    Tensor y = reshape(x, {20});
    Tensor z = reshape(y, {10, 2});
    scale_(x, 2.0);
    count(rank, views, [&] {
      relu(z);
      add(y, y);
      scale_(z, 2.0);
    });
    check(full_equals(x, numbers(20, 4)), "value");
    const Tensor image = distribute(iota<float>({6, 3}), square("a, b")),
                 channel = distribute(iota<float>({3}), square("-")), variance = assign(channel);
    count(rank, kernels, [&] {
      frobenius_norm(image, {}, false, true);
      frobenius_norm(image, {0}, false, false);
      batch_norm(image, channel, variance, channel, channel, false, 0.5f, 1e-5f, "NCHW", false, false);
    });
  });
  CHECK(views.sent > 0);
  CHECK(views.told == views.sent);
  CHECK(kernels.sent > 0);
  CHECK(kernels.told == kernels.sent);
}

TEST_CASE("20: CommPolicy::forbid sees what kernels combine over mesh axes") {
  run_ranks(3, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4, 2}), spec("p, -")),
                 statistics = distribute(iota<float>({2}), spec("-")), variance = assign(statistics);
    const PolicyScope forbid(rank, {.comm = CommPolicy::forbid});
    const int64_t sent = rank.stats().bytes_sent;
    check_contains(error_of([&] { frobenius_norm(x, {}, false, true); }, ErrorCode::policy),
                   "the kernel combines values over p: 16 B");
    const auto norm = [&](bool is_test) {
      batch_norm(x, statistics, variance, statistics, statistics, is_test, 0.5f, 1e-5f, "NCHW", false, false);
    };
    check_contains(error_of([&] { norm(false); }, ErrorCode::policy), "the kernel combines values over p: 64 B");
    check(rank.stats().bytes_sent == sent && statistics.version() == 0, "nothing was sent or written");
    norm(true);  // uses the statistics unchanged
    check(rank.stats().bytes_sent == sent, "nothing was sent");
  });
}

TEST_CASE("20: a kernel that combines values and does not tell how many counts as one that sends") {
  static std::mutex once;  // ranks register kernels one after the other
  run_ranks(3, [](Rank& rank) {
    const std::scoped_lock lock(once);
    const Tensor x = distribute(iota<float>({4}), spec("p"));
    const PolicyScope forbid(rank, {.comm = CommPolicy::forbid});
    const std::string text = error_of([&] { norm_of(kUntold, x); }, ErrorCode::policy);
    check_contains(
        text,
        "would communicate on mesh(p=2): the kernel combines values over p, how many is unknown (register_dry_kernel)");
  });
  run_ranks(1, [](Rank& rank) {
    const PolicyScope forbid(rank, {.comm = CommPolicy::forbid});
    check(full_equals<float>(norm_of(kUntold, distribute(iota<float>({4}), DistSpec::parse(line(1), "p"))), {6}),
          "one process sends nothing");
  });
}

TEST_CASE("a kernel that combines nothing although its dry twin does is an error where the dims are sharded") {
  static std::mutex once;
  run_ranks(2, [](Rank&) {
    const std::scoped_lock lock(once);
    const Tensor x = iota<float>({4});
    check(full_equals<float>(norm_of(kLocal, distribute(x, spec("-"))), {6}), "nothing is to be combined");
    const std::string text = error_of([&] { norm_of(kLocal, distribute(x, spec("p"))); }, ErrorCode::no_kernel);
    check_contains(text,
                   "[local_norm] the registered kernel 'local_norm' did not use ctx.reducer(), but with these layouts "
                   "the kernel combines values over p: 8 B");
    check_contains(text, "reshard the arguments before the call");
  });
}

TEST_CASE("20: the report of a dry world has the refreshes and writes through views of a real one") {
  const auto program = [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<float>({5, 4}), spec("-, p"));
    Tensor y = reshape(x, {20});
    scale_(x, 2.0);
    scale_(y, 2.0);
    relu(x);
  };
  int64_t sent = 0;
  const auto world = World::local(2);
  world->run(program);
  sent = world->rank(1).stats().bytes_sent;
  const auto dry = World::dry(2, 1);
  dry->run(program);
  int64_t told = 0;
  for (const DryCall& call : dry_report(dry->rank(1)).calls) told += call.bytes_sent;
  CHECK(told == sent);
}

TEST_CASE("20: a recorded call that saves a stale view is judged before the view is refreshed") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<double>({5, 4}), spec("-, p"));
    const Tensor y = reshape(x, {20}), w = distribute(iota<double>({20}), spec("p")).set_requires_grad(true);
    scale_(x, 2.0);
    const PolicyScope forbid(rank, kSyncForbid);
    check_contains(error_of([&] { multiply(y, w); }, ErrorCode::policy), "the refresh of a view by [reshape]");
    check(y.version() == 0, "not refreshed");
  });
}

TEST_CASE("20: CommPolicy sees the hashes of PromotionPolicy::replicate_checked") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4}), spec("-"));
    const PolicyScope scope(rank, {.comm = CommPolicy::forbid, .promotion = PromotionPolicy::replicate_checked});
    const int64_t sent = rank.stats().bytes_sent;
    check_contains(error_of([&] { add(x, iota<float>({4})); }, ErrorCode::policy), "hashes of promoted arguments");
    check(rank.stats().bytes_sent == sent, "nothing was sent");
  });
}

TEST_CASE("22: under ViewPolicy::sync a view whose handle adopts another layout still writes through to its source") {
  run_ranks(4, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::sync, .inplace = InplacePolicy::adopt});
    std::vector<float> values = numbers(20), expected(20, 0.0f);
    for (float& value : values) value -= 10;
    for (size_t i = 11; i < 20; ++i) expected[i] = static_cast<float>(i) - 10;
    for (const char* layout : {"-, a | sum(b)", "-, - | sum(b)"}) {
      Tensor x = distribute(Tensor::from_data(values, {5, 4}), square(layout));
      Tensor y = reshape(x, {20});
      Tensor z = reshape(y, {4, 5});
      relu_(y);
      check(full_equals(y, expected) && full_equals(x, expected),
            std::string("the view of x [") + layout + "] was written");
      check(full_equals(z, expected), "the view of the view");
      scale_(x, 2.0);
      for (float& value : expected) value *= 2;
      check(full_equals(y, expected), "the view follows its source");
      scale_(y, 0.5);
      for (float& value : expected) value /= 2;
      check(full_equals(x, expected) && full_equals(z, expected), "and is written back");
    }
  });
}

TEST_CASE(
    "5: under ViewPolicy::sync two targets of one call that are views of one tensor are refused before anything is "
    "written") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<float>({2, 3}), spec("-, p"));
    const Tensor mean = reshape(x, {6}), variance = reshape(x, {6});
    check(!mean.shares_buffer_with(x) && !mean.shares_buffer_with(variance), "two copies");
    const Tensor image = distribute(iota<float>({4, 6}), spec("-, -")),
                 ones = distribute(full(Dims{6}, 1.0f), spec("-"));
    const auto norm = [&](const Tensor& second) {
      batch_norm(image, mean, second, ones, ones, false, 0.5f, 1e-5f, "NCHW", false, false);
    };
    check_contains(error_of([&] { norm(variance); }, ErrorCode::invalid_argument), "is written twice");
    check(x.version() == 0 && mean.version() == 0 && full_equals(x, numbers(6)), "nothing was written");
    norm(assign(ones));
    check(x.version() == 1, "one of them is written through");
  });
}

TEST_CASE("25: under strict a view does not adopt another layout, since what it is a view of would not be written") {
  run_ranks(2, [](Rank& rank) {
    Tensor x = distribute(Tensor::from_data<float>({-1, 2, -3, 4}, {4}), spec("- | sum(p)"));
    Tensor y = reshape(x, {2, 2});
    check(y.shares_buffer_with(x), "a view");
    const PolicyScope scope(rank, {.inplace = InplacePolicy::adopt});
    check_contains(error_of([&] { relu_(y); }, ErrorCode::policy), "it is a view, and its source would not be written");
    check(x.version() == 0 && full_equals<float>(x, {-1, 2, -3, 4}), "nothing was written");
    scale_(y, 2.0);
    check(full_equals<float>(x, {-2, 4, -6, 8}), "what keeps its layout is written through");
  });
}

TEST_CASE("25: under ViewPolicy::sync the views of a tensor that adopts another layout stay in step with it") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::sync, .inplace = InplacePolicy::adopt});
    Tensor x = distribute(Tensor::from_data<float>({-1, 2, -3, 4}, {4}), spec("- | sum(p)"));
    Tensor y = reshape(x, {2, 2});
    relu_(x);
    check(spec_of(x)->text() == "[-]" && !y.shares_buffer_with(x), "x has adopted the layout");
    check(full_equals<float>(y, {0, 2, 0, 4}), "the write reached the view");
    scale_(y, 2.0);
    check(full_equals<float>(x, {0, 4, 0, 8}), "and one through the view x");
  });
}

TEST_CASE("24: ViewPolicy::sync follows reshape_ that has to move elements, of a view and of what has views") {
  run_ranks(3, [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<float>({4, 5}), spec("-, p"));
    Tensor y = flatten(x, 0, 1);
    reshape_(y, {5, 4});
    scale_(x, 2.0);
    check(full_equals(y, numbers(20, 2)) && y.dims() == Dims{5, 4}, "a view of a view");
    scale_(y, 2.0);
    check(full_equals(x, numbers(20, 4)), "written through both");

    Tensor base = distribute(iota<float>({5, 4}), spec("p, -"));
    Tensor view = reshape(base, {5, 2, 2});
    reshape_(base, {20});
    check(!view.shares_buffer_with(base), "moved");
    scale_(base, 2.0);
    check(full_equals(view, numbers(20, 2)), "the view follows");
    scale_(view, 2.0);
    check(full_equals(base, numbers(20, 4)), "and is written through");

    Tensor owner = distribute(iota<float>({5, 4}), spec("p, -"));
    Tensor inside = reshape(owner, {5, 2, 2});
    reshape_(inside, {20});
    scale_(inside, 2.0);
    check(full_equals(owner, numbers(20, 2)), "a view in the buffer of its source writes through after reshape_");
  });
}

TEST_CASE("22: a view of a tensor without elements shares its buffer, whatever its layout") {
  for (const ViewPolicy policy : {ViewPolicy::strict, ViewPolicy::sync, ViewPolicy::temporary}) {
    run_ranks(3, [policy](Rank& rank) {
      const PolicyScope scope(rank, {.view = policy});
      Tensor x = distribute(iota<float>({0, 4}), spec("-, p"));
      Tensor y = unsqueeze(x, {2});
      check(y.shares_buffer_with(x) && spec_of(y)->text() == "[-, p, -]", spec_of(y)->text());
      relu_(y);
      relu_(x);
      Tensor z = reshape(y, {0, 7});
      relu_(z);
      relu_(x);
      check(full_tensor(z).defined() == (rank.id() < 2) && x.version() == 4, "usable");
    });
  }
}

TEST_CASE(
    "22: the policy in force at a use counts: under temporary stale views can be read, and a write parts the two for "
    "good") {
  run_ranks(3, [](Rank& rank) {
    Tensor x = distribute(iota<float>({5, 4}), spec("-, p"));
    Tensor y = reshape(x, {20}), z = reshape(x, {20});
    {
      const PolicyScope scope(rank, {.view = ViewPolicy::temporary});
      scale_(y, 3.0);
      scale_(x, 2.0);
      check(full_equals(relu(y), numbers(20, 3)) && full_equals(y, numbers(20, 3)), "written while temporary");
    }
    check(full_equals(y, numbers(20, 3)), "and its own ever after");
    scale_(y, 2.0);
    check(full_equals(y, numbers(20, 6)) && full_equals(x, numbers(20, 2)), "both can be written");
    error_of([&] { relu(z); }, ErrorCode::stale_view);
    Tensor plain = iota<float>({2, 3}), alias = reshape(plain, {6});
    transpose_(plain, {1, 0});
    scale_(plain, 2.0);
    error_of([&] { relu(alias); }, ErrorCode::stale_view);
    const PolicyScope scope(rank, {.view = ViewPolicy::temporary});
    check(full_equals(relu(z), numbers(20)), "a stale one has the value that it was made with");
    check(relu(alias).to_vector<float>() == numbers(6), "and so has a plain one");
  });
}

TEST_CASE(
    "24: a tensor that takes another dtype parts from its views under ViewPolicy::temporary, plain and distributed "
    "alike") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::temporary});
    for (const bool plain : {true, false}) {
      Tensor x = plain ? iota<float>({2, 2}) : distribute(iota<float>({2, 2}), spec("p, -"));
      Tensor y = reshape(x, {4});
      cast_(x, DType::int32);
      scale_(x, 3.0);
      scale_(y, 2.0);
      check((plain ? y.to_vector<float>() : full_tensor(y).to_vector<float>()) == numbers(4, 2),
            plain ? "plain" : "distributed");
    }
  });
  // A view made under strict, of a plain tensor.
  run_ranks(1, [](Rank& rank) {
    Tensor x = iota<float>({2, 3}), y = reshape(x, {6});
    transpose_(x, {1, 0});
    error_of([&] { relu_(y); }, ErrorCode::view_of_copy);
    const PolicyScope scope(rank, {.view = ViewPolicy::temporary});
    scale_(y, 2.0);
    check(y.to_vector<float>() == numbers(6, 2), "parted");
  });
}

TEST_CASE("24: a view that takes another shape or dtype parts, and what it was a view of stays as it was") {
  Tensor x = iota<float>({2, 3});
  Tensor y = reshape(x, {3, 2});
  transpose_(y, {1, 0});
  scale_(y, 2.0);
  CHECK(x.to_vector<float>() == numbers(6));
  scale_(x, 3.0);
  CHECK(x.to_vector<float>() == numbers(6, 3));
  CHECK(y.to_vector<float>() == std::vector<float>{0, 4, 8, 2, 6, 10});
  for (const ViewPolicy policy : {ViewPolicy::strict, ViewPolicy::sync, ViewPolicy::temporary}) {
    run_ranks(3, [policy](Rank& rank) {
      const PolicyScope scope(rank, {.view = policy});
      Tensor x = distribute(iota<float>({4, 2}), spec("p, -"));
      Tensor y = reshape(x, {4, 1, 2});
      cast_(y, DType::int64);
      scale_(y, 2.0);
      check(full_equals(x, numbers(8)), "readable");
      scale_(x, 3.0);
      check(full_equals(x, numbers(8, 3)) && full_equals<int64_t>(y, {0, 2, 4, 6, 8, 10, 12, 14}), "two tensors");
    });
  }
}

TEST_CASE("36: errors about views show whole tensors, equal on all ranks, and never advise the policy in force") {
  std::array<std::string, 3> strict, synced;
  run_ranks(3, [&](Rank& rank) {
    const auto id = static_cast<size_t>(rank.id());
    for (const ViewPolicy policy : {ViewPolicy::strict, ViewPolicy::sync}) {
      const PolicyScope scope(rank, {.view = policy});
      Tensor x = distribute(iota<float>({4, 3}), spec("p, -"));
      Tensor y = reshape(x, {4, 3, 1});
      transpose_(x, {1, 0});
      const std::string write = error_of([&] { relu_(y); }, ErrorCode::view_of_copy);
      check_contains(write,
                     "it is a view or alias of a tensor f32[4, 3] [p, -] whose buffer [transpose_] has replaced (now "
                     "f32[3, 4] [-, p])");
      check_contains(write, "assign(x)");
      scale_(x, 2.0);
      const std::string read = error_of([&] { relu(y); }, ErrorCode::stale_view);
      check_contains(read, "scale_ has written the new buffer since");
      check_contains(read, "assign(x)");
      for (const std::string& text : {write, read}) {
        check(text.find("ViewPolicy::sync") == std::string::npos, "there is no way between the two: " + text);
        check_contains(text, "ViewPolicy::temporary");
      }
      (policy == ViewPolicy::strict ? strict : synced)[id] = write + read;
    }
    // A view that sync would refresh, where communication is forbidden.
    Tensor x = distribute(iota<float>({5, 4}), spec("-, p"));
    const Tensor y = reshape(x, {20});
    scale_(x, 2.0);
    if (rank.id() == 2) return;
    check_contains(error_of([&] { local(y); }, ErrorCode::stale_view), "ViewPolicy::sync would keep the two in sync");
    const PolicyScope scope(rank, kSync);
    const std::string text = error_of([&] { local(y); }, ErrorCode::stale_view);
    check(text.find("ViewPolicy::sync") == std::string::npos, text);
    check_contains(text, "full_tensor(tensor), reshard(tensor, spec)");
  });
  for (const auto& texts : {strict, synced}) CHECK((texts[0] == texts[1] && texts[0] == texts[2]));
}

}  // namespace sync_test
