// The whole text of one error of each class of a distributed call: tests/call/errors/NAME.txt. A run with
// SHARD_UPDATE_ERRORS=1 writes the files; the diff then shows what changed.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>

#include "shard/call/dist_call.h"
#include "shard/call/item.h"
#include "shard/ops/math_dense.h"
#include "shard/shard.h"
#include "support/mesh_run.h"
#include "support/source_dir.h"

namespace errors_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(const char* text) { return DistSpec::parse(line(2), text); }
Tensor by_rows() { return distribute(iota<float>({4, 2}), spec("p, -")); }
Tensor by_columns() { return distribute(iota<float>({4, 2}), spec("-, p")); }
Tensor pending() { return from_local(iota<float>({4, 2}), spec("-, - | sum(p)"), {4, 2}, DType::float32); }

/// An op of this test, which has no rule.
constexpr OpDef kUnruled = {.name = "unruled", .location = "mine.yaml", .inputs = slots<"x">, .outputs = slots<"out">};

struct ErrorCase {
  const char* name;  // of its file
  ErrorCode code;
  std::function<void(Rank&)> call;
};

std::vector<ErrorCase> cases() {
  return {
      {"undefined", ErrorCode::undefined, [](Rank&) { add(by_rows(), Tensor()); }},
      {"undefined_in_list", ErrorCode::undefined,
       [](Rank&) {
         concat({by_rows(), Tensor()}, 0);
       }},
      {"plain_argument", ErrorCode::layout, [](Rank&) { add(by_rows(), iota<float>({2})); }},
      {"promoted_target", ErrorCode::layout,
       [](Rank& rank) {
         const PolicyScope scope(rank, {.promotion = PromotionPolicy::replicate});
         Tensor x = iota<float>({4, 2});
         add_(x, by_rows());
       }},
      {"promoted_differs", ErrorCode::layout,
       [](Rank& rank) {
         const PolicyScope scope(rank, {.promotion = PromotionPolicy::replicate_checked});
         add(by_rows(), iota<float>({2}, static_cast<float>(rank.id())));
       }},
      {"other_mesh", ErrorCode::layout,
       [](Rank&) {
         add(by_rows(), distribute(iota<float>({2}), DistSpec::parse(ProcessMesh::make({2}, {1, 0}, {"q"}), "q")));
       }},
      {"shapes", ErrorCode::shape_mismatch, [](Rank&) { add(by_rows(), distribute(iota<float>({3}), spec("-"))); }},
      {"dtypes", ErrorCode::dtype_mismatch, [](Rank&) { add(by_rows(), distribute(iota<int64_t>({2}), spec("-"))); }},
      {"axis", ErrorCode::out_of_range, [](Rank&) { sum(by_rows(), {2}); }},
      {"attribute", ErrorCode::invalid_argument, [](Rank&) { dropout(by_rows(), Tensor(), 1.5); }},
      {"no_kernel", ErrorCode::no_kernel, [](Rank&) { exp(distribute(iota<int32_t>({4}), spec("p"))); }},
      {"no_rule", ErrorCode::no_rule,
       [](Rank&) {
         const Tensor x = by_rows();
         call::DistCall call(kUnruled, x);
         call.run(infer::relu, [&] { return dense::relu(call, call.meta(0), call[0]); });
       }},
      {"forbidden_communication", ErrorCode::policy,
       [](Rank& rank) {
         const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
         add(by_rows(), by_columns());
       }},
      {"forbidden_reshard", ErrorCode::policy,
       [](Rank& rank) {
         const PolicyScope scope(rank, {.comm = CommPolicy::forbid_reshards});
         add(by_rows(), distribute(iota<float>({4, 2}), spec("-, -")));
       }},
      {"forbidden_row_counts", ErrorCode::policy,
       [](Rank& rank) {
         const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
         nonzero(by_rows());
       }},
      {"target_would_move", ErrorCode::policy,
       [](Rank& rank) {
         const PolicyScope scope(rank, {.inplace = InplacePolicy::error});
         Tensor x = pending();
         exp_(x);
       }},
      {"target_would_grow", ErrorCode::shape_mismatch,
       [](Rank&) {
         Tensor x = distribute(iota<float>({2}), spec("p"));
         add_(x, by_rows());
       }},
      {"written_twice", ErrorCode::invalid_argument,
       [](Rank&) {
         const Tensor statistics = distribute(iota<float>({2}), spec("-"));
         batch_norm(by_rows(), statistics, statistics, Tensor(), Tensor(), false, 0.9f, 1e-5f, "NCHW", false, false);
       }},
      {"stale_view", ErrorCode::stale_view,
       [](Rank&) {
         Tensor x = distribute(iota<float>({5, 4}), spec("-, p"));
         const Tensor view = reshape(x, {20});
         scale_(x, 2.0);
         relu(view);
       }},
      {"view_of_copy", ErrorCode::view_of_copy,
       [](Rank&) {
         const Tensor x = distribute(iota<float>({5, 4}), spec("-, p"));
         Tensor view = reshape(x, {20});
         relu_(view);
       }},
      {"poisoned", ErrorCode::poisoned,
       [](Rank&) {
         const Tensor x = by_rows();
         x.get().value.storage()->poison(std::make_exception_ptr(std::runtime_error("the device is gone")), "scale_");
         relu(x);
       }},
      {"data_of_a_shard", ErrorCode::invalid_argument,
       [](Rank&) {
         bernoulli(distribute(full({4, 2}, 2.0), spec("-, -")));
       }},
      {"mask", ErrorCode::dtype_mismatch, [](Rank&) { masked_select(by_rows(), by_rows()); }},
      {"layout_of_creation", ErrorCode::layout,
       [](Rank&) {
         uniform(IntArray{4, 2}, spec("p"));
       }},
      {"item", ErrorCode::shape_mismatch, [](Rank&) { item(by_rows()); }},
      {"forbidden_item", ErrorCode::policy,
       [](Rank& rank) {
         const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
         item(sum(by_rows()));
       }},
      {"distribute_dims", ErrorCode::layout, [](Rank&) { distribute(iota<float>({4}), spec("p, -")); }},
      {"distribute_twice", ErrorCode::layout, [](Rank&) { distribute(by_rows(), spec("-, -")); }},
      {"distribute_source", ErrorCode::layout,
       [](Rank&) { distribute(iota<float>({4}), DistSpec::parse(line(1), "p"), from_rank(1)); }},
      {"mesh_outside_world", ErrorCode::layout,
       [](Rank&) { distribute(iota<float>({4}), DistSpec::parse(line(5), "p")); }},
      {"reshard_plain", ErrorCode::layout, [](Rank&) { reshard(iota<float>({4}), spec("p")); }},
      {"full_plain", ErrorCode::layout, [](Rank&) { full_tensor(iota<float>({4})); }},
      {"from_local_shard", ErrorCode::shape_mismatch,
       [](Rank&) {
         from_local(iota<float>({4, 2}), spec("p, -"), {4, 2}, DType::float32);
       }},
      {"from_local_distributed", ErrorCode::layout,
       [](Rank&) {
         from_local(by_rows(), spec("p, -"), {4, 2}, DType::float32);
       }},
      {"from_local_dims", ErrorCode::layout,
       [](Rank&) { from_local(iota<float>({4}), spec("p, -"), {4}, DType::float32); }},
  };
}

