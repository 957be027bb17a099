// Ops that write lists of tensors in place: statements 3 to 5, 12, 24 and 25 of docs/semantics.md, for every element.
#include "form_testing.h"

namespace list_inplace_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line() { return ProcessMesh::make({2}, {}, {"p"}); }
const ProcessMesh* grid() { return ProcessMesh::make({2, 2}, {}, {"a", "b"}); }

using List = std::vector<Tensor>;

/// Plain tensors of these shapes, of whole numbers that differ.
List plain_list(const std::vector<Dims>& shapes, float start) {
  List all;
  for (size_t k = 0; k < shapes.size(); ++k) all.push_back(iota<float>(shapes[k], start + 100 * static_cast<float>(k)));
  return all;
}

List distributed(const List& plain, const ProcessMesh* mesh, const std::vector<const char*>& layouts) {
  List all;
  for (size_t k = 0; k < plain.size(); ++k) all.push_back(distribute(plain[k], DistSpec::parse(mesh, layouts[k])));
  return all;
}

List widened(const List& plain) {
  List all;
  for (const Tensor& each : plain) all.push_back(cast(each, DType::float64));
  return all;
}

Tensor rate_of(float value) { return Tensor::from_data<float>({value}, {1}); }

struct SgdCase {
  const ProcessMesh* mesh;
  std::vector<Dims> shapes;
  std::vector<const char*> params, grads;
};

std::vector<SgdCase> sgd_cases() {
  return {
      {line(), {{5, 3}, {4}, {3, 2}, {1, 7}}, {"p, -", "p", "-, -", "-, p"}, {"-, p", "-", "p, -", "- , - | sum(p)"}},
      {line(), {{1}, {0, 2}}, {"p", "p, -"}, {"- | sum(p)", "-, -"}},
      {line(), {{3}, {4}}, {"- | sum(p)", "- | sum(p)"}, {"p", "- | sum(p)"}},
      {grid(), {{5, 3}, {7}, {2, 2}}, {"a, b", "a+b", "b, - | sum(a)"}, {"b, a", "-", "-, - | sum(a)"}}};
}

void check_sgd(const SgdCase& c, bool with_masters) {
  List params = plain_list(c.shapes, 1), grads = plain_list(c.shapes, 7);
  List masters = with_masters ? widened(params) : List();
  List dist_params = distributed(params, c.mesh, c.params), dist_masters;
  if (with_masters) dist_masters = distributed(masters, c.mesh, c.grads);
  const List dist_grads = distributed(grads, c.mesh, c.grads);
  const Tensor rate = rate_of(0.5f), dist_rate = distribute(rate, DistSpec::parse(c.mesh, "-"));
  for (uint64_t step = 1; step <= 2; ++step) {
    list_sgd_(params, rate, grads, masters);
    const int before = inferences;
    const auto result = list_sgd_(dist_params, dist_rate, dist_grads, dist_masters);
    check(&std::get<0>(result) == &dist_params && &std::get<1>(result) == &dist_masters, "returns its arguments");
    check(step == 1 || inferences - before <= 1, "a hit infers for the local shards alone");
    for (size_t k = 0; k < params.size(); ++k) {
      check(dist_params[k].version() == step && params[k].version() == step && dist_grads[k].version() == 0,
            "versions");
      check(spec_of(dist_params[k]) == DistSpec::parse(c.mesh, c.params[k]), "the layout stays");
      check(same_bits(dist_params[k], params[k]), fmt::format("element {}", k));
      if (with_masters)
        check(same_bits<double>(dist_masters[k], masters[k]) && dist_masters[k].version() == step, "master");
    }
  }
}

/// The state that must be equal before and after a refused call: the texts of all ranks' local shards.
struct Snapshot {
  explicit Snapshot(const List& list) {
    for (const Tensor& each : list) texts.push_back(to_text(each) + std::to_string(each.version()));
  }
  std::vector<std::string> texts;
  bool operator==(const Snapshot&) const = default;
};

}  // namespace

