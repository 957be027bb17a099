// Random programs (random_program.h) on random meshes and layouts: their gradients are those of one rank, those
// of one rank equal central differences, and on a CUDA device they are those of the CPU. SHARD_PROPERTY_CASES and SHARD_PROPERTY_SEED select other runs.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <mutex>

#include "autograd/random_program.h"
#include "gradients/central_difference.h"
#include "shard/autograd/autograd.h"
#include "shard/shard.h"
#include "support/cuda_device.h"
#include "support/random_runs.h"

namespace random_graph_test {

using namespace shard;
using namespace shard::testing;
using namespace shard::test;

namespace {

constexpr int kMostRanks = 4;

/// The results of a run of a program. Its tensors are whole and on the CPU, by their numbers; a rank outside the mesh has none.
struct Run {
  std::vector<std::string> errors;  // "step 3: autograd"
  std::string backward_error;
  std::vector<int> outputs;  // that require gradients
  std::map<int, DenseTensor> values, gradients, stepwise;
  std::string misplaced;  // a leaf's gradient in another layout than the leaf's, or a tensor on another device
};

/// Where a program runs, on the default device: plain, or distributed by layouts that are derived from a seed alone, so that
/// dropping steps does not change those of others.
struct Place {
  uint64_t seed = 0;
  const ProcessMesh* mesh = nullptr;  // null for plain
  const Rank* rank = nullptr;

  const DistSpec* layout(uint64_t what, int dims) const {
    Random random(seed * 1000003 + what);
    return random_spec(random, mesh, dims, {ReduceType::sum});
  }
  /// `value` in the layout with number `what`; its contributions to pending sums have both signs.
  Tensor put(const Tensor& value, uint64_t what) const {
    if (mesh == nullptr) return assign(value.to(default_device()));
    const DistSpec* spec = layout(what, value.dims().rank());
    Random random(seed * 1000003 + what);
    const std::vector<DenseTensor> shards = split_value(value.get().value, spec->layout(), random, true);
    const auto at = std::find(mesh->processes().begin(), mesh->processes().end(), rank->id());
    const bool here = at != mesh->processes().end();
    const Tensor local = here ? Tensor(shards[static_cast<size_t>(at - mesh->processes().begin())]) : Tensor();
    return from_local(here ? local.to(default_device()) : local, spec, value.dims(), value.dtype());
  }
  Tensor move(const Tensor& x, uint64_t what) const {
    if (mesh == nullptr) return assign(x);
    const DistSpec* spec = layout(what, x.dims().rank());
    return spec == spec_of(x) ? assign(x) : reshard(x, spec);
  }
  /// A copy on the CPU; collective where distributed.
  DenseTensor whole(const Tensor& x) const {
    const Tensor value = mesh == nullptr ? assign(x) : full_tensor(x);
    return value.defined() ? value.to(kCpu).get().value : DenseTensor();
  }
};

/// The gradient of output `number`, on the CPU: multiples of 2^-12.
Tensor out_grad_of(int number, const Dims& dims) {
  const DefaultDevice cpu(kCpu);
  Random random(static_cast<uint64_t>(number) + 17);
  std::vector<double> values(static_cast<size_t>(dims.numel()));
  for (double& value : values) value = static_cast<double>(pick(random, -6000, 6000)) / 4096;
  return Tensor::from_data(values, dims);
}

Run run(const RandomProgram& program, const Tensors& leaves, const Place& place) {
  Run result;
  ProgramValues values;
  for (size_t i = 0; i < leaves.size(); ++i)
    values[static_cast<int>(i)] = place.put(leaves[i], i).set_requires_grad(true);
  const ProgramValues starts = values;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const std::string error =
        run_step(program.steps[i], values, [&](const Tensor& x, uint64_t seed) { return place.move(x, 1000 + seed); });
    if (!error.empty()) result.errors.push_back(fmt::format("step {}: {}", i, error));
  }
  const NoGrad off;
  Tensors outputs, out_grads, inputs;
  std::vector<int> numbers;
  for (const int output : program.outputs) {
    const auto found = values.find(output);
    if (found == values.end() || !found->second.requires_grad()) continue;
    result.outputs.push_back(output);
    outputs.push_back(found->second);
    out_grads.push_back(place.put(out_grad_of(output, found->second.dims()), 100 + static_cast<uint64_t>(output)));
  }
  for (const auto& [number, value] : values) {
    const Storage& held = *value.get().value.storage();
    if (held.state() == Storage::State::held && held.device() != default_device())
      result.misplaced = fmt::format("v{} is on {}", number, to_string(value.device()));
    if (!value.requires_grad()) continue;
    numbers.push_back(number);
    inputs.push_back(value);
  }
  try {
    if (!outputs.empty()) {
      // Of all tensors at once, then as accumulated in the leaves.
      const Tensors all = grad(outputs, inputs, out_grads, {.retain_graph = true}, true);
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].defined()) result.stepwise[numbers[i]] = place.whole(all[i]);
      }
      backward(outputs, out_grads);
    }
    for (const auto& [number, leaf] : starts) {
      if (!leaf.grad().defined()) continue;
      result.gradients[number] = place.whole(leaf.grad());
      if (place.mesh == nullptr) continue;
      Layout wanted = spec_of(leaf)->layout();
      wanted.partial = {};
      if (spec_of(leaf.grad()) != DistSpec::make(wanted))
        result.misplaced = fmt::format("the gradient of leaf {} {} is in {}", number, spec_of(leaf)->text(),
                                       spec_of(leaf.grad())->text());
    }
  } catch (const Error& error) {
    // What was saved has been written since, or is a view of something that has.
    if (error.code() != ErrorCode::autograd && error.code() != ErrorCode::stale_view) throw;
    result.backward_error = error.what();
  }
  for (const auto& [number, value] : values) {
    try {
      result.values[number] = place.whole(value);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::stale_view) throw;
    }
  }
  return result;
}

