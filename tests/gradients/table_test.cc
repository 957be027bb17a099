// Every differentiable op of ops_yaml through the engine, in float64: against central differences, in place against
// out of place, and in every one-axis layout of its arguments against one rank. The calls are in the table of op
// cases (runtime/shard/testing/op_cases_*.cc).
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "gradients/central_difference.h"
#include "gradients/distributed.h"
#include "gradients/placement.h"
#include "gradients/table.h"
#include "gradients/table_facts.h"
#include "shard/autograd/autograd.h"
#include "shard/shard.h"
#include "shard/testing/shards.h"
#include "shard/testing/tensors.h"
#include "support/cuda_device.h"
#include "support/random_runs.h"
#include "support/sanitized.h"

namespace shard::test::table_test {
namespace {

using testing::CaseCall;
using testing::pick;
using testing::Random;
using testing::Tensors;

/// All outputs concatenated, because central differences need a single output.
Tensor run_flat(const TableCase& one, const CaseCall& call, const Tensors& leaves) {
  Tensors flat;
  for (const Tensor& output : run(one, call, leaves)) flat.push_back(reshape(output, {output.numel()}));
  return flat.size() == 1 ? flat[0] : concat(flat, 0);
}

/// Casts are not smooth: differences would see their steps.
bool is_smooth(const TableCase& one, const CaseCall& call, const Tensors& inputs) {
  const Tensors outputs = run(one, call, inputs);
  return !outputs.empty() && std::all_of(outputs.begin(), outputs.end(),
                                         [](const Tensor& output) { return output.dtype() == DType::float64; });
}

const std::vector<int64_t> kPlainSizes = {3, 4};

TEST_CASE("every differentiable op of ops_yaml has a case that is called with floats, its in-place form too") {
  std::set<std::string> found;
  for (const TableCase& one : table()) found.insert(one.one->op);
  std::string missing;
  for (const std::string& op : differentiable().functions) {
    if (!found.contains(op)) missing += " " + op;
  }
  INFO("add cases to runtime/shard/testing/op_cases_*.cc for:" << missing);
  CHECK(missing.empty());
  CHECK(found.size() > 100);
}

TEST_CASE("the gradients of every op by the engine are those of central differences", "[slow_in_asan]") {
  for (const TableCase& one : table()) {
    INFO(one.text());
    const CaseCall call = one.call(kPlainSizes);
    Random random(one.seed());
    const Tensors inputs = tensors_of(draw_values(one, call, random));
    for (const Tensor& output : run(one, call, leaves_of(one, inputs))) CHECK(output.requires_grad());
    if (!is_smooth(one, call, inputs) || listed(kScaledGradients, one, 0)) continue;
    const auto gradient = [&](const Tensors& at, const Tensor& out_grad) {
      const Tensors leaves = leaves_of(one, at);
      return zeros_for_none(gradients({run_flat(one, call, leaves)}, leaves, {out_grad}), leaves);
    };
    CHECK(gradient_difference([&](const Tensors& at) { return run_flat(one, call, at); }, gradient, inputs) == "");
  }
}

TEST_CASE("every gradient can be differentiated again, to any order") {
  std::string missing;
  for (const std::string& op : differentiable().without_gradient) missing += " " + op;
  INFO(
      "give these backward ops a 'backward', or a 'composite' with 'record_composite', or list them in "
      "docs/autograd.md and here:"
      << missing);
  CHECK(missing.empty());
}

TEST_CASE("the gradients of gradients by the engine are those of central differences, for every op", "[slow_in_asan]") {
  int tried = 0;
  for (const TableCase& one : table()) {
    INFO(one.text());
    const CaseCall call = one.call(kPlainSizes);
    Random random(one.seed());
    Tensors inputs = tensors_of(draw_values(one, call, random));
    if (!is_smooth(one, call, inputs)) continue;
    inputs.push_back(random_values(run_flat(one, call, inputs).dims(), 9));
    // The gradients of the inputs, in one, as a function of inputs and gradient of the output.
    const auto first = [&](const Tensors& leaves, bool create_graph) {
      const Tensors arguments(leaves.begin(), leaves.end() - 1);
      Tensors flat;
      for (const Tensor& gradient :
           gradients({run_flat(one, call, arguments)}, arguments, {leaves.back()}, {.create_graph = create_graph})) {
        if (gradient.defined()) flat.push_back(reshape(gradient, {gradient.numel()}));
      }
      return flat.size() == 1 ? flat[0] : concat(flat, 0);
    };
    const auto leaves_at = [&](const Tensors& at) {
      Tensors leaves = leaves_of(one, Tensors(at.begin(), at.end() - 1));
      leaves.push_back(at.back().detach().set_requires_grad(true));
      return leaves;
    };
    const auto second = [&](const Tensors& at, const Tensor& weight) {
      const Tensors leaves = leaves_at(at);
      return zeros_for_none(gradients({first(leaves, true)}, leaves, {weight}), leaves);
    };
    CHECK(gradient_difference([&](const Tensors& at) { return first(leaves_at(at), false).detach(); }, second,
                              inputs) == "");
    ++tried;
  }
  CHECK(tried > 100);
}

TEST_CASE("the gradients of an in-place form are those of the op, bit for bit") {
  for (const TableCase& one : table()) {
    if (!one.in_place) continue;
    INFO(one.text());
    const auto same = std::find_if(table().begin(), table().end(), [&](const TableCase& other) {
      return other.one->op == one.op && other.one->name == one.one->name;
    });
    REQUIRE(same != table().end());  // the op needs a case of the same name
    const CaseCall in_place = one.call(kPlainSizes), fresh = same->call(kPlainSizes);
    Random random(one.seed());
    const Tensors inputs = tensors_of(draw_values(one, in_place, random)), leaves = leaves_of(one, inputs),
                  others = leaves_of(one, inputs);
    const Tensors written = run(one, in_place, leaves), outputs = run(*same, fresh, others);
    REQUIRE(written.size() == outputs.size());
    const Tensors out_grads = tensors_of(draw_out_grads(outputs, random));
    const Tensors actual = gradients(written, leaves, out_grads), expected = gradients(outputs, others, out_grads);
    for (size_t i = 0; i < leaves.size(); ++i) {
      REQUIRE(actual[i].defined() == expected[i].defined());
      if (actual[i].defined()) CHECK(actual[i].to_vector<double>() == expected[i].to_vector<double>());
    }
  }
}

/// A call with values, and its result on one rank.
struct Trial {
  CaseCall call;
  std::vector<DenseTensor> values, outputs, out_grads;
  std::vector<DenseTensor> expected;  // gradients per input; undefined where there is none
};

Trial trial_of(const TableCase& one, const std::vector<int64_t>& sizes, Random& random) {
  Trial trial{one.call(sizes), {}, {}, {}, {}};
  trial.values = draw_values(one, trial.call, random);
  const Tensors leaves = leaves_of(one, tensors_of(trial.values)), outputs = run(one, trial.call, leaves);
  for (const Tensor& output : outputs) trial.outputs.push_back(output.detach().get().value);
  trial.out_grads = draw_out_grads(outputs, random);
  for (const Tensor& gradient : gradients(outputs, leaves, tensors_of(trial.out_grads))) {
    trial.expected.push_back(gradient.defined() ? gradient.get().value : DenseTensor());
  }
  return trial;
}

/// A value in a layout: the local shard of each rank.
struct Placed {
  const DistSpec* spec;
  Meta meta;
  std::vector<DenseTensor> shards;

