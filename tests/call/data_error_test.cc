// Errors that depend on data and so may occur on one rank alone: how the other ranks fail, and the state of the
// targets (statements 4, 9).
#include <catch2/catch.hpp>

#include <array>
#include <thread>

#include "shard/api/local_map.h"
#include "shard/call/item.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace data_error_test {

using namespace shard;
using namespace shard::test;
using namespace std::chrono_literals;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(const char* text) { return DistSpec::parse(line(2), text); }

Tensor integers(const std::vector<int32_t>& values, const DistSpec* layout) {
  return distribute(Tensor::from_data(values, {static_cast<int64_t>(values.size())}), layout);
}

template <class Exception>
void check_throws(const std::function<void()>& call, const std::string& text) {
  try {
    call();
  } catch (const Exception& error) { return check_contains(error.what(), text); }
  check(false, "no exception was thrown, expected " + text);
}

void check_message(const std::string& text) {
  check_contains(text, "rank 1 failed in a distributed call that succeeded on rank 0");
  check_contains(text, "[divide_] y is i32[4] and its element 3 is 0");
  check_contains(text, "divide_(x: i32[4] [p], y: i32[4] [p]) on mesh(p=2)");
}

/// Fails on rank 1 alone.
void divide_by_zero_on_rank_1(const Rank& rank, Tensor& x) {
  const Tensor y = integers({1, 1, 1, 0}, spec("p"));
  if (rank.id() == 1) error_of([&] { divide_(x, y); }, ErrorCode::invalid_argument);
  else divide_(x, y);
}

/// A step that fails on one rank.
auto halve_unless(const Rank& rank, int failing, LocalMapOptions options) {
  return local_map(
      [&rank, failing](const Tensor& shard) {
        if (rank.id() == failing) throw std::runtime_error("no halves today");
        return scale(shard, 0.5);
      },
      {spec("p")}, {spec("p")}, std::move(options));
}

}  // namespace

TEST_CASE(
    "4, 9: after a data error on one rank the next collective fails on every rank, and the target is poisoned on all "
    "of them") {
  run_torn_world(2, [](Rank& rank) {
    Tensor x = integers({1, 2, 3, 4}, spec("p"));
    const Tensor other = integers({5, 6, 7, 8}, spec("p"));
    const Tensor y = integers({1, 1, 1, 0}, spec("p"));
    if (rank.id() == 0) divide_(x, y);
    else
      check_contains(error_of([&] { divide_(x, y); }, ErrorCode::invalid_argument),
                     "[divide_] y is i32[4] and its element 3 is 0");
    check_message(error_of([&] { full_tensor(other); }, ErrorCode::peer_failed));
    check_message(error_of([&] { add(x, x); }, ErrorCode::poisoned));
    check_message(error_of([&] { local(x); }, ErrorCode::poisoned));
    check_message(error_of([&] { to_text(x); }, ErrorCode::poisoned));
    check(local(other).to_vector<int32_t>()[0] == (rank.id() == 0 ? 5 : 7), "what the call did not write is as it was");
    check_message(error_of([&] { full_tensor(other); }, ErrorCode::peer_failed));
  });
}

TEST_CASE("4, 9: a rank that waits in a collective learns of a data error of another rank there") {
  run_torn_world(2, [](Rank& rank) {
    Tensor x = integers({1, 2, 3, 4}, spec("p"));
    const Tensor y = integers({1, 1, 1, 0}, spec("p"));
    if (rank.id() == 0) {
      divide_(x, y);
      check_message(error_of([&] { full_tensor(x); }, ErrorCode::peer_failed));
    } else {
      std::this_thread::sleep_for(50ms);  // usually rank 0 waits by then; it makes no difference
      error_of([&] { divide_(x, y); }, ErrorCode::invalid_argument);
      while (!rank.partial_failures()->invalidates(rank.comm_queue().calls_done()))
        std::this_thread::yield();  // this rank joins no collective
    }
    check_message(error_of([&] { local(x); }, ErrorCode::poisoned));
  });
}

TEST_CASE("4, 9: a data error that every rank has alike is an error of the program, which goes on") {
  run_ranks(2, [](Rank&) {
    Tensor x = integers({1, 2, 3, 4}, spec("p"));
    error_of([&] { divide_(x, integers({1, 0, 0, 1}, spec("p"))); }, ErrorCode::invalid_argument);
    const Tensor ids = distribute(Tensor::from_data<int64_t>({1, 9}, {2}), spec("-"));
    error_of([&] { embedding(ids, distribute(iota<float>({4, 2}), spec("p, -"))); }, ErrorCode::out_of_range);
    check(full_equals<int32_t>(x, {1, 2, 3, 4}) && x.version() == 0, "as it was");
    divide_(x, integers({1, 2, 3, 4}, spec("p")));
    check(full_equals<int32_t>(x, {1, 1, 1, 1}) && x.version() == 1, "written");
  });
}