TEST_CASE("24: a list of tensors is written in place, and every alias sees it") {
  use_forms();
  List params = plain_list({{2, 2}, {3}}, 1);
  const Tensor alias = reshape(params[0], {4}), handle = params[1];
  const List grads = plain_list({{2, 2}, {3}}, 0);
  List masters;
  list_sgd_(params, rate_of(1), grads, masters);
  CHECK(floats(alias) == std::vector<float>{1, 1, 1, 1});
  CHECK(floats(handle) == std::vector<float>{1, 1, 1});
  CHECK(masters.empty());
  masters = widened(params);
  list_sgd_(params, rate_of(1), grads, masters);
  CHECK(floats(alias) == std::vector<float>{1, 0, -1, -2});
  CHECK(masters[0].to_vector<double>() == std::vector<double>{1, 0, -1, -2});
  CHECK(alias.version() == 2);
  CHECK(masters[1].version() == 1);
}

TEST_CASE("24: lists written in place have the bits of the plain call, whatever the layout of each element") {
  use_forms();
  for (const SgdCase& c : sgd_cases()) {
    run_ranks(5, [&](Rank& rank) {
      check_sgd(c, false);
      check_sgd(c, true);
      check(call::plan_cache_stats(rank).hits >= 2, "hits");
    });
  }
}

TEST_CASE("24: elements that the rule lays out alike move and are written back, each into its own layout") {
  use_forms();
  run_ranks(3, [](Rank& rank) {
    const std::vector<Dims> shapes(3, Dims{5, 3});
    const std::vector<const char*> layouts = {"p, -", "-, p", "-, - | sum(p)"};
    List x = plain_list(shapes, 1), y = plain_list(shapes, 4);
    List d = distributed(x, line(), layouts);
    const List e = distributed(y, line(), {"-, p", "-, p", "p, -"});
    const Tensor alias = reshape(d[1], {5, 3, 1});
    list_axpy_(x, y, 2.0f);
    list_axpy_(d, e, 2.0f);
    for (size_t k = 0; k < x.size(); ++k) {
      check(same_bits(d[k], x[k]) && d[k].version() == 1, fmt::format("element {}", k));
      check(spec_of(d[k]) == DistSpec::parse(line(), layouts[k]), "layout");
    }
    check(same_bits(alias, reshape(x[1], {5, 3, 1})), "aliases see it");
    const PolicyScope scope(rank, {.inplace = InplacePolicy::error});
    const Snapshot before(d);
    check_contains(error_of([&] { list_axpy_(d, e, 2.0f); }, ErrorCode::policy), "InplacePolicy::error");
    check(Snapshot(d) == before, "refused before anything is written");
    List alike = {d[0]};
    list_axpy_(alike, {e[0]}, 2.0f);
  });
}

TEST_CASE("24: InplacePolicy::adopt gives each element of a list the layout that it was computed in") {
  use_forms();
  run_ranks(3, [](Rank& rank) {
    const PolicyScope scope(rank, {.inplace = InplacePolicy::adopt});
    const std::vector<Dims> shapes(2, Dims{4, 2});
    List x = plain_list(shapes, 1);
    List d = distributed(x, line(), {"p, -", "-, p"});
    const List y = plain_list(shapes, 3);
    list_axpy_(x, y, 1.0f);
    list_axpy_(d, distributed(y, line(), {"p, -", "p, -"}), 1.0f);
    check(spec_of(d[0]) == spec_of(d[1]), "one layout");
    for (size_t k = 0; k < 2; ++k) check(same_bits(d[k], x[k]) && d[k].version() == 1, "value and version");
  });
}