  Tensor on(const Rank& rank, Device device = kCpu) const {
    const DenseTensor& shard = shards[static_cast<size_t>(rank.id())];
    return from_local(Tensor(device == kCpu ? clone(shard) : testing::copy_to(device, shard)), spec, meta.dims,
                      meta.dtype);
  }
};
using Choice = std::vector<const Placed*>;  // of the inputs, then of the gradients of the outputs

/// All inputs and gradients of outputs in all one-axis layouts. Contributions to a pending sum are of both signs
/// and at all ranks.
std::vector<std::vector<Placed>> place_all(const Trial& trial, const ProcessMesh* mesh, Random& random) {
  std::vector<std::vector<Placed>> all;
  for (const auto* values : {&trial.values, &trial.out_grads}) {
    for (const DenseTensor& value : *values) {
      all.emplace_back();
      const bool floating = is_floating(value.dtype());
      const auto types = floating ? std::vector{ReduceType::sum, ReduceType::max} : std::vector<ReduceType>();
      for (const DistSpec* spec : one_axis_layouts(mesh, value.dims(), types)) {
        all.back().push_back({spec, value.meta(), testing::split_value(value, spec->layout(), random, true)});
      }
    }
  }
  return all;
}

/// Every choice of layouts of the inputs, or `most` drawn ones where there are more. Those of the gradients of the
/// outputs are drawn.
std::vector<Choice> choices_of(const std::vector<std::vector<Placed>>& placed, size_t inputs, size_t most,
                               Random& random) {
  size_t count = 1;
  for (size_t i = 0; i < inputs; ++i) count *= placed[i].size();
  std::vector<Choice> choices;
  for (size_t c = 0; c < std::min(count, most); ++c) {
    Choice choice;
    size_t rest = c;
    for (size_t i = 0; i < placed.size(); ++i) {
      const bool drawn = i >= inputs || count > most;
      choice.push_back(
          &placed[i][drawn ? static_cast<size_t>(pick(random, 0, static_cast<int64_t>(placed[i].size()) - 1))
                           : rest % placed[i].size()]);
      rest /= placed[i].size();
    }
    choices.push_back(choice);
  }
  return choices;
}

std::string text_of(const Choice& choice, size_t inputs) {
  std::string text;
  for (size_t i = 0; i < choice.size(); ++i)
    text += (i == 0        ? ""
             : i == inputs ? " with gradients "
                           : " ; ") +
            to_string(choice[i]->meta) + " " + choice[i]->spec->text();
  return text;
}

/// Gradients are sums of at most some 50 products, of a magnitude of at most 10. In another order they differ by 50
/// roundings of the sum, and so do values that the gradients are computed from: 100 units of the last place, and
/// twice that for the one rank.
constexpr double kUlps = 200;

DenseTensor on_host(const Tensor& whole) { return whole.to(kCpu).get().value; }

/// What is wrong with the gradients of one call on the ranks of a mesh, and on a device with its outputs; collective.
std::string problem_on(Device device, const TableCase& one, const Trial& trial, const Choice& choice,
                       const Rank& rank) {
  Tensors inputs, out_grads;
  for (const Placed* placed : choice)
    (inputs.size() < trial.values.size() ? inputs : out_grads).push_back(placed->on(rank, device));
  const Tensors leaves = leaves_of(one, inputs), outputs = run(one, trial.call, leaves);
  if (outputs.size() != out_grads.size()) return "another number of outputs";
  for (size_t i = 0; device != kCpu && i < outputs.size(); ++i) {
    const std::string problem =
        testing::value_difference(on_host(full_tensor(outputs[i].detach())), trial.outputs[i], kUlps);
    if (!problem.empty()) return fmt::format("output {}: {}", i, problem);
  }
  for (const Tensor& leaf : leaves) set_grad_layout(leaf, GradLayout::as_is);
  const Tensors moved = gradients(outputs, leaves, out_grads, {.retain_graph = true});
  backward(outputs, out_grads);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].requires_grad()) continue;
    const Tensor kept = leaves[i].grad();
    for (const Tensor* gradient : {&moved[i], &kept}) {
      if (gradient->defined() != trial.expected[i].defined())
        return fmt::format("gradient {} is {}", i, gradient->defined() ? "there" : "absent");
      if (!gradient->defined()) continue;
      const DistSpec* spec = spec_of(*gradient);
      std::string problem = placement_problem(spec_of(leaves[i]), spec);
      if (gradient == &moved[i] && spec->layout().has_partial()) problem = "it was not reduced";
      if (problem.empty())
        problem = testing::value_difference(on_host(full_tensor(*gradient)), trial.expected[i], kUlps);
      if (!problem.empty()) return fmt::format("gradient {} in {}: {}", i, spec->text(), problem);
    }
  }
  return "";
}

