// Views of views under ViewPolicy::sync: each is kept in sync with the common base, so that no buffer in between is
// kept (statement 22).
#include <catch2/catch.hpp>

#include <atomic>

#include "shard/call/dry_report.h"
#include "shard/call/plan_cache.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace view_chain_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr int64_t kColumns = 26215;  // 5 rows of them are 512 KiB, in shards of other elements than the flat tensor has
const Policies kSync{.view = ViewPolicy::sync};
const Policies kAdopt{.view = ViewPolicy::sync, .inplace = InplacePolicy::adopt};

const DistSpec* line(const char* text) { return DistSpec::parse(ProcessMesh::make({2}, {}, {"p"}), text); }
const DistSpec* square(const char* text) { return DistSpec::parse(ProcessMesh::make({2, 2}, {}, {"a", "b"}), text); }

std::vector<float> numbers(size_t count, float factor = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = factor * static_cast<float>(i);
  return values;
}

IntArray shape_of_round(int round, int64_t columns) {
  return round % 2 == 0 ? IntArray{5 * columns} : IntArray{5, columns};
}

/// Calls `step(round)`, which changes the shape of a tensor in every round, and checks that the live bytes do not
/// grow.
template <class Step>
void check_live_bytes(Rank& rank, const std::string& what, const Step& step) {
  int64_t settled = 0;
  for (int round = 0; round < 100; ++round) {
    step(round);
    const int64_t live = dry_report(rank).live_bytes;
    if (round == 3) settled = live;
    if (round > 3 && round % 2 == 1)
      check(live == settled, what + ": " + std::to_string(live) + " bytes in round " + std::to_string(round) +
                                 ", not " + std::to_string(settled));
  }
}

}  // namespace

TEST_CASE("22: under ViewPolicy::sync rounds of reshapes that move hold no more buffers than two") {
  const auto world = World::dry(2, 1);
  world->run([](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    const auto live = [&] { return dry_report(rank).live_bytes; };
    const auto check_two = [&](int64_t before, const char* what) {
      check(live() <= before + 2 * 5 * kColumns * 4, std::string(what) + " holds " + std::to_string(live()));
    };
    {
      Tensor x = zeros({5, kColumns}, line("p, -"));
      const Tensor alias = x.detach(), view = reshape(x, {5, kColumns, 1});
      check_live_bytes(rank, "reshape_ of a tensor with an alias", [&](int round) {
        const Tensor before = x.detach();
        reshape_(x, shape_of_round(round, kColumns));
        check(!x.shares_buffer_with(before), "moved");
      });
      check_two(0, "an alias");
      check(view.shares_buffer_with(alias), "one buffer");
    }
    check(live() == 0, "all are gone");
    {
      const Tensor x = zeros({5, kColumns}, line("p, -"));
      Tensor y = reshape(x, {5, 1, kColumns});
      check_live_bytes(rank, "reshape_ of a view", [&](int round) { reshape_(y, shape_of_round(round, kColumns)); });
      check_two(0, "a view");
      Tensor z = y;
      check_live_bytes(rank, "views of views whose handles go",
                       [&](int round) { z = reshape(z, shape_of_round(round, kColumns)); });
      check_two(5 * kColumns * 4, "a view of views");
    }
    check(live() == 0, "all are gone");
    {
      Tensor z = zeros({5, kColumns}, line("p, -"));
      check_live_bytes(rank, "where nobody sees the first one either",
                       [&](int round) { z = reshape(z, shape_of_round(round, kColumns)); });
      check_two(0, "the last view");
    }
    check(live() == 0, "all are gone");
  });
}

TEST_CASE("22: what reads and writes of a view of many views send does not depend on how many there were") {
  const auto sent = [](int rounds) {
    std::atomic<int64_t> bytes = 0;
    run_ranks(2, [&](Rank& rank) {
      const PolicyScope scope(rank, kSync);
      Tensor x = distribute(iota<float>({5, 4}), line("p, -"));
      Tensor y = x;
      for (int round = 0; round < rounds; ++round) y = reshape(y, shape_of_round(round, 4));
      const int64_t before = rank.stats().bytes_sent;
      scale_(y, 2.0);
      relu(y);
      scale_(x, 2.0);
      relu(y);
      bytes += rank.stats().bytes_sent - before;
      check(full_equals(y, numbers(20, 4)), "value");
    });
    return bytes.load();
  };
  CHECK(sent(1) > 0);
  CHECK(sent(7) == sent(1));
}

