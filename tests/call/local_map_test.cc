// local_map: user functions on local shards. Distributed ops are tested elsewhere; these tests are about shards and
// layouts.
#include "shard/api/local_map.h"
#include "shard/call/plan_cache.h"
#include "shard/dist/dist_tensor.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace local_map_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* grid() { return ProcessMesh::make({2, 3}); }
const DistSpec* spec(const char* text, const ProcessMesh* mesh = grid()) { return DistSpec::parse(mesh, text); }

std::vector<float> plus_one(std::vector<float> values) {
  for (float& value : values) value += 1;
  return values;
}

}  // namespace

TEST_CASE("local_map runs a function on shards, uneven and empty ones too, and infers the whole shape") {
  for (const Dims& dims : {Dims{7, 5}, Dims{1, 4}, Dims{0, 3}, Dims{6, 6}}) {
    for (const char* layout : {"a, b", "a+b, -", "b+a, -", "-, b", "-, -"}) {
      run_ranks(7, [&](Rank& rank) {
        const Tensor plain = iota<float>(dims);
        const auto f = local_map([](const Tensor& x) { return scale(x, 1.0, 1.0f); }, {spec(layout)}, {spec(layout)});
        const Tensor y = f(distribute(plain, spec("-, a")));  // resharded first
        check(y.dims() == dims && y.dtype() == DType::float32 && spec_of(y) == spec(layout),
              "meta and layout, outside the mesh too");
        check(full_equals(y, plus_one(plain.to_vector<float>())), std::string(layout) + to_string(dims));
        check(rank.id() < 6 || !dist_impl(y).has_local_shard(), "absent outside the mesh");
      });
    }
  }
}

TEST_CASE("local_map takes pending layouts for inputs and outputs") {
  run_ranks(6, [&](Rank&) {
    const Tensor x = distribute(iota<float>({4, 6}), spec("-, a+b"));
    const Tensor w = distribute(iota<float>({6, 5}), spec("-, -"));
    // Each rank multiplies its columns by its rows; the sum over ranks is the product.
    const auto product =
        local_map([](const Tensor& x, const Tensor& w) { return matmul(x, w); }, {spec("-, a+b"), spec("a+b, -")},
                  {spec("-, - | sum(a), sum(b)")}, {.name = "product"});
    const std::vector<float> expected = matmul(iota<float>({4, 6}), iota<float>({6, 5})).to_vector<float>();
    check(full_equals(product(x, w), expected), "a pending output");
    // A pending input is the contribution of each rank: all of them together are the value, once.
    const auto once = local_map([](const Tensor& x) { return assign(x); }, {spec("-, - | sum(a), sum(b)")},
                                {spec("-, - | sum(a), sum(b)")});
    check(full_equals(once(x), iota<float>({4, 6}).to_vector<float>()), "a pending input");
  });
}

TEST_CASE("local_map returns one tensor, a tuple or a list, as the function does") {
  run_ranks(7, [&](Rank&) {
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    const auto pair = local_map([](const Tensor& x) { return std::tuple(relu(x), cast(x, DType::int64)); },
                                {spec("a, -")}, {spec("a, -"), spec("a, -")});
    const auto [same, integers] = pair(x);
    check(full_equals(same, iota<float>({5, 4}).to_vector<float>()) &&
              full_equals(integers, iota<int64_t>({5, 4}).to_vector<int64_t>()),
          "a tuple");
    check(integers.dtype() == DType::int64, "dtypes are learned outside the mesh too");
    const auto halves = local_map(
        [](const Tensor& x) {
          return split(x, {2, 2}, 1);
        },
        {spec("a, -")}, {spec("a, -"), spec("a, -")});
    const std::vector<Tensor> list = halves(x);
    check(list.size() == 2 && list[1].dims() == Dims{5, 2}, "a list");
    const auto none = local_map([](const Tensor&) { return std::vector<Tensor>(); }, {spec("a, -")}, {});
    check(none(x).empty(), "no output");
  });
}

