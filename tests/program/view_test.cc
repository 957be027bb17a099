// Views of copies, and handles that share buffers, as arguments and outputs of captured functions: policies,
// histories and versions are those of eager calls.
#include <catch2/catch.hpp>

#include "shard/autograd/autograd.h"
#include "shard/call/plan_cache.h"
#include "shard/program/capture/function.h"
#include "shard/program/io/json.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace view_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line() { return ProcessMesh::make({2}, {}, {"p"}); }
Tensor base_of(double start = 1) { return on("-,p", {2, 3}, start, line()); }
/// A view of a resharded copy of `base`.
Tensor moved(const Tensor& base) {
  const Tensor view = reshape(base, {6});
  check(!view.shares_buffer_with(base), "the view was resharded");
  return view;
}
void twice(Tensor x) { scale_(x, Scalar(2), Scalar(0), true); }

/// The text of the error of a call, or "".
std::string told(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) { return to_string(error.code()); }
  return "";
}

/// The function itself, or one that captures it.
program::Function maybe_captured(bool captures, const program::Function& function) {
  if (!captures) return function;
  return [captured = CapturedFunction(function, {})](const Tensors& in) mutable { return captured(in); };
}

}  // namespace

TEST_CASE("22: an output that was dropped is not reused while a copy knows it as its source") {
  run_ranks(2, [](Rank&) {
    CapturedFunction captured(
        [](const Tensors& in) -> Tensors {
          const Tensor out = scale(in[0], Scalar(2), Scalar(0), true);
          return {out, moved(out)};
        },
        {});
    Tensors out = captured({base_of()});
    const Tensor view = out[1];
    out.clear();
    for (int run = 1; run <= 2; ++run) twice(captured({base_of(10 * run)})[0]);
    check(whole(view) == Values{2, 4, 6, 8, 10, 12}, "the view is of the first output");
  });
}

TEST_CASE("22: captured functions read and write resharded views as eager calls do under the policy in force") {
  struct Case {
    bool writes_before;  // the source, before the call
    program::Function function;
  };
  const std::vector<Case> cases = {
      {false, [](const Tensors& in) -> Tensors { return twice(in[1]), Tensors{add(in[1], in[1])}; }},
      {true, [](const Tensors& in) -> Tensors { return twice(in[1]), Tensors{add(in[1], in[1])}; }},
      {true, [](const Tensors& in) -> Tensors { return {add(in[1], in[1])}; }},
      {true, [](const Tensors& in) -> Tensors { return twice(in[0]), Tensors{add(in[1], in[1])}; }},
      {false, [](const Tensors& in) -> Tensors { return twice(in[0]), Tensors{multiply(in[0], in[0])}; }},
  };
  for (const ViewPolicy policy : {ViewPolicy::strict, ViewPolicy::temporary}) {
    for (const Case& each : cases) {
      for (const bool closure : {false, true}) {
        run_ranks(2, [&](Rank& rank) {
          std::vector<std::string> seen[2];
          for (const bool captures : {false, true}) {
            const Tensor base = base_of(), view = moved(base), other = base_of(100);
            if (each.writes_before) twice(base);
            const PolicyScope policies(rank, {.view = policy});
            const program::Function function = maybe_captured(captures, [&](const Tensors& in) {
              return closure ? each.function({base, view}) : each.function(in);
            });
            std::vector<std::string>& log = seen[captures ? 1 : 0];
            for (int run = 0; run < 2; ++run) {
              log.push_back(told([&] {
                const Tensor out = function(closure ? Tensors{other} : Tensors{base, view})[0];
                for (const double value : whole(out)) log.push_back(std::to_string(value));
              }));
              if (!log.back().empty()) break;  // an eager call may have written before it failed, and a program has not
              for (const double value : whole(base)) log.push_back(std::to_string(value));
              log.push_back(std::to_string(base.version()) + " " + std::to_string(view.version()));
            }
          }
          check(seen[0] == seen[1], fmt::format("{} and {}", fmt::join(seen[0], ","), fmt::join(seen[1], ",")));
        });
      }
    }
  }
}

TEST_CASE("22: a view of a resharded view is stale in a captured function that writes the source of both") {
  run_ranks(2, [](Rank&) {
    const program::Function function = [](const Tensors& in) -> Tensors {
      return twice(in[0]), Tensors{add(in[1], in[1])};
    };
    CapturedFunction captured(function, {});
    for (const bool captures : {false, true}) {
      const Tensor base = base_of();
      const Tensor view = moved(base);
      const Tensor far = reshape(view, {3, 2});  // "p" on 6 elements to 3 rows: needs another reshard
      check(!far.shares_buffer_with(view), "the second view was resharded, too");
      const program::Function called =
          captures ? program::Function([&](const Tensors& in) { return captured(in); }) : function;
      check(whole(called({base_of(5), far})[0]) == Values{2, 4, 6, 8, 10, 12}, "another tensor is written");
      check(told([&] { called({base, far}); }) == "stale_view", "the source is written");
    }
  });
}