std::string problem_of(const TableCase& one, const Trial& trial, const Choice& choice, const Rank& rank) {
  return problem_on(kCpu, one, trial, choice, rank);
}

/// Two orders of exponentials and quotients of numbers up to 10: some thousand roundings of the largest element.
constexpr double kSecondTolerance = 1e-11;

/// What is wrong with the gradients of gradients of one call on the ranks of a mesh; collective.
std::string second_problem_of(const TableCase& one, const Trial& trial, const Choice& choice, const Tensors& expected,
                              const Rank& rank) {
  Tensors inputs, out_grads;
  for (const Placed* placed : choice)
    (inputs.size() < trial.values.size() ? inputs : out_grads).push_back(placed->on(rank));
  const ProcessMesh* mesh = choice[0]->spec->mesh();
  const auto replicate = [&](const Tensor& x) { return distribute(x, DistSpec::replicated(mesh, x.dims().rank())); };
  const Tensors actual = second_gradients(one, trial.call, leaves_of(one, inputs), out_grads, replicate);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i].defined() != expected[i].defined())
      return fmt::format("gradient {} is {}", i, actual[i].defined() ? "there" : "absent");
    if (!actual[i].defined()) continue;
    const Tensor whole = cast(full_tensor(actual[i]), DType::float64), right = cast(expected[i], DType::float64);
    if (whole.dims() != right.dims()) return fmt::format("gradient {} is {}", i, to_string(whole.meta()));
    const std::vector<double> got = whole.to_vector<double>(), want = right.to_vector<double>();
    double largest = 1;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    const double tolerance = expected[i].dtype() == DType::float64 ? kSecondTolerance : 1e-5;
    for (size_t e = 0; e < want.size(); ++e) {
      if (!(std::abs(got[e] - want[e]) <= tolerance * largest))
        return fmt::format("gradient {} at {} is {}, not {}", i, e, got[e], want[e]);
    }
  }
  return "";
}