TEST_CASE("local_map with given metas sends nothing") {
  run_ranks(7, [&](Rank& rank) {
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    PolicyScope forbid(rank, {.comm = CommPolicy::forbid});
    const CommStats before = rank.stats();
    const auto f = local_map([](const Tensor& x) { return relu(x); }, {spec("a, -")}, {spec("a, -")},
                             {.name = "mine", .outputs = {{{5, 4}, DType::float32}}});
    const Tensor y = f(x);
    check(rank.stats().collectives == before.collectives && y.dims() == Dims{5, 4}, "no exchange");
    const auto inferred =
        local_map([](const Tensor& x) { return relu(x); }, {spec("a, -")}, {spec("a, -")}, {.name = "inferred"});
    check_contains(error_of([&] { inferred(x); }, ErrorCode::policy),
                   "[inferred] would communicate on mesh(a=2, b=3): the shapes of the outputs' local shards");
    const auto moved = local_map([](const Tensor& x) { return relu(x); }, {spec("-, a")}, {spec("-, a")},
                                 {.name = "moved", .outputs = {{{5, 4}, DType::float32}}});
    check_contains(error_of([&] { moved(x); }, ErrorCode::policy),
                   "argument 'input 0' (f32[5, 4]) from [a, -] to [-, a]");
  });
}

TEST_CASE("local_map hands on plain tensors and layouts that are not asked for") {
  run_ranks(6, [&](Rank&) {
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    const Tensor bias = iota<float>({4});
    const auto f =
        local_map([](const Tensor& x, const Tensor& bias) { return add(x, bias); }, {nullptr, nullptr}, {spec("a, -")});
    check(full_equals(f(x, bias), add(iota<float>({5, 4}), bias).to_vector<float>()), "a null layout");
  });
}

TEST_CASE("local_map: an output never shares a buffer with an input or another output") {
  run_ranks(6, [&](Rank&) {
    const Tensor x = distribute(iota<float>({6, 4}), spec("a, -"));
    const auto same = local_map(
        [](const Tensor& x) {
          return std::tuple(x, reshape(x, {-1, 4}), x);
        },
        {spec("a, -")}, {spec("a, -"), spec("a, -"), spec("a, - | sum(b)")});
    auto [first, second, pending] = same(x);
    check(!first.shares_buffer_with(x) && !second.shares_buffer_with(x) && !first.shares_buffer_with(second) &&
              !pending.shares_buffer_with(first),
          "copied");
    scale_(first, 2.0);
    check(full_equals(x, iota<float>({6, 4}).to_vector<float>()), "x stays");
  });
}

TEST_CASE("local_map: a shard that does not fit is an error that names rank, expected and actual shard") {
  run_ranks(7, [&](Rank& rank) {
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    const auto longer = local_map([&](const Tensor& x) { return rank.id() >= 3 ? slice(x, {0}, {0}, {1}, {}, {}) : x; },
                                  {spec("a, -")}, {spec("a, -")}, {.name = "longer"});
    // 3 + 1 rows are 4, of which each half of the mesh should have 2; detected alike on all ranks.
    const std::string text = error_of([&] { longer(x); }, ErrorCode::shape_mismatch);
    check_contains(text,
                   "[longer] output 0: rank 0's local shard of f32[4, 4] [a, -] on mesh(a=2, b=3) must be f32[2, 4], "
                   "but the function has returned f32[3, 4]");
    const auto mixed =
        local_map([&](const Tensor& x) { return cast(x, rank.id() == 4 ? DType::float64 : DType::float32); },
                  {spec("a, -")}, {spec("a, -")});
    check_contains(error_of([&] { mixed(x); }, ErrorCode::dtype_mismatch), "on rank 0, but f64[2, 4] on rank 4");
    check(full_equals(x, iota<float>({5, 4}).to_vector<float>()), "the input is as it was");
  });
  run_ranks(6, [](Rank&) {
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    const auto given = local_map([](const Tensor& x) { return x; }, {spec("a, -")}, {spec("a, -")},
                                 {.name = "given", .outputs = {{{8, 4}, DType::float32}}});
    check_contains(error_of([&] { given(x); }, ErrorCode::shape_mismatch),
                   "of f32[8, 4] [a, -] on mesh(a=2, b=3) must be f32[4, 4]");
    check(full_equals(x, iota<float>({5, 4}).to_vector<float>()), "the input is as it was");
  });
}

