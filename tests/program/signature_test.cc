// The signature of a captured function: which changes of a call make it trace the function again,
// and which do not (statement 33).
#include <catch2/catch.hpp>

#include "shard/autograd/grad_mode.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/policies.h"
#include "support/tensors.h"

namespace signature_test {

using namespace shard;
using namespace shard::test;

namespace {

using Inputs = std::function<Tensors()>;

/// Two inputs of this shape, each on a buffer of its own.
Inputs pair_of(const Dims& dims, DType dtype = DType::float64, bool first_grad = false, bool second_grad = false) {
  return [=] {
    Tensors both = {full(dims, 1.0, dtype), full(dims, 2.0, dtype)};
    both[0].set_requires_grad(first_grad);
    both[1].set_requires_grad(second_grad);
    return both;
  };
}

Inputs pair_on(const char* layout, const Dims& dims = {4, 4}) {
  return [=] { return Tensors{on(layout, dims), on(layout, dims, 1)}; };
}

/// A captured function that adds its inputs, and counts how often it is traced.
class Counted {
 public:
  Counted()
      : captured_(
            [this](const Tensors& in) -> Tensors {
              ++traced_;
              return {add(in[0], in[1])};
            },
            {}) {}
  /// The number of times that a call with these inputs traces the function.
  int traces(const Tensors& in) {
    const int before = traced_;
    captured_(in);
    return traced_ - before;
  }