/// Calls that a test makes in several layouts: what is wrong with one of them, on a rank.
using Problem =
    std::function<std::string(const TableCase& one, const Trial& trial, const Choice& choice, const Rank& rank)>;

/// Choices of layouts of an op's arguments where SHARD_TABLE_CHOICES does not say how many.
constexpr uint64_t kChoices = 24;

/// Makes every op's calls on 2 and 3 ranks in at most `most` choices of one-axis layouts, and reports what
/// `problem_in(trial)` finds.
void check_layouts(const std::vector<std::vector<int64_t>>& all_sizes, size_t most,
                   const std::function<Problem(const TableCase&, const Trial&)>& problem_in) {
  std::set<std::string> problems;
  std::mutex lock;
  size_t tried = 0;
  for (const int ranks : {2, 3}) {
    const auto world = World::local(ranks, {.timeout = std::chrono::seconds(20)});
    const ProcessMesh* mesh = ProcessMesh::make({ranks}, {}, {"a"});
    for (const TableCase& one : table()) {
      for (const std::vector<int64_t>& sizes : all_sizes) {
        Random random(one.seed());
        const Trial trial = trial_of(one, sizes, random);
        const auto placed = place_all(trial, mesh, random);
        const std::vector<Choice> choices = choices_of(placed, trial.values.size(), most, random);
        tried += choices.size();
        const Problem problem_of_call = problem_in(one, trial);
        world->run([&](Rank& rank) {
          for (const Choice& choice : choices) {
            std::string problem;
            try {
              problem = problem_of_call(one, trial, choice, rank);
            } catch (const Error& error) {
              if (error.code() == ErrorCode::peer_failed || error.code() == ErrorCode::timeout) throw;
              problem = error.what();
            }
            if (problem.empty()) continue;
            const std::scoped_lock guard(lock);
            problems.insert(fmt::format("{} on {} ranks of {}: {}", one.text(), ranks,
                                        text_of(choice, trial.values.size()), problem));
          }
        });
      }
    }
  }
  std::string report;
  size_t told = 0;
  for (const std::string& problem : problems) report += told++ < 20 ? problem + "\n" : "";
  INFO(problems.size() << " problems\n" << report);
  CHECK(problems.empty());
  CHECK(tried > 80 * all_sizes.size() * most);
}

TEST_CASE(
    "the gradients of every op are those of one rank in every one-axis layout of its arguments, and in checked "
    "layouts") {
  std::vector<std::vector<int64_t>> sizes = {{1, 2}};                  // shards without elements
  if (!kSanitized) sizes.insert(sizes.end(), {{3, 4, 5}, {0, 1, 7}});  // uneven shards; no elements at all
  check_layouts(sizes, from_environment("SHARD_TABLE_CHOICES", kChoices),
                [](const auto&, const auto&) { return problem_of; });
}

TEST_CASE("every op and its gradients on a device give in one-axis layouts what they give on one rank of the host",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  // The model of CUDA takes time.
  const bool is_short = from_environment("SHARD_TABLE_CHOICES", kChoices) <= 1;
  const std::vector<std::vector<int64_t>> sizes =
      is_short ? std::vector<std::vector<int64_t>>{{1, 2}} : std::vector<std::vector<int64_t>>{{3, 4, 5}, {1, 2}};
  check_layouts(sizes, 1, [&](const auto&, const auto&) -> Problem {
    return [=](const TableCase& one, const Trial& trial, const Choice& choice, const Rank& rank) -> std::string {
      return problem_on(*device, one, trial, choice, rank);
    };
  });
}

TEST_CASE("the gradients of gradients of every op are those of one rank in one-axis layouts of its arguments",
          "[slow_in_asan]") {
  check_layouts(
      {{3, 4}, {1, 2}, {0, 1, 7}}, std::max<uint64_t>(1, from_environment("SHARD_TABLE_CHOICES", kChoices) / 6),
      [](const TableCase& first, const Trial& one_rank) {
        const auto itself = [](const Tensor& x) { return x; };
        const Tensors expected = second_gradients(first, one_rank.call, leaves_of(first, tensors_of(one_rank.values)),
                                                  tensors_of(one_rank.out_grads), itself);
        return [=](const TableCase& one, const Trial& trial, const Choice& choice, const Rank& rank) {
          return second_problem_of(one, trial, choice, expected, rank);
        };
      });
}

}  // namespace
}  // namespace shard::test::table_test