TEST_CASE("4, 9: in a plain call too, ranks learn which op failed where, at the first collective of any group") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  std::array<std::string, 4> texts;
  run_torn_world(4, [&](Rank& rank) {
    // The bad index is in the shards of ranks 2 and 3, and the collective is one of ranks 0 and 1, or 2 and 3.
    const Tensor x = distribute(iota<float>({3, 2}), DistSpec::parse(mesh, "-, -"));
    const Tensor index = distribute(Tensor::from_data<int64_t>({0, 1, 2, 3}, {4}), DistSpec::parse(mesh, "a"));
    if (rank.id() < 2) gather(x, index, 0);
    else
      check_contains(error_of([&] { gather(x, index, 0); }, ErrorCode::out_of_range),
                     "index is 3 at element 3, but must be from -3 to 2 (index is i64[4])");
    const auto meet_along_b = [&] {
      int32_t word = 1;
      rank.communicator(mesh, 1).all_reduce({"sum", "x"}, &word, 1, DType::int32, ReduceType::sum).wait();
    };
    texts[static_cast<size_t>(rank.id())] = error_of(
        [&] {
          for (int i = 0; i < 100'000; ++i) meet_along_b();
        },
        ErrorCode::peer_failed);
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text, Catch::Contains("failed in a distributed call that succeeded on rank") &&
                         Catch::Contains("[gather] index is 3 at element 3"));
  }
}

TEST_CASE("9, 17: ranks outside the mesh learn of a data error inside, and hold no target that others have not") {
  run_torn_world(3, [](Rank& rank) {
    Tensor x = integers({1, 2}, spec("p"));
    const Tensor y = integers({0, 0}, spec("p"));
    if (rank.id() == 2) divide_(x, y);
    else error_of([&] { divide_(x, y); }, ErrorCode::invalid_argument);
    const Tensor scalar = distribute(Tensor::from_data<float>({1}, {}), spec(""));
    const std::string text = error_of([&] { item(scalar); }, ErrorCode::peer_failed);
    check_contains(text, "in a distributed call that succeeded on rank 2");
    error_of([&] { add(x, x); }, ErrorCode::poisoned);
  });
}

TEST_CASE("4: what was written before a call that failed elsewhere stays readable, what is written after it does not") {
  run_torn_world(2, [](Rank& rank) {
    Tensor before = integers({8, 8, 8, 8}, spec("p"));
    Tensor x = integers({1, 2, 3, 4}, spec("p"));
    const Tensor two = integers({2, 2, 2, 2}, spec("p"));
    divide_(before, two);
    divide_by_zero_on_rank_1(rank, x);
    Tensor after = integers({8, 8, 8, 8}, spec("p"));
    divide_(after, two);
    error_of([&] { full_tensor(before); }, ErrorCode::peer_failed);
    check(local(before).to_vector<int32_t>() == std::vector<int32_t>{4, 4}, "as all ranks wrote it");
    for (Tensor* torn : {&x, &after}) error_of([&] { local(*torn); }, ErrorCode::poisoned);
    check(rank.partial_failures()->invalidates(2), "the second call");
  });
}

TEST_CASE(
    "4, 9: a call that failed on one rank fails the world at the end of its program, where no collective follows") {
  Tensor torn;
  run_torn_world(2, [&](Rank& rank) {
    Tensor x = integers({1, 2, 3, 4}, spec("p"));
    if (rank.id() == 0) torn = x;
    divide_by_zero_on_rank_1(rank, x);
  });
  // Its rank was destroyed with its world, but the buffer still has the cause.
  check_message(error_of([&] { torn.get().value.storage()->check_read(); }, ErrorCode::poisoned));
}

TEST_CASE(
    "4, 9: a function of local_map that fails on one rank is told to the others, which learn of it in the call where "
    "shapes are exchanged") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4}), spec("p"));
    const auto halve = halve_unless(rank, 1, {.name = "halve"});
    if (rank.id() == 0)
      check_contains(error_of([&] { halve(x); }, ErrorCode::peer_failed), "[halve] the function has failed on rank 1");
    else check_throws<std::runtime_error>([&] { halve(x); }, "no halves today");
    check(full_equals<float>(x, {0, 1, 2, 3}), "nothing was written: the program goes on");
  });
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4}), spec("p"));
    const auto print = local_map(
        [&](const Tensor&) -> std::vector<Tensor> {
          if (rank.id() == 1) throw std::runtime_error("no paper");
          return {};
        },
        {spec("p")}, {}, {.name = "print"});
    if (rank.id() == 0)
      check_contains(error_of([&] { print(x); }, ErrorCode::peer_failed), "[print] the function has failed on rank 1");
    else check_throws<std::runtime_error>([&] { print(x); }, "no paper");
  });
  run_torn_world(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4}), spec("p"));
    const auto halve = halve_unless(rank, 1, {.name = "halve", .outputs = {{Dims{4}, DType::float32}}});
    if (rank.id() == 0) halve(x);
    else check_throws<std::runtime_error>([&] { halve(x); }, "no halves today");
    check_contains(error_of([&] { full_tensor(x); }, ErrorCode::peer_failed),
                   "no halves today\n  in [halve] on mesh(p=2)");
  });
}

