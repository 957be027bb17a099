// Forms of ops other than lists in place: several outputs, written views, optional outputs, casts, open attributes,
// constants, random.
#include "form_testing.h"
#include "shard/core/device.h"

namespace forms_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line() { return ProcessMesh::make({2}, {}, {"p"}); }
const ProcessMesh* grid() { return ProcessMesh::make({2, 2}, {}, {"a", "b"}); }

/// A mesh and layouts for two tensors of shape [5, 3].
struct Pair {
  const ProcessMesh* mesh;
  const char* x;
  const char* y;
};

std::vector<Pair> pairs() {
  return {{line(), "p, -", "p, -"},          {line(), "p, -", "-, p"},
          {line(), "-, -", "p, -"},          {line(), "p, -", "-, -"},
          {line(), "-, - | sum(p)", "p, -"}, {line(), "-, p", "-, - | sum(p)"},
          {grid(), "a, b", "b, a"},          {grid(), "a+b, -", "-, b | sum(a)"},
          {grid(), "-, b | sum(a)", "a, -"}};
}

/// Calls `program` on five ranks for each of the pairs, with plain tensors and the same distributed.
void for_pairs(const std::function<void(Rank&, const Pair&, Tensor x, Tensor y, Tensor dx, Tensor dy)>& program) {
  use_forms();
  for (const Pair& pair : pairs()) {
    run_ranks(5, [&](Rank& rank) {
      const Tensor x = iota<float>({5, 3}, 1), y = iota<float>({5, 3}, -4);
      program(rank, pair, x, y, distribute(x, DistSpec::parse(pair.mesh, pair.x)),
              distribute(y, DistSpec::parse(pair.mesh, pair.y)));
    });
  }
}

std::string text_of(const Pair& pair) { return fmt::format("x {}, y {}", pair.x, pair.y); }

}  // namespace

TEST_CASE("24: one output in place and one new: the plain form") {
  use_forms();
  Tensor x = iota<float>({3}, 1);
  const Tensor y = iota<float>({3}, 10);
  const auto [out, delta] = step_and_delta_(x, y);
  CHECK(&out == &x);
  CHECK(floats(x) == std::vector<float>{11, 13, 15});
  CHECK(floats(delta) == std::vector<float>{9, 9, 9});
  CHECK(x.version() == 1);
  CHECK(delta.version() == 0);
}

TEST_CASE("24: one output in place and one new, distributed") {
  for_pairs([](Rank& rank, const Pair& pair, Tensor x, Tensor y, Tensor dx, Tensor dy) {
    for (uint64_t step = 1; step <= 2; ++step) {
      const auto hits = call::plan_cache_stats(rank).hits;
      const Tensor delta = std::get<1>(step_and_delta_(x, y));
      const Tensor dist_delta = std::get<1>(step_and_delta_(dx, dy));
      check(call::plan_cache_stats(rank).hits == hits + step - 1, "hit");
      check(same_bits(dx, x) && same_bits(dist_delta, delta), text_of(pair));
      check(dx.version() == step && spec_of(dx) == DistSpec::parse(pair.mesh, pair.x), "version and layout");
    }
    const auto [sum, difference] = step_and_delta(dx, dy);
    const auto [plain_sum, plain_difference] = step_and_delta(x, y);
    check(same_bits(sum, plain_sum) && same_bits(difference, plain_difference), "functional");
  });
}

TEST_CASE("24: a new list, an output in place and a new tensor of one op") {
  for_pairs([](Rank&, const Pair& pair, Tensor x, Tensor y, Tensor dx, Tensor dy) {
    for (int step = 0; step < 2; ++step) {
      const auto [parts, out, total] = step_and_parts_(x, {y, y});
      const auto [dist_parts, dist_out, dist_total] = step_and_parts_(dx, {dy, dy});
      check(dist_parts.size() == 2 && &dist_out == &dx && &out == &x, "results");
      check(same_bits(dist_parts[0], parts[0]) && same_bits(dist_parts[1], parts[1]), "list: " + text_of(pair));
      check(same_bits(dx, x) && same_bits(dist_total, total), text_of(pair));
    }
    const auto [parts, out, total] = step_and_parts_(dx, {});
    check(parts.empty() && same_bits(dx, x) && dx.version() == 3, "an empty list");
  });
}