TEST_CASE("22: views of views that are gone follow the tensor that they are views of, and are written back into it") {
  for (const bool keep : {false, true}) {
    run_ranks(3, [keep](Rank& rank) {
      const PolicyScope scope(rank, kSync);
      // Handles that only one rank still has do not change what is sent.
      std::vector<Tensor> kept;
      const auto pass = [&](const Tensor& tensor) {
        if (keep && rank.id() == 1) kept.push_back(tensor);
      };
      Tensor x = distribute(iota<float>({5, 4}), line("p, -"));
      Tensor alias = x.detach();
      Tensor view = reshape(x, {20});
      float factor = 1;
      const auto check_all = [&](const std::string& what) {
        for (const Tensor& each : {x, alias, view})
          check(full_equals(each, numbers(20, factor)), what + " " + each.get().describe());
      };
      for (int round = 0; round < 7; ++round) {
        pass(x.detach());
        pass(view);
        reshape_(x, shape_of_round(round, 4));
        view = reshape(view, shape_of_round(round + 1, 4));
        if (round == 3) pass(reshape(alias, {2, 10}));
        const std::string what = "round " + std::to_string(round);
        if (round % 2 == 1) check_all(what);
        for (Tensor* const written : {&x, &alias, &view}) {
          scale_(*written, -1.0);
          factor = -factor;
          if (round % 3 != 1) check_all(what);
        }
      }
      check_all("at the end");
    });
  }
}

TEST_CASE("22: a stale view stays stale, and is refreshed, when what it is a view of takes another buffer") {
  run_ranks(3, [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<float>({5, 4}), line("p, -"));
    const Tensor view = reshape(x, {20}), other = reshape(x, {2, 10});
    scale_(x, 2.0);
    check(full_equals(other, numbers(20, 2)), "in step");
    reshape_(x, {20});
    {
      const PolicyScope strict(rank, {});
      check_contains(error_of([&] { relu(view); }, ErrorCode::stale_view), "scale_ has written the source since");
      check(full_equals(other, numbers(20, 2)), "the other one can be read");
    }
    check(full_equals(view, numbers(20, 2)), "refreshed from the new buffer");
  });
}

TEST_CASE("22: a view of a view that had another pending reduction is reached by a reduction and a relayout") {
  std::atomic<int64_t> told = 0, sent = 0;
  run_ranks(4, [&](Rank& rank) {
    const PolicyScope scope(rank, kAdopt);
    std::vector<float> values = numbers(20), expected(20, 0.0f);
    for (float& value : values) value -= 10;
    for (size_t i = 11; i < 20; ++i) expected[i] = static_cast<float>(i) - 10;
    Tensor x = distribute(Tensor::from_data(values, {5, 4}), square("-, a | sum(b)"));
    Tensor y = reshape(x, {20});
    check(!y.shares_buffer_with(x) && spec_of(y)->text() == "[a] sum(b)", "a resharded view " + spec_of(y)->text());
    rank.observer = [&](const CallRecord& record) {
      if (rank.id() == 0) told += record.bytes;
    };
    const int64_t before = rank.stats().bytes_sent;
    relu_(y);
    Tensor z = reshape(y, {4, 5});
    scale_(z, 2.0);
    scale_(x, 2.0);
    relu(z);
    relu(y);
    rank.observer = {};
    sent += rank.stats().bytes_sent - before;
    check(spec_of(y)->text() == "[a]" && spec_of(x)->text() == "[-, a] sum(b)",
          "only y has adopted " + spec_of(y)->text());
    for (float& value : expected) value *= 4;
    for (const Tensor& each : {x, y, z}) check(full_equals(each, expected), each.get().describe());
  });
  CHECK(sent > 0);
  CHECK(told == sent);
}