TEST_CASE(
    "20: the refresh before a captured function runs is judged, traced and reported, and a refused one changes "
    "nothing") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope policies(rank, {.view = ViewPolicy::sync});
    for (const bool closure : {false, true}) {
      const Tensor base = base_of(), view = moved(base), input = base_of();
      CapturedFunction captured(
          [&](const Tensors& in) -> Tensors { return {add(closure ? view : in[0], closure ? view : in[0])}; }, {});
      const Tensors inputs = {closure ? input : view};
      captured(inputs);
      for (const bool captured_before : {true, false}) {
        if (!captured_before)
          captured = CapturedFunction(
              [&](const Tensors& in) -> Tensors { return {add(closure ? view : in[0], closure ? view : in[0])}; }, {});
        twice(base);
        const uint64_t version = view.version();
        {
          const PolicyScope forbids(rank, {.view = ViewPolicy::sync, .comm = CommPolicy::forbid});
          check_contains(error_of([&] { captured(inputs); }, ErrorCode::policy), "the refresh of a view by [reshape]");
        }
        check(view.version() == version, "a refused call refreshes nothing");
        int64_t told = 0;
        rank.observer = [&](const CallRecord& record) {
          if (record.op == "refresh") told += record.bytes;
        };
        captured(inputs);
        rank.observer = {};
        check(told > 0, "observers see the refresh");
        check(view.version() == version + 1, "refreshed once");
        check(whole(captured(inputs)[0]) == whole(add(view, view)), "in step");
      }
    }
  });
}

TEST_CASE("33: a view whose history a capture brings up to date stays inside of the recomputed scope") {
  const auto gradients = [](bool captures) {
    const Tensor w = leaf({1, 2, 3, 4}), x = leaf({2, 3, 4, 5});
    Tensor base = multiply(w, w);
    const Tensor view = reshape(base, {2, 2});
    multiply_(base, w);  // the view follows: w^3
    const program::Function function = maybe_captured(captures, [&](const Tensors& in) -> Tensors {
      return {total(multiply(reshape(in[0], {2, 2}), view))};
    });
    const Tensor out = recompute([&](const Tensors& in) { return function(in); }, {multiply(x, x)})[0];
    out.backward();
    return std::vector<Values>{values(out.detach()), values(w.grad()), values(x.grad())};
  };
  const std::vector<Values> eager = gradients(false);
  CHECK(gradients(true) == eager);
}

TEST_CASE(
    "30: detach() of an argument or output that is returned has no history, and is no view, however it is written "
    "later") {
  const program::Function function = [](const Tensors& in) -> Tensors {
    const Tensor y = scale(in[0], Scalar(3), Scalar(0), true);
    return {in[0].detach(),     reshape(in[0].detach(), {2, 1}), reshape(in[0], {2, 1}), y, y.detach(),
            reshape(y, {1, 2}), reshape(y.detach(), {2, 1})};
  };
  for (const bool records : {true, false}) {
    std::vector<std::vector<Values>> seen;
    for (const int kind : {0, 1, 2}) {
      const Tensor w = leaf({1, 2});
      Tensor x = multiply(w, w);
      CapturedFunction captured(function, {});
      if (kind == 2) captured = CapturedFunction(program::from_json(program::to_json(captured.trace({x})), {}));
      Tensors out = kind == 0 ? function({x}) : captured({x});
      std::vector<Values>& log = seen.emplace_back();
      const auto note = [&] {
        for (const Tensor& each : out) log.push_back({each.requires_grad() ? 1.0 : 0.0, each.is_leaf() ? 1.0 : 0.0});
      };
      note();
      for (Tensor* const each : {&x, &out[3]}) {
        if (records) {
          multiply_(*each, w);
        } else {
          const NoGrad off;
          twice(*each);
        }
        note();
      }
      for (const Tensor& each : out) log.push_back(values(each.detach()));
      if (records) {
        total(add(reshape(out[2], {2}), reshape(out[5], {2}))).backward();
        log.push_back(values(w.grad()));
      }
    }
    CHECK(seen[1] == seen[0]);
    CHECK(seen[2] == seen[0]);
  }
}

TEST_CASE(
    "30: a write through one output that is a view reaches the histories of the others that share its buffer, in any "
    "order") {
  const program::Function functions[] = {
      [](const Tensors& in) -> Tensors {
        const Tensor y = scale(in[0], Scalar(3), Scalar(0), true);
        return {reshape(y, {2, 1}), y, reshape(y, {1, 2})};
      },
      [](const Tensors& in) -> Tensors {
        const Tensor y = scale(in[0], Scalar(3), Scalar(0), true);
        return {reshape(y, {2, 1}), reshape(y, {1, 2}), reshape(y, {2})};  // of a tensor that the caller does not see
      },
  };
  for (const program::Function& function : functions) {
    for (const size_t written : {0u, 1u, 2u}) {
      std::vector<std::vector<Values>> seen;
      for (const bool captures : {false, true}) {
        const Tensor x = leaf({1, 2});
        const Tensors out = maybe_captured(captures, function)({x});
        Tensor target = out[written];
        multiply_(target, target.detach());
        std::vector<Values>& log = seen.emplace_back();
        for (const Tensor& each : out) {
          log.push_back(values(each.detach()));
          log.push_back(values(grad({total(each)}, {x}, {}, {.retain_graph = true})[0]));
        }
      }
      CAPTURE(written);
      CHECK(seen[1] == seen[0]);
    }
  }
}

}  // namespace view_test