/// The tolerance of results, in units of the largest of all of them, or of 1: programs have some ten steps, whose
/// values and derivatives are below 100, so that rounding at one step is amplified by a few of the others.
constexpr double kTolerance = 1e-9;

double largest_of(const std::map<int, DenseTensor>& all) {
  double most = 1;
  for (const auto& [number, tensor] : all) {
    for (int64_t i = 0; i < tensor.numel(); ++i) most = std::max(most, std::abs(tensor.data<double>()[i]));
  }
  return most;
}

std::string difference_of(const char* what, const std::map<int, DenseTensor>& actual,
                          const std::map<int, DenseTensor>& expected) {
  const double tolerance = kTolerance * largest_of(expected);
  for (const auto& [number, a] : actual) {
    const auto found = expected.find(number);
    if (found == expected.end()) return fmt::format("{} v{} is not there on one rank", what, number);
    if (!a.defined()) continue;  // outside of the mesh
    const DenseTensor& e = found->second;
    if (!(a.meta() == e.meta()))
      return fmt::format("{} v{} is {}, expected {}", what, number, to_string(a.meta()), to_string(e.meta()));
    for (int64_t i = 0; i < e.numel(); ++i) {
      const double x = a.data<double>()[i], y = e.data<double>()[i];
      if (!(std::abs(x - y) <= tolerance))
        return fmt::format("{} v{} is {} at element {}, expected {}", what, number, x, i, y);
    }
  }
  return "";
}

bool reshapes_in_place(const RandomProgram& program) {
  return std::any_of(program.steps.begin(), program.steps.end(),
                     [](const Step& step) { return step.kind->has(Kind::writes) && step.kind->has(Kind::view); });
}

/// The number of programs with gradients, and of those compared with differences.
int with_gradients = 0, differences_tried = 0;

/// A program, its leaves, and where it runs.
struct Case {
  RandomMesh on;
  ViewPolicy view;
  uint64_t seed;
  Tensors leaves;
  std::vector<Device> devices = {kCpu};  // of the ranks

  /// The differences between one rank of the mesh and one rank alone.
  std::string compare(const RandomProgram& program, const Run& alone, const Run& here) const {
    if (here.errors != alone.errors) {
      const auto [a, b] =
          std::mismatch(here.errors.begin(), here.errors.end(), alone.errors.begin(), alone.errors.end());
      const std::string ours = a == here.errors.end() ? "no error" : *a,
                        theirs = b == alone.errors.end() ? "no error" : *b;
      // A view of a copy is an error, unless it is kept in sync. A view that is not kept in sync has another buffer,
      // because reshape_ resharded it.
      if ((view == ViewPolicy::strict || reshapes_in_place(program)) &&
          (ours.ends_with("view_of_copy") || ours.ends_with("stale_view")))
        return "";
      return fmt::format("{}, but on one rank {}", ours, theirs);
    }
    if (const std::string values = difference_of("value", here.values, alone.values); !values.empty()) return values;
    // Reading a view is an error, because its source got another buffer and was written. So its gradient is that of
    // another value.
    if (here.values.size() != alone.values.size() && reshapes_in_place(program)) return "";
    if (here.outputs != alone.outputs) return "other outputs require gradients";
    if (!alone.backward_error.empty()) {
      // A value that is saved in a detached buffer is a snapshot, which later writes to the source do not reach.
      if (!here.backward_error.empty() || program.has(Kind::view)) return "";
      return "backward is no error, but on one rank: " + alone.backward_error;
    }
    if (!here.backward_error.empty()) return "backward: " + here.backward_error;
    if (here.gradients.size() != alone.gradients.size()) return "another number of leaves has gradients";
    if (!here.misplaced.empty()) return here.misplaced;
    std::string problem = difference_of("the gradient of leaf", here.gradients, alone.gradients);
    if (!problem.empty()) return problem;
    // A tensor that has another buffer is no longer the base of views of the former one: only the gradients of
    // leaves are the same.
    if (reshapes_in_place(program)) return "";
    if (here.stepwise.size() != alone.stepwise.size()) return "another number of tensors has gradients";
    return difference_of("by grad the gradient of", here.stepwise, alone.stepwise);
  }

