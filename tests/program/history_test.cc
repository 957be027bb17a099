// Arguments that a captured function writes in place where calls are recorded: their histories continue with the
// captured step.
#include <catch2/catch.hpp>

#include "shard/autograd/autograd.h"
#include "shard/program/capture/function.h"
#include "shard/program/io/json.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace history_test {

using namespace shard;
using namespace shard::test;

namespace {

/// A function of a computed tensor, a plain one and a leaf, which writes the first two or one of them.
using Function = std::function<Tensors(Tensor computed, Tensor plain, const Tensor& leaf)>;

const std::vector<Function>& functions() {
  static const std::vector<Function> all = {
      [](Tensor computed, Tensor, const Tensor& w) { return multiply_(computed, w), Tensors{}; },
      [](Tensor computed, Tensor, const Tensor& w) {
        return multiply_(computed, w), Tensors{computed, total(computed)};
      },
      [](Tensor, Tensor plain, const Tensor& w) { return add_(plain, multiply(w, w)), Tensors{total(plain)}; },
      [](Tensor computed, Tensor plain, const Tensor& w) {
        return multiply_(computed, w), add_(plain, add(computed, w)), Tensors{reshape(plain, {2, 1})};
      },
      [](Tensor computed, Tensor plain, const Tensor& w) {  // through views, and independent of each other
        Tensor view = reshape(computed, {2, 1});
        multiply_(view, reshape(w, {2, 1}));
        add_(plain, w);
        return Tensors{exp(w)};
      },
      [](Tensor computed, Tensor plain, const Tensor& w) {  // the value before is read, too
        const Tensor before = multiply(assign(computed), w);
        multiply_(computed, w);
        return Tensors{add(before, computed), multiply(plain, w)};
      },
  };
  return all;
}

/// Values, versions and the autograd state of these tensors.
void log_state(const Tensors& all, std::vector<Values>& log) {
  for (const Tensor& each : all) {
    log.push_back(values(each.detach()));
    log.push_back({static_cast<double>(each.version()), each.requires_grad() ? 1.0 : 0.0, each.is_leaf() ? 1.0 : 0.0});
  }
}

/// The gradients of `leaves` from each tensor that has a history.
void log_gradients(const Tensors& all, const Tensors& leaves, std::vector<Values>& log) {
  for (const Tensor& each : all) {
    if (!each.requires_grad()) continue;
    for (const Tensor& gradient : grad({total(each)}, leaves, {}, {.retain_graph = true}, true))
      log.push_back(gradient.defined() ? values(gradient) : Values{});
  }
}

enum class Way { eager, captured, loaded };

/// What two calls on the same tensors return and change, then gradients of all tensors with a history. `views`: the
/// function gets views of the first two, which stay views of them.
std::vector<Values> run(const Function& function, Way way, bool views) {
  const Tensor w = leaf({2, 3}), x = leaf({1, 2}), base = reshape(multiply(x, x), {2, 1}), plain_base = vec({5, 7});
  const Tensor computed = views ? reshape(base, {2}) : multiply(x, x),
               plain = views ? reshape(reshape(plain_base, {2, 1}), {2}) : plain_base;
  const program::Function called = [&function](const Tensors& in) { return function(in[0], in[1], in[2]); };
  CapturedFunction captured(called, {});
  std::vector<Values> log;
  Tensors all = {computed, plain, base, plain_base};
  for (int call = 0; call < 2; ++call) {
    const Tensors inputs{computed, plain, w};
    Tensors out;
    if (way == Way::loaded)
      out = CapturedFunction(program::from_json(program::to_json(captured.trace(inputs)), {}))(inputs);
    else out = way == Way::eager ? called(inputs) : captured(inputs);
    all.insert(all.end(), out.begin(), out.end());
    log_state(all, log);
  }
  log_gradients(all, {w, x}, log);
  return log;
}

}  // namespace

TEST_CASE("30: arguments that a captured function writes where calls are recorded have the histories of eager calls") {
  for (size_t i = 0; i < functions().size(); ++i) {
    for (const bool views : {false, true}) {
      CAPTURE(i, views);
      const std::vector<Values> eager = run(functions()[i], Way::eager, views);
      CHECK(run(functions()[i], Way::captured, views) == eager);
      CHECK(run(functions()[i], Way::loaded, views) == eager);
    }
  }
}

namespace {

void times(Tensor x, const Tensor& y) { multiply_(x, y); }

/// Functions of tensors that share a buffer, and a leaf.
const std::vector<program::Function>& sharing_functions() {
  static const std::vector<program::Function> all = {
      [](const Tensors& in) { return times(in[0], in[2]), Tensors{total(in[1])}; },
      [](const Tensors& in) { return times(in[1], in[2]), Tensors{total(in[0])}; },
      [](const Tensors& in) {
        return times(in[0], in[2]), times(in[1], in[2]), Tensors{in[0], in[1]};
      },
      [](const Tensors& in) {
        const Tensor before = multiply(assign(in[1]), in[2]);
        times(in[0], in[2]);
        return Tensors{add(before, in[1]), exp(in[0])};
      },
  };
  return all;
}

/// The second argument is a view of the first, the first one of the second, or the second is detach() of the first.
std::vector<Values> run_sharing(const program::Function& function, int kind, bool captures) {
  const Tensor w = leaf({2, 3}), x = leaf({1, 2}), base = multiply(x, x);
  const Tensor other = kind == 2 ? base.detach() : reshape(reshape(base, {1, 2}), {2});
  CapturedFunction captured(function, {});
  std::vector<Values> log;
  Tensors all = {base, other};
  for (int call = 0; call < 3; ++call) {
    const Tensors in = kind == 1 ? Tensors{other, base, w} : Tensors{base, other, w};
    const Tensors out = captures ? captured(in) : function(in);
    all.insert(all.end(), out.begin(), out.end());
    if (call == 1) times(base, vec({0.5, 0.5}));  // between the calls
    log_state(all, log);
  }
  log_gradients(all, {w, x}, log);
  return log;
}

}  // namespace

