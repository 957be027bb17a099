// When metas are inferred, and that a call whose inference throws has no effects.
#include "form_testing.h"

namespace inference_test {

using namespace shard;
using namespace shard::test;

namespace {

const DistSpec* spec(const char* text) { return DistSpec::parse(ProcessMesh::make({2}, {}, {"p"}), text); }

/// The state that a refused call must not change.
struct State {
  explicit State(Rank& rank, const Tensor& x)
      : hits(call::plan_cache_stats(rank).hits), sent(rank.stats().bytes_sent), offset(rank.generator.state().offset),
        plain_offset(rank.plain_generator.state().offset), version(x.version()), text(to_text(x)) {}
  uint64_t hits;
  int64_t sent;
  uint64_t offset, plain_offset, version;
  std::string text;
  bool operator==(const State&) const = default;
};

}  // namespace

TEST_CASE("4: an error while metas are inferred leaves no plan, version, byte or random offset behind") {
  use_forms();
  run_ranks(3, [](Rank& rank) {
    Tensor x = distribute(iota<float>({5}), spec("p"));
    const Tensor pending = distribute(iota<float>({4}), spec("- | sum(p)"));
    for (int i = 0; i < 2; ++i) {
      const State before(rank, x);
      error_of([&] { jitter_(x, -1); }, ErrorCode::invalid_argument);
      error_of([&] { jitter(x, -1); }, ErrorCode::invalid_argument);
      error_of([&] { step_and_delta_(x, pending); }, ErrorCode::shape_mismatch);
      std::vector<Tensor> list = {x};
      error_of([&] { list_axpy_(list, {pending}, 1); }, ErrorCode::shape_mismatch);
      error_of([&] { twice_as_complex(x); }, ErrorCode::dtype_mismatch);
      check(State(rank, x) == before, "no effects, and no plan to hit the second time");
    }
    jitter_(x, 1);
    check(x.version() == 1 && rank.generator.state().offset == 1, "the rank goes on");
  });
}

TEST_CASE(
    "12: metas are inferred when a plan is made, for the whole tensors and to check the rule, and never on a hit") {
  use_forms();
  run_ranks(3, [](Rank& rank) {
    Tensor x = distribute(iota<float>({5}), spec("p"));
    const Tensor y = distribute(iota<float>({5}), spec("-"));
    const int local = rank.id() < 2 ? 1 : 0;
    for (int i = 0; i < 3; ++i) {
      const int before = inferences;
      step_and_delta_(x, y);
      check(inferences - before == (i == 0 ? 1 + local : 0), fmt::format("call {}", i));
    }
  });
}

}  // namespace inference_test