TEST_CASE("5, 24: a list op that is not elementwise computes beside its targets") {
  use_forms();
  List x = plain_list({{3}, {2}}, 0);
  const Tensor alias = x[0];
  list_flip_(x);
  CHECK(floats(alias) == std::vector<float>{2, 1, 0});
  CHECK(floats(x[1]) == std::vector<float>{101, 100});
  run_ranks(3, [](Rank&) {
    List plain = plain_list({{5}, {5}}, 0);
    List d = distributed(plain, line(), {"p", "-"});
    list_flip_(plain);
    list_flip_(d);
    check(same_bits(d[0], plain[0]) && same_bits(d[1], plain[1]), "value");
    check(spec_of(d[0])->text() == "[p]" && d[0].version() == 1 && d[1].version() == 1, "layout and version");
  });
}

TEST_CASE("24: elements whose dtype changes get new buffers, and their old aliases are detached") {
  use_forms();
  List x = plain_list({{2}, {1}}, 1);
  const Tensor alias = reshape(x[0], {2, 1});
  list_widen_(x);
  CHECK(x[0].to_vector<double>() == std::vector<double>{1, 2});
  CHECK(x[0].version() == 1);
  CHECK(floats(alias) == std::vector<float>{1, 2});
  run_ranks(3, [](Rank&) {
    List plain = plain_list({{5, 2}, {5, 2}}, 1);
    List d = distributed(plain, line(), {"p, -", "p, -"});
    Tensor old = reshape(d[1], {5, 2, 1});
    list_widen_(plain);
    list_widen_(d);
    for (size_t k = 0; k < 2; ++k) check(same_bits<double>(d[k], plain[k]) && d[k].version() == 1, "value and version");
    error_of([&] { relu_(old); }, ErrorCode::view_of_copy);
  });
}

TEST_CASE("5: targets of one call that share elements are refused before anything is written") {
  use_forms();
  List x = plain_list({{2, 2}, {3}}, 1);
  List twice = {x[0], x[1], x[0]}, view = {x[0], reshape(x[0], {4})};
  const List grads = plain_list({{2, 2}, {3}, {2, 2}}, 1);
  List masters;
  CHECK_THAT(error_of([&] { list_sgd_(twice, rate_of(1), grads, masters); }, ErrorCode::invalid_argument),
             Catch::Contains("[list_sgd_]") && Catch::Contains("written twice"));
  error_of([&] { list_flip_(view); }, ErrorCode::invalid_argument);
  CHECK(floats(x[0]) == std::vector<float>{1, 2, 3, 4});
  CHECK(x[0].version() == 0);
  Tensor param = iota<float>({3}), same = param;
  error_of([&] { sgd_(param, rate_of(1), iota<float>({3}), same); }, ErrorCode::invalid_argument);
  error_of([&] { track_(param, param, iota<float>({3})); }, ErrorCode::invalid_argument);
  CHECK(param.version() == 0);
  run_ranks(3, [](Rank& rank) {
    List d = distributed(plain_list({{1}, {4}}, 1), line(), {"p", "p"});
    List again = {d[0], d[1], d[0]}, none;
    const List g = distributed(plain_list({{1}, {4}, {1}}, 1), line(), {"p", "p", "p"});
    const Tensor rate = distribute(rate_of(1), DistSpec::parse(line(), "-"));
    const auto misses = call::plan_cache_stats(rank).misses;
    for (int i = 0; i < 2; ++i) {
      const Snapshot before(d);
      check_contains(error_of([&] { list_sgd_(again, rate, g, none); }, ErrorCode::invalid_argument), "written twice");
      check(Snapshot(d) == before, "on every rank, with and without a cached plan");
    }
    check(call::plan_cache_stats(rank).misses == misses + 1, "the plan itself is fine");
  });
}

TEST_CASE("5: a reader that is another target is read as it was before the call") {
  use_forms();
  const auto swap_add = [](List list) {
    list_axpy_(list, List{list[1], list[0]}, 1.0f);
    return list;
  };
  const List plain = swap_add(plain_list({{4}, {4}}, 1));
  CHECK(floats(plain[0]) == std::vector<float>{102, 104, 106, 108});
  CHECK(floats(plain[1]) == floats(plain[0]));
  run_ranks(3, [&](Rank&) {
    for (const char* second : {"p", "-"}) {
      const List d = swap_add(distributed(plain_list({{4}, {4}}, 1), line(), {"p", second}));
      check(same_bits(d[0], plain[0]) && same_bits(d[1], plain[1]), second);
    }
  });
}