TEST_CASE("20: what is told of a view that adopts another layout is what its new buffer sends to the source") {
  std::atomic<int64_t> told = 0, sent = 0;
  run_ranks(2, [&](Rank& rank) {
    const PolicyScope scope(rank, kAdopt);
    const Tensor x = distribute(iota<float>({5, 4}), line("p, -"));
    Tensor y = reshape(x, {4, 5});
    rank.observer = [&](const CallRecord& record) {
      if (rank.id() == 0) told += record.bytes;
    };
    const int64_t before = rank.stats().bytes_sent;
    lu_(y);  // takes the whole matrix
    rank.observer = {};
    sent += rank.stats().bytes_sent - before;
    check(spec_of(y)->text() == "[-, -]", "adopted");
    check(full_tensor(x).to_vector<float>() == full_tensor(y).to_vector<float>(), "written back");
  });
  CHECK(sent > 0);
  CHECK(told == sent);
}

TEST_CASE("23: what a kernel has written in a resharded view of a view is in step with the source") {
  run_ranks(3, [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    constexpr int64_t kRows = 4096;  // so that the statistics are resharded, and not the image
    const Tensor image = distribute(iota<float>({kRows, 20}), line("p, -")),
                 ones = distribute(full(Dims{20}, 1.0f), line("-"));
    Tensor source = distribute(iota<float>({5, 4}), line("p, -"));
    const Tensor mean = reshape(source, {20});
    check(!mean.shares_buffer_with(source) && spec_of(mean)->text() == "[p]", "a resharded view");
    const Tensor mean_out =
        std::get<1>(batch_norm(image, mean, assign(ones), ones, ones, false, 0.5f, 1e-5f, "NCHW", false, false));
    check(!mean_out.shares_buffer_with(mean) && source.version() == 1, "moved again, and written back");
    {
      const PolicyScope forbid(rank, {.view = ViewPolicy::sync, .comm = CommPolicy::forbid});
      relu(mean_out);
      relu(mean);
    }
    const Tensor values = full_tensor(source);
    if (values.defined())
      check(full_equals(mean_out, values.to_vector<float>()) && full_equals(mean, values.to_vector<float>()), "values");
    scale_(source, 2.0);
    const Tensor scaled = full_tensor(source), again = full_tensor(mean_out);
    if (scaled.defined()) check(again.to_vector<float>() == scaled.to_vector<float>(), "and follows it");
  });
}

TEST_CASE("22: 100000 views of each other are freed one after the other, and the last of them alone holds the first",
          "[slow_in_asan][slow_in_tsan]") {
  const auto world = World::dry(2, 1);
  world->run([](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    std::vector<Tensor> views = {zeros({5, 4}, line("p, -"))};
    const int64_t one = dry_report(rank).live_bytes;
    for (int round = 0; round < 100'000; ++round) views.push_back(reshape(views.back(), shape_of_round(round, 4)));
    const Tensor last = views.back();
    views.clear();
    check(dry_report(rank).live_bytes <= 2 * one + 8, std::to_string(dry_report(rank).live_bytes) + " bytes");
  });
  CHECK(dry_report(world->rank(1)).live_bytes == 0);
}

TEST_CASE("22: a view of a view stays one of the source when the view between parts from that") {
  run_ranks(3, [](Rank& rank) {
    const PolicyScope scope(rank, kSync);
    Tensor x = distribute(iota<float>({5, 4}), line("p, -"));
    Tensor y = reshape(x, {20});
    const Tensor z = reshape(y, {5, 4});
    check(!z.shares_buffer_with(y), "moved");
    {
      const PolicyScope temporary(rank, {.view = ViewPolicy::temporary});
      scale_(y, 3.0);
    }
    check(full_equals(z, numbers(20)), "not y's");
    scale_(x, 2.0);
    check(full_equals(z, numbers(20, 2)) && full_equals(y, numbers(20, 3)), "but x's");
  });
}

}  // namespace view_chain_test