TEST_CASE(
    "4, 9: calls that a function of local_map makes are part of its call, and those that it handles the failure of "
    "fail no world") {
  run_ranks(2, [](Rank& rank) {
    const DistSpec* alone = DistSpec::parse(ProcessMesh::make({1}, {rank.id()}, {"q"}), "q");
    const Tensor x = distribute(iota<float>({4}), spec("p"));
    const auto half = local_map(
        [&](const Tensor& shard) {
          if (rank.id() == 0) {
            Tensor y = integers({1, 2}, alone);
            add_(y, y);
            error_of([&] { divide_(y, integers({1, 0}, alone)); }, ErrorCode::invalid_argument);
          }
          return scale(shard, 0.5);
        },
        {spec("p")}, {spec("p")}, {.outputs = {{{4}, DType::float32}}});
    const uint64_t before = rank.comm_queue().calls_done();
    Tensor y = half(x);
    check(rank.comm_queue().calls_done() == before + 1, "one call on both ranks");
    for (int i = 0; i < 4; ++i) {
      scale_(y, 2.0);
      check(full_equals<float>(
                y, {0, static_cast<float>(1 << i), static_cast<float>(2 << i), static_cast<float>(3 * (1 << i))}),
            "the world goes on");
    }
  });
}

TEST_CASE("4, 9: a plain argument that cannot be promoted on one rank is told to the others") {
  run_torn_world(2, [&](Rank& rank) {
    const PolicyScope scope(rank, {.promotion = PromotionPolicy::replicate});
    const Tensor x = distribute(iota<float>({4}), spec("p"));
    const Tensor plain = iota<float>({4});
    if (rank.id() == 0) {
      add(x, plain);
    } else {
      plain.get().value.storage()->poison(std::make_exception_ptr(std::runtime_error("half written")), "an op");
      error_of([&] { add(x, plain); }, ErrorCode::poisoned);
    }
    check_contains(error_of([&] { full_tensor(x); }, ErrorCode::peer_failed), "half written");
  });
}

TEST_CASE("4, 9: a rank that cannot read an argument has no valid targets of the call, whichever argument it is") {
  const auto poison = [](const Tensor& x) {
    local(x).get().value.storage()->poison(std::make_exception_ptr(std::runtime_error("half written")), "an op");
  };
  run_torn_world(2, [&](Rank& rank) {
    Tensor x = distribute(iota<float>({4}), spec("p"));
    const Tensor y = distribute(iota<float>({4}), spec("p"));
    const Tensor other = distribute(iota<float>({4}), spec("p"));
    if (rank.id() == 1) poison(y);
    if (rank.id() == 0) add_(x, y);
    else error_of([&] { add_(x, y); }, ErrorCode::poisoned);
    check_contains(error_of([&] { full_tensor(other); }, ErrorCode::peer_failed), "half written");
    check_contains(error_of([&] { local(x); }, ErrorCode::poisoned), "half written");
    check(local(other).to_vector<float>().size() == 2, "what the call does not write can be read");
  });
  run_torn_world(2, [&](Rank& rank) {
    Tensor param = distribute(iota<float>({4}), spec("p"));
    Tensor master = distribute(iota<float>({4}), spec("p"));
    const Tensor rate = distribute(iota<float>({1}), spec("-"));
    const Tensor grad = distribute(iota<float>({4}), spec("p"));
    if (rank.id() == 1) poison(param);
    if (rank.id() == 0) sgd_(param, rate, grad, master, true);
    else error_of([&] { sgd_(param, rate, grad, master, true); }, ErrorCode::poisoned);
    check_contains(error_of([&] { full_tensor(grad); }, ErrorCode::peer_failed), "half written");
    check_contains(error_of([&] { local(master); }, ErrorCode::poisoned), "half written");
  });
}

TEST_CASE(
    "4, 9: an argument that is poisoned on one rank is told to the others, and a capture on one rank counts no calls") {
  run_torn_world(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4}), spec("p"));
    if (rank.id() == 0) {
      relu(x);
    } else {
      local(x).get().value.storage()->poison(std::make_exception_ptr(std::runtime_error("half written")), "an op");
      error_of([&] { relu(x); }, ErrorCode::poisoned);
    }
    const Tensor other = distribute(iota<float>({4}), spec("p"));
    check_contains(error_of([&] { full_tensor(other); }, ErrorCode::peer_failed), "half written");
  });
  run_ranks(2, [](Rank& rank) {
    const Tensor x = integers({1, 2, 3, 4}, spec("p"));
    if (rank.id() == 0)
      capture([](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {add(in[0], in[0])}; }, {x});
    error_of([&] { divide(x, integers({1, 0, 0, 1}, spec("p"))); }, ErrorCode::invalid_argument);
    check(full_equals<int32_t>(x, {1, 2, 3, 4}), "every rank failed in the same call: the program goes on");
  });
}

}  // namespace data_error_test