 private:
  int traced_ = 0;
  CapturedFunction captured_;
};

struct Case {
  std::string name;
  Inputs first, then;
  bool again;
};

/// The first inputs are traced, and the second ones as the case expects. After that both are in the
/// cache.
void check_signature(const Case& c) {
  Counted function;
  check(function.traces(c.first()) == 1, c.name + ": the first call is traced");
  check(function.traces(c.first()) == 0, c.name + ": other tensors of the same signature are not");
  check(function.traces(c.then()) == (c.again ? 1 : 0), c.name + (c.again ? ": is traced again" : ": is not"));
  check(function.traces(c.first()) == 0 && function.traces(c.then()) == 0, c.name + ": both are known");
}

/// Rows [begin, begin + 2) of x as a view on its buffer.
Tensor rows(const Tensor& x, int64_t begin) {
  const Meta meta{{2, x.dims()[1]}, x.dtype()};
  const auto offset = static_cast<size_t>(begin * x.dims()[1]) * size_of(x.dtype());
  return Tensor(DenseTensor(x.get().value.storage(), meta, offset));
}

}  // namespace

TEST_CASE("33: a function is traced again where dtype, shape, rank or requires_grad of an input change") {
  const Inputs plain = pair_of({4});
  for (const Case& c : std::vector<Case>{
           {"another dtype", plain, pair_of({4}, DType::float32), true},
           {"another size", plain, pair_of({5}), true},
           {"another number of dims", plain, pair_of({2, 2}), true},
           {"one more dim of size 1", plain, pair_of({4, 1}), true},
           {"no dims", pair_of({1}), pair_of({}), true},
           {"the first input requires a gradient", plain, pair_of({4}, DType::float64, true), true},
           {"the second input requires a gradient", plain, pair_of({4}, DType::float64, false, true), true},
           {"the other input requires a gradient", pair_of({4}, DType::float64, true),
            pair_of({4}, DType::float64, false, true), true},
           {"a result instead of a leaf", pair_of({4}, DType::float64, true),
            [] {
              const Tensors leaves = pair_of({4}, DType::float64, true)();
              return Tensors{scale(leaves[0], 2.0), leaves[1]};
            },
            true},
           {"other values", plain,
            [] {
              return Tensors{vec({9, 8, 7, 6}), vec({-1, 0, 1, 2})};
            },
            false},
           {"an input that was written before", plain,
            [] {
              Tensors both = pair_of({4})();
              scale_(both[0], 3.0);
              return both;
            },
            false},
           {"a leaf that has a gradient", pair_of({4}, DType::float64, true),
            [] {
              Tensors both = pair_of({4}, DType::float64, true)();
              total(both[0]).backward();
              return both;
            },
            false},
       })
    check_signature(c);
}

TEST_CASE("33: a function is traced again where its arguments share bytes in another way") {
  const Inputs apart = pair_of({2, 3});
  const auto two_rows = [](int64_t first, int64_t second) -> Inputs {
    return [=] {
      const Tensor base = iota<double>({8, 3});
      return Tensors{rows(base, first), rows(base, second)};
    };
  };
  const Inputs twice = [] {
    const Tensor x = full({2, 3}, 1.0, DType::float64);
    return Tensors{x, x};
  };
  const Inputs view = [] {
    const Tensor x = full({2, 3}, 1.0, DType::float64);
    return Tensors{x, reshape(x, {2, 3})};
  };
  for (const Case& c : std::vector<Case>{
           {"one tensor twice", apart, twice, true},
           {"a tensor and a view of it", apart, view, true},
           {"one tensor twice, and a tensor and a view of it", twice, view, true},
           {"views of one buffer", apart, two_rows(0, 2), true},
           {"views that overlap", two_rows(0, 2), two_rows(0, 1), true},
           {"views in the other order", two_rows(0, 2), two_rows(2, 0), true},
           {"views of one buffer that lie elsewhere in it, as far apart", two_rows(0, 2), two_rows(3, 5), false},
           {"a view of a buffer that no other argument has", apart,
            [] {
              return Tensors{rows(iota<double>({8, 3}), 4), full({2, 3}, 1.0, DType::float64)};
            },
            false},
       })
    check_signature(c);
}

TEST_CASE("33: a function is traced again where an input shares bytes with a parameter") {
  const Tensor parameter = full({4}, 1.0, DType::float64);
  int traced = 0;
  CapturedFunction captured(
      [&](const Tensors& in) -> Tensors {
        ++traced;
        return {add(in[0], parameter)};
      },
      {});
  for (int run = 0; run < 2; ++run) captured({vec({1, 2, 3, 4})});
  CHECK(traced == 1);
  for (int run = 0; run < 2; ++run) captured({parameter});
  CHECK(traced == 2);
  for (int run = 0; run < 2; ++run) captured({reshape(parameter, {4})});
  CHECK(traced == 3);
  captured({vec({1, 2, 3, 4})});
  CHECK(traced == 3);
}

TEST_CASE("33: a function is traced again where gradients are recorded and where they are not") {
  Counted function;
  const auto in = pair_of({4}, DType::float64, true)();
  CHECK(function.traces(in) == 1);
  {
    const NoGrad none;
    CHECK(function.traces(in) == 1);
    CHECK(function.traces(in) == 0);
  }
  CHECK(function.traces(in) == 0);
}

TEST_CASE("33: a function is traced again where the layout of an input changes") {
  run_ranks(4, [](Rank&) {
    for (const Case& c : std::vector<Case>{
             {"another dim is sharded", pair_on("a, -"), pair_on("-, a"), true},
             {"another axis shards", pair_on("a, -"), pair_on("b, -"), true},
             {"sharded once more", pair_on("a, -"), pair_on("a, b"), true},
             {"replicated", pair_on("a, -"), pair_on("-, -"), true},
             {"a pending sum", pair_on("-, -"), pair_on("-, - | sum(a)"), true},
             {"another pending reduction", pair_on("-, - | sum(a)"), pair_on("-, - | max(a)"), true},
             {"axes of a dim in the other order", pair_on("a+b, -"), pair_on("b+a, -"), true},
             {"plain", pair_on("-, -"), pair_of({4, 4}), true},
             {"another global shape, whose shards are equal", pair_on("a, -"), pair_on("-, -", {2, 4}), true},
             {"the same layout, made again", pair_on("a, b"), pair_on("a, b"), false},
         })
      check_signature(c);
  });
}

TEST_CASE("33: a function is traced again under each other policy, and found again under the one before") {
  run_ranks(4, [](Rank& rank) {
    for (const Changed& changed : each_policy_changed()) {
      Counted function;
      const Tensors in = pair_on("a, -")();
      check(function.traces(in) == 1, changed.name);
      {
        const PolicyScope scope(rank, changed.policies);
        check(function.traces(in) == 1 && function.traces(in) == 0, changed.name);
      }
      check(function.traces(in) == 0, changed.name);
    }
  });
}

TEST_CASE("29: a captured function may not change AlgorithmPolicy, under which the kernels of its program run") {
  run_ranks(1, [](Rank& rank) {
    const auto policies = [](AlgorithmPolicy algorithms) { return Policies{.algorithms = algorithms}; };
    for (const auto& [outside, inside] : {std::pair(AlgorithmPolicy::deterministic, AlgorithmPolicy::fastest),
                                          std::pair(AlgorithmPolicy::fastest, AlgorithmPolicy::deterministic)}) {
      const PolicyScope call(rank, policies(outside));
      const Tensors in = {vec({1, 2})};
      const auto error_under = [&](const Policies& changed) -> std::string {
        CapturedFunction function(
            [&](const Tensors& inputs) -> Tensors {
              const PolicyScope scope(rank, changed);
              return {exp(inputs[0])};
            },
            {});
        try {
          function(in);
        } catch (const Error& error) {
          check(error.code() == ErrorCode::capture, "the code of the error");
          return error.what();
        }
        return "";
      };
      check(
          error_under(policies(inside)).find("[exp] cannot be captured: the function has changed AlgorithmPolicy") == 0,
          "the change is refused");
      check(error_under({.comm = CommPolicy::forbid, .algorithms = outside}).empty(), "other policies may change");
    }
  });
}

}  // namespace signature_test