  std::string problem(const RandomProgram& program) const {
    const Run alone = run(program, leaves, {});
    std::vector<Run> runs(static_cast<size_t>(on.ranks));
    try {
      World::local(on.ranks, {.timeout = std::chrono::seconds(20), .devices = devices})->run([&](Rank& rank) {
        const PolicyScope scope(rank, {.view = view});
        runs[static_cast<size_t>(rank.id())] = run(program, leaves, {seed, on.mesh, &rank});
      });
    } catch (const std::exception& error) { return fmt::format("a rank failed: {}", error.what()); }
    for (size_t r = 0; r < runs.size(); ++r) {
      const std::string problem = compare(program, alone, runs[r]);
      if (!problem.empty()) return fmt::format("rank {}: {}", r, problem);
      if (runs[r].errors != runs[0].errors || runs[r].backward_error.empty() != runs[0].backward_error.empty())
        return fmt::format("ranks 0 and {} disagree", r);
    }
    return "";
  }

  /// The differences between a device and the CPU, without a mesh.
  std::string plain_problem(const RandomProgram& program, Device device) const {
    const Run on_cpu = run(program, leaves, {});
    const DefaultDevice scope(device);
    try {
      return compare(program, on_cpu, run(program, leaves, {}));
    } catch (const Error& error) { return error.what(); }
  }

  std::string text(const RandomProgram& program) const {
    const Place place{seed, on.mesh, nullptr};
    std::string layouts;
    for (size_t i = 0; i < program.leaves.size(); ++i)
      layouts += fmt::format(" {}", place.layout(i, program.leaves[i].rank())->text());
    return fmt::format("on {}, ViewPolicy::{}, leaves in{}\n{}", on.text(),
                       view == ViewPolicy::sync ? "sync" : "strict", layouts, to_string(program));
  }
};

std::string try_distributed(uint64_t seed) {
  Random random(seed);
  const RandomProgram program = draw_program(random, {});
  const Tensors leaves = draw_leaves(program);
  const RandomMesh on(random, kMostRanks);
  if (run(program, leaves, {}).backward_error.empty()) ++with_gradients;
  for (const ViewPolicy view : {ViewPolicy::sync, ViewPolicy::strict}) {
    const Case one{on, view, seed, leaves};
    if (one.problem(program).empty()) continue;
    const RandomProgram least = shrink(program, [&](const RandomProgram& less) { return !one.problem(less).empty(); });
    return one.problem(least) + "\n    the least program with a problem, " + one.text(least) + "    of\n" +
           to_string(program);
  }
  return "";
}

std::string try_on_device(uint64_t seed, Device device) {
  Random random(seed);
  const RandomProgram program = draw_program(random, {});
  const Tensors leaves = draw_leaves(program);
  const RandomMesh on(random, kMostRanks);
  std::vector<Device> devices;  // of the backend: one for all ranks, or as many as there are
  for (int i = 0; i < (seed % 2 == 0 ? 1 : backend_of(device).device_count()); ++i)
    devices.push_back({device.backend, static_cast<uint8_t>(i)});
  const Case one{on, seed % 3 == 0 ? ViewPolicy::strict : ViewPolicy::sync, seed, leaves, devices};
  const auto tell = [&](const char* where,
                        const std::function<std::string(const RandomProgram&)>& problem) -> std::string {
    if (problem(program).empty()) return "";
    const RandomProgram least = shrink(program, [&](const RandomProgram& less) { return !problem(less).empty(); });
    return fmt::format("{}: {}\n    the least program with a problem, {}    of\n{}", where, problem(least),
                       one.text(least), to_string(program));
  };
  const std::string plain = tell("plain", [&](const RandomProgram& part) { return one.plain_problem(part, device); });
  return plain.empty() ? tell("on the mesh", [&](const RandomProgram& part) { return one.problem(part); }) : plain;
}