TEST_CASE("24: an output in place and a new tensor, beside an intermediate list that the caller does not get") {
  for_pairs([](Rank&, const Pair& pair, Tensor x, Tensor y, Tensor dx, Tensor dy) {
    const auto [plain_out, plain_total] = step_and_total(x, {y, y});
    const auto [out, total] = step_and_total_(x, {y, y});
    const auto [dist_out, dist_total] = step_and_total_(dx, {dy, dy});
    check(&dist_out == &dx && &out == &x, "results");
    check(floats(out) == floats(plain_out) && floats(total) == floats(plain_total), "as the functional form");
    check(same_bits(dx, x) && same_bits(dist_total, total), text_of(pair));
  });
}

TEST_CASE("23, 24: a written view beside an output in place") {
  for_pairs([](Rank& rank, const Pair& pair, Tensor x, Tensor y, Tensor dx, Tensor dy) {
    for (const ViewPolicy policy : {ViewPolicy::strict, ViewPolicy::sync}) {
      const PolicyScope scope(rank, {.view = policy});
      const uint64_t version = dx.version();
      const auto [out, state, seen] = track_(x, y, iota<float>({5, 3}, 2));
      const Tensor dist_input = distribute(iota<float>({5, 3}, 2), DistSpec::parse(pair.mesh, pair.x));
      const auto [dist_out, dist_state, dist_seen] = track_(dx, dy, dist_input);
      check(same_bits(dx, x) && same_bits(dy, y) && same_bits(dist_seen, seen), text_of(pair));
      check(same_bits(dist_state, state), "view");
      check(dx.version() == version + 1 && dy.version() == version + 1 && x.version() == y.version(), "one write each");
      check(spec_of(dx) == DistSpec::parse(pair.mesh, pair.x) && spec_of(dy) == DistSpec::parse(pair.mesh, pair.y),
            "layouts");
    }
    const auto [first, absent, second] = track(x, Tensor(), y);
    const auto [dist_first, dist_absent, dist_second] = track(dx, Tensor(), dy);
    check(!absent.defined() && !dist_absent.defined(), "an absent view");
    check(same_bits(dist_first, first) && same_bits(dist_second, second), "beside an absent view");
    const PolicyScope scope(rank, {.view = ViewPolicy::temporary});
    const auto [out, state, seen] = track(x, y, x);
    const auto [dist_out, dist_state, dist_seen] = track(dx, dy, dx);
    check(same_bits(dist_out, out) && same_bits(dist_state, state) && same_bits(dist_seen, seen), "functional");
  });
}

TEST_CASE("an optional output is absent with the input that it shares a buffer with") {
  for_pairs([](Rank&, const Pair& pair, Tensor x, Tensor y, Tensor dx, Tensor dy) {
    const auto [out, sum] = add_into(x, y);
    const auto [dist_out, dist_sum] = add_into(dx, dy);
    check(same_bits(dist_out, out) && same_bits(dist_sum, sum), text_of(pair));
    const auto [alone, none] = add_into(x, Tensor());
    const auto [dist_alone, dist_none] = add_into(dx, Tensor());
    check(!none.defined() && !dist_none.defined(), "absent");
    check(same_bits(dist_alone, alone), "the other output");
    Tensor absent;
    check(same_bits(std::get<0>(add_into_(dx, absent)), std::get<0>(add_into_(x, absent))) && !absent.defined(),
          "in place");
    add_into_(x, y);
    add_into_(dx, dy);
    check(same_bits(dy, y) && dy.version() == 1 && dx.version() == 0, "in place");
  });
}

TEST_CASE("an optional list is absent when it is empty, and lists are cast to the dtype of the kernel") {
  for_pairs([](Rank&, const Pair& pair, Tensor x, Tensor y, Tensor dx, Tensor dy) {
    check(same_bits(add_extras(dx, {}), x), "no list");
    const Tensor wide = cast(y, DType::float64), dist_wide = cast(dy, DType::float64);
    check(same_bits(add_extras(dx, {dy, dist_wide}), add_extras(x, {y, wide})), text_of(pair));
    check(same_bits<double>(add_extras(dist_wide, {dx, dy}), add_extras(wide, {x, y})), "wider");
    check(same_bits(add_cast(dx, dist_wide), add_cast(x, wide)), "single");
    add_cast_(x, wide);
    add_cast_(dx, dist_wide);
    check(same_bits(dx, x) && dx.version() == 1, "in place");
  });
}