std::filesystem::path folder() { return std::filesystem::path(source_dir()) / "tests/call/errors"; }

/// The text without kernels of other backends, which not every test program has.
std::string of_cpu(const std::string& text) { return std::regex_replace(text, std::regex(", cuda [a-z0-9]+"), ""); }

void check_text(const std::string& name, const std::string& whole) {
  const std::string text = of_cpu(whole);
  const std::filesystem::path path = folder() / (name + ".txt");
  if (std::getenv("SHARD_UPDATE_ERRORS") != nullptr) std::ofstream(path) << text << "\n";
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  INFO(name << ".txt; SHARD_UPDATE_ERRORS=1 writes it");
  CHECK(text + "\n" == expected.str());
}

}  // namespace

TEST_CASE("36: the text of every error of a distributed call is that of its golden file") {
  std::set<std::string> names;
  for (const ErrorCase& each : cases()) {
    names.insert(each.name);
    std::array<std::string, 2> texts;
    // A separate world, because ranks may be at different points after an error.
    World::local(2)->run([&](Rank& rank) {
      std::string& text = texts[static_cast<size_t>(rank.id())];
      try {
        each.call(rank);
        text = "no error";
      } catch (const Error& error) {
        text = error.what();
        if (error.code() != each.code) text += std::string(" [code ") + to_string(error.code()) + "]";
      }
    });
    check_text(each.name, texts[0]);
    // Where a text names a rank, each rank names itself.
    if (std::string_view(each.name) != "from_local_shard") CHECK(texts[1] == texts[0]);
  }
  const auto text_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string("no error");
  };
  // Errors of ranks that do not do the same.
  std::array<Tensor, 2> shared;
  std::array<std::string, 4> texts;
  auto world = World::local(2);
  world->run([&](Rank& rank) { shared[static_cast<size_t>(rank.id())] = distribute(iota<float>({4}), spec("p")); });
  world->run([&](Rank& rank) {
    if (rank.id() == 0) texts[0] = text_of([&] { add(shared[0], shared[1]); });
    if (rank.id() == 0) texts[1] = text_of([&] { reshard(shared[1], spec("-")); });
    const Tensor alone = distribute(iota<float>({4}), DistSpec::parse(line(1), "p"));
    if (rank.id() == 1) texts[2] = text_of([&] { local(alone); });
  });
  texts[3] = text_of([&] { relu(shared[0]); });
  shared = {};
  const std::array<const char*, 4> others = {"other_rank", "reshard_other_rank", "local_outside_mesh",
                                             "outside_of_run"};
  for (size_t i = 0; i < others.size(); ++i) {
    names.insert(others[i]);
    check_text(others[i], texts[i]);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    INFO("a file of no case: " << entry.path());
    CHECK(names.contains(entry.path().stem().string()));
  }
}