/// The outputs of a program on leaves, in one; undefined where it has none.
Tensor flat_outputs(const RandomProgram& program, const Tensors& leaves) {
  ProgramValues values;
  for (size_t i = 0; i < leaves.size(); ++i) values[static_cast<int>(i)] = leaves[i];
  for (const Step& step : program.steps) run_step(step, values, [](const Tensor& x, uint64_t) { return assign(x); });
  Tensors found;
  for (const int output : program.outputs) {
    if (const auto value = values.find(output); value != values.end()) found.push_back(reshape(value->second, {-1}));
  }
  return found.empty() ? Tensor() : concat(found, 0);
}

/// Copies, which programs may write unless they are leaves that require gradients.
Tensors copies(const Tensors& tensors, bool requires_grad) {
  Tensors all;
  for (const Tensor& x : tensors) all.push_back(assign(x.detach()).set_requires_grad(requires_grad));
  return all;
}

std::string difference_problem(const RandomProgram& program, const Tensors& leaves) {
  const auto forward = [&](const Tensors& at) { return flat_outputs(program, copies(at, false)); };
  const auto gradient = [&](const Tensors& at, const Tensor& weight) {
    const Tensors starts = copies(at, true);
    Tensors grads = grad({flat_outputs(program, starts)}, starts, {weight}, {}, true);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) grads[i] = full_like(at[i], 0);
    }
    return grads;
  };
  // Programs are compositions of some ten functions, whose fifth derivatives may be 1e10 times the first. With a
  // step of 1/8192 differences have an error of 7e-18 of them, and of some 1e-11 from rounding. Programs with a
  // first derivative above 10 are left to other tests.
  constexpr double kSteepest = 10, kCompositionTolerance = 1e-6, kStep = 1.0 / 8192;
  try {
    const Tensor flat = flat_outputs(program, copies(leaves, true));
    if (!flat.defined() || !flat.requires_grad()) return "";
    std::map<int, DenseTensor> first;
    for (const Tensor& each : gradient(leaves, random_values(forward(leaves).dims(), 4711)))
      first[static_cast<int>(first.size())] = each.get().value;
    if (largest_of(first) > kSteepest) return "";
    ++differences_tried;
    return gradient_difference(forward, gradient, leaves, kCompositionTolerance, kStep);
  } catch (const Error& error) {
    // A saved tensor, or a view of a tensor that has another buffer now, has been written.
    return error.code() == ErrorCode::autograd || error.code() == ErrorCode::stale_view ? "" : error.what();
  }
}

std::string try_differences(uint64_t seed) {
  Random random(seed);
  const RandomProgram program = draw_program(random, {.bent = false, .impure = false});
  const Tensors leaves = draw_leaves(program);
  if (difference_problem(program, leaves).empty()) return "";
  const RandomProgram least =
      shrink(program, [&](const RandomProgram& less) { return !difference_problem(less, leaves).empty(); });
  return difference_problem(least, leaves) + "\n    the least program with a problem\n" + to_string(least) +
         "    of\n" + to_string(program);
}

}  // namespace

TEST_CASE("random graphs: the gradients on a mesh are those of one rank") {
  with_gradients = 0;
  try_seeds("shard_tests_autograd", "random graphs: the gradients on a mesh*", try_distributed, 300);
  CHECK(static_cast<uint64_t>(with_gradients) >= from_environment("SHARD_PROPERTY_CASES", 300) / 2);
}

TEST_CASE("random graphs: the gradients on one rank are those of central differences") {
  differences_tried = 0;
  try_seeds("shard_tests_autograd", "random graphs: the gradients on one rank*", try_differences, 200);
  CHECK(static_cast<uint64_t>(differences_tried) >= from_environment("SHARD_PROPERTY_CASES", 200) / 2);
}

TEST_CASE("random graphs: the values and gradients on a device are those of the CPU, plain and on a mesh") {
  const auto device = cuda_device();
  if (!device) return;
  try_seeds(
      "shard_tests_autograd", "random graphs: the values and gradients on a device*",
      [&](uint64_t seed) { return try_on_device(seed, *device); }, 250);
}

}  // namespace random_graph_test