TEST_CASE("21: an op may have several views, each of its own argument") {
  for_pairs([](Rank&, const Pair& pair, Tensor x, Tensor y, Tensor dx, Tensor dy) {
    const auto [a, b] = two_views(x, y);
    check(a.shares_buffer_with(x) && b.shares_buffer_with(y), "plain");
    const auto [da, db] = two_views(dx, dy);
    check(same_bits(da, x) && same_bits(db, y), text_of(pair));
    check(dx.version() == 0, "no write");
    two_views_(dx, dy);
    check(same_bits(dx, x) && same_bits(dy, y) && dx.version() == 0, "in place");
    Tensor none;
    check(!std::get<1>(two_views(x, none)).defined() && !std::get<1>(two_views(dx, none)).defined(), "an absent one");
    two_views_(x, none);
    two_views_(dx, none);
    check(!none.defined() && same_bits(dx, x), "an absent one in place");
  });
}

TEST_CASE("a dtype and a place that may be left open are those of the tensor") {
  for_pairs([](Rank&, const Pair& pair, Tensor x, Tensor, Tensor dx, Tensor) {
    check(floats(like(x))[0] == 1 && like(x, DType::float64).to_vector<double>()[0] == 101, "plain");
    check(floats(like(x, std::nullopt, kCpu))[0] == 1001, "place");
    check(same_bits(like(dx), like(x)), text_of(pair));
    check(same_bits<double>(like(dx, DType::float64), like(x, DType::float64)), "dtype");
    check(same_bits(like(dx, DType::float32, kCpu), like(x, DType::float32, kCpu)), "both");
  });
}

TEST_CASE("constants of kernel.param have the types that infer_meta functions get for them") {
  for_pairs([](Rank&, const Pair& pair, Tensor x, Tensor, Tensor dx, Tensor) {
    check(floats(constants(x))[0] == 1 + 3 + 2.5f + 0.25f + 1 + 3 + 100 + 12, "plain");
    check(same_bits(constants(dx), constants(x)), text_of(pair));
    constants_(x);
    constants_(dx);
    check(same_bits(dx, x), "in place");
  });
}

TEST_CASE("34: a random op in place gives the same bits for every layout and draws once a call") {
  for_pairs([](Rank& rank, const Pair& pair, Tensor x, Tensor, Tensor dx, Tensor) {
    for (int step = 0; step < 2; ++step) {
      const uint64_t offset = rank.generator.state().offset;
      jitter_(x, 0.5f);
      jitter_(dx, 0.5f);
      check(same_bits(dx, x) && rank.generator.state().offset == offset + 1, text_of(pair));
    }
    check(dx.version() == 2, "version");
  });
}

TEST_CASE("an op without tensor arguments runs where its attributes say") {
  use_forms();
  CHECK(floats(ramp(3)) == std::vector<float>{0, 1, 2});
  CHECK_THAT(error_of([] { ramp(3, DType::int32); }, ErrorCode::no_kernel),
             Catch::Contains("[ramp] no kernel registered for ramp on cpu with int32"));
}

TEST_CASE("16: the device is that of all tensor arguments, also of those that only infer_meta sees") {
  use_forms();
  Backend backend = backend_of(kCpu);
  backend.name = "form_device";
  const Device other{static_cast<uint8_t>(register_backend(backend)), 0};
  const Tensor x = iota<float>({2}), there = x.to(other);
  CHECK(floats(number_like(x, x, 3)) == std::vector<float>{3, 3});
  CHECK_THAT(error_of([&] { number_like(there, there, 3); }, ErrorCode::no_kernel),
             Catch::Contains("no kernel registered for number_like on form_device") && Catch::Contains("cpu float32"));
  error_of([&] { number_like(x, there, 3); }, ErrorCode::mixed_device);
}

}  // namespace forms_test