TEST_CASE("36: errors of a distributed call name the op, layouts, the mesh and what to do") {
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    INFO(entry.path().filename() << ": " << text.str());
    // These concern no op, or occur before a mesh is known.
    const std::set<std::string> others = {"mesh_outside_world", "outside_of_run", "promoted_target"};
    if (others.contains(entry.path().stem().string())) continue;
    CHECK(text.str().find('[') == 0);
    const bool plain = entry.path().stem() == "reshard_plain" || entry.path().stem() == "full_plain";
    CHECK((plain || text.str().find("mesh(") != std::string::npos));
  }
}

TEST_CASE("Errors of an op that calls another name the op that was called") {
  CHECK_THAT(error_of([] { zeros({-1}); }, ErrorCode::out_of_range), Catch::StartsWith("[zeros] "));
  CHECK_THAT(error_of([] { full({-1}, 0); }, ErrorCode::out_of_range), Catch::StartsWith("[full] "));
  CHECK_THAT(error_of([] { triu_grad(full({3}, 1.0), 0); }, ErrorCode::shape_mismatch),
             Catch::StartsWith("[triu_grad] "));
  run_ranks(2, [](Rank&) {
    const DistSpec* spec = DistSpec::parse(ProcessMesh::make({2}), "a");
    for (const auto& [op, text] :
         {std::pair("[zeros] ", error_of(
                                    [&] {
                                      zeros({5, 2}, spec);
                                    },
                                    ErrorCode::layout)),
          std::pair("[ones] ", error_of(
                                   [&] {
                                     ones({5, 2}, spec);
                                   },
                                   ErrorCode::layout)),
          std::pair("[ones] ", error_of([&] { ones({5}, static_cast<const DistSpec*>(nullptr)); }, ErrorCode::layout)),
          std::pair("[full] ", error_of(
                                   [&] {
                                     full({5, 2}, 1.0, spec);
                                   },
                                   ErrorCode::layout)),
          std::pair("[triu_grad] ", error_of([&] { triu_grad(zeros({4}, spec), 0); }, ErrorCode::shape_mismatch))}) {
      check(text.starts_with(op), text);
    }
  });
}

}  // namespace errors_test
