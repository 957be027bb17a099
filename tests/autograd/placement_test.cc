// The placement of gradients: the gradient of a reshard, and the layouts of leaves that keep their gradient as it
// is. gradients/table_test.cc tests every op.
#include "gradients/placement.h"

#include <catch2/catch.hpp>

#include "gradients/distributed.h"
#include "shard/autograd/autograd.h"
#include "shard/shard.h"

namespace placement_test {

using namespace shard;
using namespace shard::test;

namespace {

using Move = Tensor (*)(const Tensor& x, const DistSpec* to);

const std::vector<std::pair<const char*, Move>>& moves() {
  static const std::vector<std::pair<const char*, Move>> all = {
      {"reshard", [](const Tensor& x, const DistSpec* to) { return reshard(x, to); }},
      {"reshard_async", [](const Tensor& x, const DistSpec* to) { return reshard_async(x, to); }},
      {"reshard of a list",
       [](const Tensor& x, const DistSpec* to) {
         return reshard(std::vector{x, x}, {to, spec_of(x)})[0];
       }},
  };
  return all;
}

}  // namespace

TEST_CASE("placement: the gradient of a reshard is placed as its argument, whatever the layouts") {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Rank&) {
      const ProcessMesh* mesh = ProcessMesh::make({ranks}, {}, {"a"});
      const Dims dims{5, 4};
      const Tensor values = iota<double>(dims), weights = iota<double>(dims, 7);
      const std::vector<const DistSpec*> layouts =
          one_axis_layouts(mesh, dims, {ReduceType::sum, ReduceType::max, ReduceType::avg});
      for (const auto& [name, move] : moves()) {
        for (const DistSpec* from : layouts) {
          for (const DistSpec* to : layouts) {
            for (const DistSpec* given : layouts) {
              const std::string what = fmt::format("{} from {} to {} with a gradient in {} on {} ranks", name,
                                                   from->text(), to->text(), given->text(), ranks);
              const Tensor leaf = distribute(values, from).set_requires_grad(true), middle = assign(leaf);
              set_grad_layout(leaf, GradLayout::as_is);
              const DistSpec* seen = nullptr;
              add_hook(middle, [&](const Tensor& gradient) { return seen = spec_of(gradient), Tensor(); });
              const Tensor moved = move(middle, to);
              check(spec_of(moved) == to, what + ": the value is in " + spec_of(moved)->text());
              moved.backward(distribute(weights, given));
              // A tensor that is not resharded has no step.
              if (to != from) check(placement_problem(from, seen).empty(), what + ": " + placement_problem(from, seen));
              check(placement_problem(from, spec_of(leaf.grad())).empty(),
                    what + ": " + placement_problem(from, spec_of(leaf.grad())));
              check(full_equals(leaf.grad(), weights.to_vector<double>()), what + ": another value");
            }
          }
        }
      }
    });
  }
}

TEST_CASE("placement: what a leaf may keep as it is, axis by axis") {
  run_ranks(4, [](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
    const Tensor values = iota<double>({6, 4});
    // Layouts of the leaf, of a gradient, and that in which the leaf keeps it.
    const std::vector<std::array<const char*, 3>> cases = {
        {"-, -", "-, -", "-, -"},
        {"-, -", "-, - | sum(a)", "-, - | sum(a)"},
        {"-, -", "-, - | sum(a), sum(b)", "-, - | sum(a), sum(b)"},
        {"-, -", "a, -", "-, -"},
        {"-, -", "a, - | sum(b)", "-, - | sum(b)"},
        {"-, -", "-, - | max(a)", "-, -"},
        {"a, b", "a, b", "a, b"},
        {"a, b", "-, b | sum(a)", "-, b | sum(a)"},
        {"a, b", "b, a", "a, b"},
        {"a, b", "b, - | sum(a)", "-, b | sum(a)"},
        {"a+b, -", "a, - | sum(b)", "a, - | sum(b)"},
        {"a+b, -", "b, - | sum(a)", "b, - | sum(a)"},
        {"a+b, -", "b+a, -", "a+b, -"},
        {"-, - | sum(a)", "-, -", "-, -"},
        {"-, - | sum(a)", "-, - | sum(a)", "-, -"},
        {"b, - | sum(a)", "-, - | sum(a), sum(b)", "-, - | sum(b)"},
    };
    for (const auto& [forward, gradient, kept] : cases) {
      const std::string what = std::string(forward) + " with a gradient in " + gradient;
      const Tensor leaf = distribute(values, DistSpec::parse(mesh, forward)).set_requires_grad(true);
      set_grad_layout(leaf, GradLayout::as_is);
      leaf.backward(distribute(values, DistSpec::parse(mesh, gradient)));
      check(spec_of(leaf.grad()) == DistSpec::parse(mesh, kept), what + " keeps " + spec_of(leaf.grad())->text());
      check(placement_problem(spec_of(leaf), spec_of(leaf.grad())).empty(),
            what + ": " + placement_problem(spec_of(leaf), spec_of(leaf.grad())));
      check(full_equals(leaf.grad(), values.to_vector<double>()), what + ": another value");
    }
  });
}

}  // namespace placement_test