TEST_CASE("4: a kernel that fails half way poisons every target of its list, and one that refuses none") {
  use_forms();
  List x = plain_list({{2}, {3}, {2}}, 1);
  error_of([&] { list_break_(x, -1); }, ErrorCode::invalid_argument);
  CHECK(floats(x[0]) == std::vector<float>{1, 2});
  CHECK_THROWS_WITH(list_break_(x, 1), "the kernel broke");
  for (const Tensor& each : x) {
    CHECK_THAT(error_of([&] { add(each, each); }, ErrorCode::poisoned),
               Catch::Contains("list_break_") && Catch::Contains("the kernel broke"));
    CHECK(each.version() == 0);
  }
  run_ranks(2, [](Rank&) {
    List d = distributed(plain_list({{4}, {4}}, 1), line(), {"p", "-"});
    const Snapshot before(d);
    error_of([&] { list_break_(d, -1); }, ErrorCode::invalid_argument);
    check(Snapshot(d) == before, "nothing changed");
    try {
      list_break_(d, 1);
      check(false, "it throws");
    } catch (const Error&) { throw; } catch (const std::runtime_error& error) {
      check_contains(error.what(), "the kernel broke");
    }
    int poisoned = 0;
    for (const Tensor& each : d) {
      try {
        add(each, each);
      } catch (const Error& error) { poisoned += error.code() == ErrorCode::poisoned; }
      check(each.version() == 0, "version");
    }
    check(poisoned >= 1, "what the kernel wrote itself is poisoned");
  });
}

TEST_CASE("24: a list may have more elements than a mask has bits") {
  use_forms();
  run_ranks(2, [](Rank& rank) {
    const size_t count = 90;
    const std::vector<Dims> shapes(count, Dims{3});
    List x = plain_list(shapes, 1);
    const List y = plain_list(shapes, 2);
    List d = distributed(x, line(), std::vector<const char*>(count, "-"));
    const List e = distributed(y, line(), std::vector<const char*>(count, "p"));
    const PolicyScope scope(rank, {.inplace = InplacePolicy::error});
    list_axpy_(x, y, 1.0f);
    list_axpy_(d, e, 1.0f);
    for (size_t k = 0; k < count; ++k)
      check(same_bits(d[k], x[k]) && spec_of(d[k])->text() == "[-]", "value and layout");
  });
}

TEST_CASE("23, 24: under ViewPolicy::sync a write of a list goes through views of copies, under strict it is refused") {
  use_forms();
  run_ranks(2, [](Rank& rank) {
    const Tensor source = distribute(iota<float>({5, 4}), DistSpec::parse(line(), "p, -"));
    const Tensor other = distribute(iota<float>({20}), DistSpec::parse(line(), "p"));
    const List y = distributed(plain_list({{20}, {20}}, 1), line(), {"p", "p"});
    List targets = {other, reshape(source, {20})};
    const Snapshot before(targets);
    error_of([&] { list_axpy_(targets, y, 1.0f); }, ErrorCode::view_of_copy);
    check(Snapshot(targets) == before, "no element was written");
    const PolicyScope scope(rank, {.view = ViewPolicy::sync});
    List synced = {other, reshape(source, {20})};
    list_axpy_(synced, y, 1.0f);
    std::vector<float> expected;
    for (int i = 0; i < 20; ++i) expected.push_back(static_cast<float>(2 * i + 101));
    check(full_equals(source, expected) && full_equals(synced[1], expected), "written through");
    check(source.version() == 1 && other.version() == 1 && synced[1].version() == 1, "versions");
  });
}

}  // namespace list_inplace_test