TEST_CASE(
    "30: arguments that share a buffer, of which a captured function writes one where calls are recorded, have the "
    "histories of eager calls") {
  for (size_t i = 0; i < sharing_functions().size(); ++i) {
    for (const int kind : {0, 1, 2}) {
      CAPTURE(i, kind);
      CHECK(run_sharing(sharing_functions()[i], kind, true) == run_sharing(sharing_functions()[i], kind, false));
    }
  }
}

TEST_CASE(
    "30: a written argument that shares its buffer, and a leaf or a view of one, are refused, and nothing is written") {
  const Tensor x = leaf({1, 2}), v = vec({3, 4});
  const program::Function function = [&](const Tensors& in) -> Tensors {
    Tensor written = in[0];
    multiply_(written, in.back());
    return {};
  };
  const Tensor base = multiply(x, x), view = reshape(base, {2});
  Tensor unrecorded;
  {
    const NoGrad off;
    unrecorded = reshape(base, {2});
  }
  const auto refused = [&](const Tensors& in, const char* text) {
    CHECK_THROWS_WITH(CapturedFunction(function, {})(in), Catch::Contains(text));
    CHECK(in[0].version() == 0);
  };
  refused({view, reshape(base, {1, 2}), v}, "shares its buffer");
  refused({x, v}, "a leaf that requires a gradient");
  refused({reshape(x, {2}), v}, "a view of a leaf that requires a gradient");
  refused({unrecorded, x}, "a view by reshape that was made under NoGrad");
  const program::Function reads_base = [&](const Tensors& in) { return times(in[0], in[1]), Tensors{total(base)}; };
  CHECK_THROWS_WITH(CapturedFunction(reads_base, {})({view, v}), Catch::Contains("shares its buffer"));
  CHECK(view.version() == 0);
  Tensor outside = multiply(x, x);
  CHECK_THROWS_WITH(CapturedFunction([&](const Tensors& in) { return multiply_(outside, in[0]), Tensors{}; }, {})({v}),
                    Catch::Contains("that is not one of its inputs"));
  CHECK(outside.version() == 0);
}

TEST_CASE(
    "30: on a mesh too a written argument goes on with the captured step, and only the outputs with a gradient take "
    "part") {
  for (const int ranks : {4, 5}) {
    run_ranks(ranks, [](Rank&) {
      const auto run = [](bool captures, bool view) {
        const Tensor w = on("a, b", {4, 6}, 1).set_requires_grad(true),
                     x = on("b, -", {4, 6}, 2).set_requires_grad(true);
        const Tensor computed = multiply(x, x), target = view ? unsqueeze(computed, {0}) : computed;
        const program::Function function = [](const Tensors& in) -> Tensors {
          Tensor target = in[0];
          multiply_(target, in[1]);
          return {sum(exp(scale(target, Scalar(1e-4), Scalar(0), true)))};
        };
        CapturedFunction captured(function, {});
        const Tensor out = captures ? captured({target, w})[0] : function({target, w})[0];
        std::vector<Values> log;
        for (const Tensors& from :
             {Tensors{sum(computed)}, Tensors{sum(target)}, Tensors{out}, Tensors{sum(computed), out}}) {
          for (const Tensor& each : grad(from, {w, x}, {}, {.retain_graph = true})) log.push_back(whole(each));
        }
        return log;
      };
      for (const bool view : {false, true}) check(run(true, view) == run(false, view), "gradients");
    });
  }
}

TEST_CASE(
    "30: a program that writes an argument with a history is not run with a leaf or a view of one in its place, "
    "captured or loaded") {
  const Tensor w = leaf({2, 3}), x = leaf({1, 2});
  for (const bool through_view : {false, true}) {
    const program::Function function = [through_view](const Tensors& in) -> Tensors {
      Tensor written = through_view ? reshape(in[0], {1, 2}) : in[0];
      multiply_(written, in[1]);
      return {};
    };
    CapturedFunction captured(function, {});
    const Tensor computed = multiply(x, x), other = leaf({5, 7});
    CapturedFunction loaded(program::from_json(program::to_json(captured.trace({computed, w})), {}));
    captured({computed, w});
    CHECK_THROWS_WITH(captured({other, w}), Catch::Contains("a leaf that requires a gradient"));
    CHECK_THROWS_WITH(captured({reshape(other, {2}), w}), Catch::Contains("a view of a leaf that requires a gradient"));
    CHECK_THROWS_WITH(loaded({other, w}),
                      Catch::Contains("must not be a leaf that requires a gradient, nor a view of a resharded copy"));
    CHECK_THROWS_WITH(loaded({reshape(other, {2}), w}), Catch::Contains("a view of a leaf that requires a gradient"));
    CHECK(values(other.detach()) == Values{5, 7});
    CHECK(values(computed.detach()) == Values{2, 12});
  }
}

}  // namespace history_test