TEST_CASE("local_map: what cannot be is refused before the function runs") {
  run_ranks(6, [&](Rank&) {
    bool ran = false;
    const auto function = [&](const Tensor& x) { return ran = true, x; };
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    const auto* other = ProcessMesh::make({6});
    check_contains(error_of([&] { local_map(function, {spec("a, -")}, {spec("a, -", other)})(x); }, ErrorCode::layout),
                   "all must be on one mesh");
    check_contains(error_of([&] { local_map(function, {nullptr}, {spec("a, -", other)})(x); }, ErrorCode::layout),
                   "pass a layout on that mesh");
    check_contains(error_of([&] { local_map(function, {spec("a, -")}, {nullptr})(x); }, ErrorCode::layout),
                   "layout of an output is null");
    check_contains(error_of([&] { local_map(function, {}, {spec("a, -")})(x); }, ErrorCode::invalid_argument),
                   "1 tensors, but has 0 input layouts");
    check_contains(error_of(
                       [&] {
                         local_map(function, {spec("a, -")}, {spec("a, -"), spec("-, -")})(x);
                       },
                       ErrorCode::invalid_argument),
                   "returned 1 tensors, but there are 2 output layouts");
    check_contains(error_of(
                       [&] {
                         local_map(function, {spec("a, -")}, {spec("a, -")})(iota<float>({5, 4}));
                       },
                       ErrorCode::layout),
                   "is a plain tensor");
    check_contains(
        error_of([&] { local_map(function, {spec("a, -")}, {spec("a, -")})(Tensor()); }, ErrorCode::undefined),
        "'input 0'");
    check_contains(error_of(
                       [&] {
                         local_map(function, {spec("a, -")}, {spec("a")}, {.outputs = {{{5, 4}, DType::float32}}})(x);
                       },
                       ErrorCode::layout),
                   "output 0 has layout [a] with 1 dims, but is f32[5, 4]");
    check(!ran, "the function never ran");
  });
}

TEST_CASE("local_map: an error inside of the function poisons nothing, and a write to an argument is told") {
  run_ranks(6, [&](Rank&) {
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    const auto fails =
        local_map([](const Tensor& x) -> Tensor { fail(ErrorCode::invalid_argument, "no {}", x.dims().rank()); },
                  {spec("-, a")}, {spec("a, -")});
    check_contains(error_of([&] { fails(x); }, ErrorCode::invalid_argument), "no 2");
    check(full_equals(x, iota<float>({5, 4}).to_vector<float>()) && x.version() == 0, "x is as it was");
    const auto writes = local_map(
        [](const Tensor& x) {
          Tensor y = x;
          return relu_(y);
        },
        {spec("a, -")}, {spec("a, -")});
    check_contains(error_of([&] { writes(x); }, ErrorCode::invalid_argument), "has written its argument 'input 0'");
    const auto nested = local_map([&](const Tensor&) { return x; }, {spec("a, -")}, {spec("a, -")});
    check_contains(error_of([&] { nested(x); }, ErrorCode::layout), "returned a distributed tensor");
  });
}

TEST_CASE("local_map: observers are told of the call") {
  run_ranks(6, [&](Rank& rank) {
    std::vector<CallRecord> records;
    const Tensor x = distribute(iota<float>({5, 4}), spec("a, -"));
    rank.observer = [&](const CallRecord& record) { records.push_back(record); };
    local_map([](const Tensor& x) { return relu(x); }, {spec("-, -")}, {spec("-, -")}, {.name = "mine"})(x);
    check(records.size() == 1 && records[0].op == "mine" && records[0].inputs == "input 0 [a, -]" &&
              records[0].outputs == "[-, -]",
          "one record");
    check(records[0].bytes > 0 && records[0].reshards.find("all_gather") != std::string::npos, "what moved");
  });
}

}  // namespace local_map_test
