// Random programs with views, in-place writes, reshards and gradients: five runs of captured functions have the
// results of eager calls, bit for bit: with all passes, with each of them alone, with none, and loaded from text. On a
// CUDA device they have those of eager calls on the CPU.
// SHARD_PROPERTY_CASES and SHARD_PROPERTY_SEED select other runs.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <tbb/global_control.h>
#include <algorithm>

#include <atomic>
#include <cmath>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>

#include "autograd/random_program.h"
#include "cuda/runtime_compiler.h"
#include "shard/autograd/autograd.h"
#include "shard/core/loop_functions.h"
#include "shard/program/capture/function.h"
#include "shard/program/io/json.h"
#include "shard/shard.h"
#include "shard/testing/tensors.h"
#include "support/cuda_device.h"
#include "support/random_runs.h"

namespace random_program_test {

using namespace shard;
using namespace shard::testing;
using namespace shard::test;

namespace {

constexpr int kRuns = 5;
constexpr uint64_t kCases = 150;

std::string code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::autograd:
      case ErrorCode::stale_view:
      case ErrorCode::view_of_copy:
      case ErrorCode::capture: return to_string(error.code());
      default: throw;
    }
  }
  return "";
}

/// Where a program runs, on the default device: plain, or on a mesh in layouts that are derived from a seed.
struct Place {
  uint64_t seed = 0;
  const ProcessMesh* mesh = nullptr;  // null for plain
  Rank* rank = nullptr;

  /// Whether operands are resharded before most steps, among three layouts for each number of dims: values return
  /// to layouts that they have had.
  bool restless() const { return mesh != nullptr && seed / 4 % 2 == 0; }
  const DistSpec* layout(uint64_t what, int dims) const {
    Random random(seed * 1000003 + (restless() ? what % 3 : what));
    return random_spec(random, mesh, dims, {ReduceType::sum});
  }
  Tensor put(const Tensor& value, uint64_t what) const {
    return mesh == nullptr ? assign(value) : distribute(value, layout(what, value.dims().rank()));
  }
  Tensor move(const Tensor& x, uint64_t what) const {
    if (mesh == nullptr) return assign(x);
    const DistSpec* spec = layout(what, x.dims().rank());
    return spec == spec_of(x) ? assign(x) : reshard(x, spec);
  }
};

/// How a program is run.
struct Way {
  bool backward_inside = false;
  bool optimise = false;  // parameters are changed by their gradients, inside
};

/// The function of a program: inputs are the leaves with even numbers, parameters those with odd ones.
struct Subject {
  const RandomProgram& program;
  const Place& place;
  Way way;
  Tensors parameters;        // kept from run to run
  Tensors output_gradients;  // of each possible output
  std::vector<std::string>* errors;

  void move_operands(size_t step, ProgramValues& values) const {
    for (const int operand : program.steps[step].operands) {
      const auto found = values.find(operand);
      const uint64_t what = step * 7 + static_cast<uint64_t>(operand);
      if (place.restless() && what % 3 != 0 && found != values.end())
        found->second = place.move(found->second, what / 3);
    }
  }

  Tensors operator()(const Tensors& inputs) const {
    errors->clear();
    ProgramValues values;
    for (size_t i = 0; i < program.leaves.size(); ++i)
      values[static_cast<int>(i)] = i % 2 == 0 ? inputs[i / 2] : parameters[i / 2];
    for (size_t i = 0; i < program.steps.size(); ++i) {
      std::string error = code_of([&] { move_operands(i, values); });
      if (error.empty())
        error = run_step(program.steps[i], values,
                         [&](const Tensor& x, uint64_t seed) { return place.move(x, 1000 + seed); });
      if (!error.empty()) errors->push_back(fmt::format("step {}: {}", i, error));
    }
    Tensors outputs;
    for (const int number : program.outputs) outputs.push_back(values.contains(number) ? values.at(number) : Tensor());
    if (!way.backward_inside) return outputs;
    Tensors from, given;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
      from.push_back(outputs[i]);
      given.push_back(scale(outputs[i].detach(), Scalar(0.25), Scalar(0.5), true));
    }
    if (!from.empty()) backward(from, given);
    if (way.optimise) {
      const NoGrad off;
      for (Tensor parameter : parameters) {
        const Tensor gradient = parameter.grad();
        if (gradient.defined()) add_(parameter, scale(gradient, Scalar(-0.125), Scalar(0), true));
        parameter.set_grad({});
      }
    }
    for (Tensor& output : outputs) {
      if (output.defined()) output = output.detach();
    }
    return outputs;
  }
};

/// The observable state after a run: bytes, versions and layouts, by name.
using Seen = std::map<std::string, std::string>;

std::string bytes_of(const Tensor& tensor) {
  if (!tensor.defined()) return "none";
  DenseTensor shard = tensor.get().value;
  std::string text = to_string(tensor.meta()) + (tensor.is_dist() ? spec_of(tensor)->text() : "") + " ";
  try {
    shard.storage()->check_read();  // waits for work in flight
  } catch (const Error& error) {
    return text + to_string(error.code());  // a view that is out of sync
  }
  if (shard.has_data() && shard.storage()->state() == Storage::State::held) {
    if (shard.device() != default_device()) text += "on " + to_string(shard.device()) + " ";
    if (shard.device() != kCpu) shard = copy_to(kCpu, shard);
    // All NaNs are equal, whatever their other bits.
    visit_dtype(shard.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int64_t i = 0; i < shard.numel(); ++i) {
        const T value = shard.data<T>()[i];
        if constexpr (std::is_floating_point_v<T>)
          text += std::isnan(value) ? std::string("nan ") : fmt::format("{:a} ", value);
        else text += fmt::format("{} ", static_cast<double>(value));
      }
    });
  }
  return text;
}

/// Which argument an output is or shares its buffer with, and whether it has a history.
std::string handle_of(const Tensor& output, const Tensors& inputs, const Tensors& parameters) {
  if (!output.defined()) return "";
  std::string text = output.requires_grad() ? "requires a gradient " : "";
  const Ref<Storage>& buffer = output.get().value.storage();
  for (const Tensors* arguments : {&inputs, &parameters}) {
    for (size_t i = 0; i < arguments->size(); ++i) {
      if ((*arguments)[i].impl() == output.impl())
        text += fmt::format("{} {} itself ", arguments == &inputs ? "input" : "parameter", i);
      else if (buffer->state() == Storage::State::held && (*arguments)[i].get().value.storage() == buffer)
        text += fmt::format("in the buffer of {} {} ", arguments == &inputs ? "input" : "parameter", i);
    }
  }
  return text;
}

/// How a program is executed.
struct Mode {
  enum class Kind { eager, captured, loaded };
  std::string name;
  Kind kind = Kind::captured;
  bool passes = true;
  std::vector<std::string> skip = {};
  int64_t memory_goal = 0;
  double parallel_ns = 0;
};
const Mode kEager{"eager", Mode::Kind::eager}, kCaptured{"all passes"};

/// The other modes: no pass, each pass alone, loaded from text, and ops that run concurrently.
std::vector<Mode> other_modes() {
  std::vector<Mode> modes = {{"loaded", Mode::Kind::loaded}, {"no pass", Mode::Kind::captured, false}};
  modes.push_back({.name = "few bytes, parallel", .memory_goal = 1, .parallel_ns = 1});
  std::set<std::string> names;
  for (const program::Pass& pass : program::standard_passes()) names.emplace(pass.name);
  for (const std::string& name : names) {
    Mode& mode = modes.emplace_back(Mode{.name = "only " + name, .memory_goal = 1});
    std::copy_if(names.begin(), names.end(), std::back_inserter(mode.skip),
                 [&](const std::string& each) { return each != name; });
  }
  return modes;
}

/// A function that runs the program for `inputs`, after a round trip through text.
CapturedFunction through_text(CapturedFunction& function, const Tensors& inputs) {
  const program::Trace& trace = function.trace(inputs);
  program::Scope scope;
  for (size_t i = 0; i < trace.parameters.size(); ++i) {
    if (!trace.parameters[i].leaf.defined() && trace.parameters[i].tensor.defined())
      scope.set(trace.program.parameters[i].name, trace.parameters[i].tensor);
  }
  return CapturedFunction(program::from_json(program::to_json(trace), scope));
}

/// Runs the function five times.
std::vector<Seen> run(const RandomProgram& program, const Place& place, Way way, const Mode& mode) {
  std::vector<std::string> errors;
  Subject subject{program, place, way, {}, {}, &errors};
  const Tensors leaves = draw_leaves(program);
  for (size_t i = 1; i < leaves.size(); i += 2)
    subject.parameters.push_back(place.put(leaves[i], i).set_requires_grad(true));
  // Other handles of them, which see what is written.
  Tensors aliases;
  for (const Tensor& parameter : subject.parameters) aliases.push_back(parameter.detach());
  if (place.rank != nullptr) place.rank->generator.set_seed(5);
  call::thread_generator().set_seed(5);
  CapturedFunction function(subject,
                            {.passes = mode.passes,
                             .skip = mode.skip,
                             .memory_goal = mode.memory_goal,
                             .executor = {.fuse_block = place.seed % 4 < 2 ? 3 : 0, .parallel_ns = mode.parallel_ns}});
  std::vector<Seen> all;
  for (int run = 0; run < kRuns; ++run) {
    Seen& seen = all.emplace_back();
    Tensors inputs;
    for (size_t i = 0; i < leaves.size(); i += 2) inputs.push_back(place.put(leaves[i], i).set_requires_grad(true));
    Tensors outputs;
    seen["call"] = code_of([&] {
      if (mode.kind == Mode::Kind::eager) outputs = subject(inputs);
      if (mode.kind == Mode::Kind::captured) outputs = function(inputs);
      if (mode.kind == Mode::Kind::loaded) outputs = through_text(function, inputs)(inputs);
    });
    if (!seen["call"].empty()) {
      // A captured function fails before it does anything; an eager one has begun.
      all.back() = {{"call", seen["call"]}};
      return all;
    }
    if (!way.backward_inside) {
      Tensors from, given;
      seen["reading"] = code_of([&] {
        for (const Tensor& output : outputs) {
          // A leaf's own gradient would be added in another order.
          if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
          given.push_back(scale(output.detach(), Scalar(0.25), Scalar(0.5), true));
          from.push_back(output);
        }
      });
      if (!seen["reading"].empty()) return all;
      if (!from.empty()) seen["backward"] = code_of([&] { backward(from, given); });
      if (!seen["backward"].empty()) return all;
    }
    for (const std::string& error : errors) seen["errors"] += error + "; ";
    for (size_t i = 0; i < outputs.size(); ++i)
      seen[fmt::format("output {}", i)] = handle_of(outputs[i], inputs, subject.parameters) + bytes_of(outputs[i]);
    for (size_t i = 0; i < inputs.size(); ++i) {
      seen[fmt::format("input {}", i)] = fmt::format("version {} {}", inputs[i].version(), bytes_of(inputs[i]));
      seen[fmt::format("gradient of input {}", i)] = bytes_of(inputs[i].grad());
    }
    for (size_t i = 0; i < subject.parameters.size(); ++i) {
      seen[fmt::format("parameter {}", i)] =
          fmt::format("version {} {}", subject.parameters[i].version(), bytes_of(subject.parameters[i]));
      seen[fmt::format("alias of parameter {}", i)] = bytes_of(aliases[i]);
      seen[fmt::format("gradient of parameter {}", i)] = bytes_of(subject.parameters[i].grad());
    }
  }
  return all;
}

std::atomic<uint64_t> refused = 0;  // programs that cannot be captured, on each rank

/// Whether two observations have the same words, except for numbers that differ by at most `tolerance` of the largest one, or
/// of 1.
bool is_close(const std::string& actual, const std::string& expected, double tolerance) {
  if (tolerance == 0) return actual == expected;
  const auto number_of = [](const std::string& word) -> std::optional<double> {
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    return end == word.c_str() + word.size() && std::isfinite(number) ? std::optional(number) : std::nullopt;
  };
  const auto words_of = [](const std::string& text) {
    std::istringstream stream(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  const std::vector<std::string> expected_words = words_of(expected), words = words_of(actual);
  double largest = 1;
  for (const std::string& word : expected_words) largest = std::max(largest, std::abs(number_of(word).value_or(0)));
  return std::equal(words.begin(), words.end(), expected_words.begin(), expected_words.end(),
                    [&](const std::string& a, const std::string& e) {
                      const std::optional<double> x = number_of(a), y = number_of(e);
                      return a == e || (x && y && std::abs(*x - *y) <= tolerance * largest);
                    });
}

/// The first difference; empty if there is none.
std::string difference(const std::vector<Seen>& eager, const std::vector<Seen>& captured, double tolerance = 0) {
  for (size_t run = 0; run < std::min(eager.size(), captured.size()); ++run) {
    for (const auto& [name, value] : captured[run]) {
      const auto found = eager[run].find(name);
      if (found == eager[run].end() || !is_close(value, found->second, tolerance)) {
        return fmt::format("run {}: {} is {}, eager {}", run, name, value.substr(0, 300),
                           found == eager[run].end() ? "nothing" : found->second.substr(0, 300));
      }
    }
  }
  return eager.size() == captured.size() ? "" : "another number of runs";
}

std::string compare_modes(const RandomProgram& program, const Place& place, Way way) {
  const std::vector<Seen> eager = run(program, place, way, kEager), captured = run(program, place, way, kCaptured);
  // A program cannot change the shape of a tensor from outside.
  if (captured[0].at("call") == to_string(ErrorCode::capture)) {
    ++refused;
    return "";
  }
  if (const std::string differs = difference(eager, captured); !differs.empty()) return kCaptured.name + ": " + differs;
  for (const Mode& mode : other_modes()) {
    if (const std::string differs = difference(eager, run(program, place, way, mode)); !differs.empty())
      return mode.name + ": " + differs;
  }
  return "";
}

std::string compare(const RandomProgram& program, uint64_t seed, Way way, const RandomMesh* mesh) {
  if (mesh == nullptr) return compare_modes(program, {seed}, way);
  std::mutex mutex;
  std::string found;
  World::local(mesh->ranks)->run([&](Rank& rank) {
    const Place place{seed, mesh->mesh, &rank};
    const std::string differs = compare_modes(program, place, way);
    const std::lock_guard lock(mutex);
    if (found.empty() && !differs.empty()) found = fmt::format("rank {}: {}", rank.id(), differs);
  });
  return found;
}

/// What the ranks of a mesh see, or what is seen without a mesh, where all tensors are on a device.
std::vector<std::vector<Seen>> run_on(Device device, const RandomProgram& program, uint64_t seed, Way way,
                                      const RandomMesh* mesh, const Mode& mode) {
  if (mesh == nullptr) {
    const DefaultDevice scope(device);
    return {run(program, {seed}, way, mode)};
  }
  std::vector<std::vector<Seen>> all(static_cast<size_t>(mesh->ranks));
  World::local(mesh->ranks, {.devices = {device}})->run([&](Rank& rank) {
    all[static_cast<size_t>(rank.id())] = run(program, {seed, mesh->mesh, &rank}, way, mode);
  });
  return all;
}

/// Rounding is amplified by some ten functions, and by updates of parameters in each run.
constexpr double kDeviceTolerance = 1e-9;
int left_out = 0;  // programs that cannot be captured

/// Compares eager and captured runs on the device with eager ones on the CPU.
std::string compare_with_cpu(const RandomProgram& program, uint64_t seed, Way way, const RandomMesh* mesh,
                             Device device) {
  const std::vector<std::vector<Seen>> expected = run_on(kCpu, program, seed, way, mesh, kEager);
  for (const Mode& mode :
       {kEager, kCaptured, Mode{"loaded", Mode::Kind::loaded}, Mode{"no pass", Mode::Kind::captured, false},
        Mode{.name = "few bytes, parallel", .memory_goal = 1, .parallel_ns = 1}}) {
    const std::vector<std::vector<Seen>> actual = run_on(device, program, seed, way, mesh, mode);
    if (mode.kind != Mode::Kind::eager && actual[0][0].at("call") == to_string(ErrorCode::capture)) {
      ++left_out;
      return "";
    }
    for (size_t rank = 0; rank < actual.size(); ++rank) {
      const std::string differs = difference(expected[rank], actual[rank], kDeviceTolerance);
      if (!differs.empty()) return fmt::format("{}, rank {}: {}", mode.name, rank, differs);
    }
  }
  return "";
}

/// While it lives, loops of the device are counted.
class CountedLoops {
 public:
  explicit CountedLoops(Device device) : device_(device) {
    original_ = backend_of(device).loops;
    so_far_ = 0;
    LoopFunctions counted = original_;
    counted.end = [](int index) {
      ++so_far_;
      original_.end(index);
    };
    set_loop_functions(device.backend, counted);
  }
  ~CountedLoops() { set_loop_functions(device_.backend, original_); }
  CountedLoops(const CountedLoops&) = delete;
  CountedLoops& operator=(const CountedLoops&) = delete;

  int count() const { return so_far_; }

 private:
  inline static LoopFunctions original_;
  inline static std::atomic<int> so_far_;
  Device device_;
};

std::string attempt(uint64_t seed, std::optional<Device> device = std::nullopt) {
  Random random(seed);
  const RandomProgram program = draw_program(random, {});
  const Way way{pick(random, 0, 1) == 1, pick(random, 0, 1) == 1};
  const bool on_mesh = seed % 2 == 0;
  const RandomMesh mesh(random, 4);
  const RandomMesh* const used = on_mesh ? &mesh : nullptr;
  const auto differs = [&](const RandomProgram& part) {
    try {
      return device ? compare_with_cpu(part, seed, way, used, *device) : compare(part, seed, way, used);
    } catch (const std::exception& error) { return std::string(error.what()); }
  };
  if (differs(program).empty()) return "";
  const RandomProgram small = shrink(program, [&](const RandomProgram& part) { return !differs(part).empty(); });
  return fmt::format("{}{}, {}\n{}\n{}", way.backward_inside ? "backward inside" : "backward outside",
                     way.optimise ? ", optimised" : "", on_mesh ? mesh.text() : "plain", differs(small),
                     to_string(small));
}

}  // namespace

TEST_CASE("random programs: five runs of captured functions are those of eager calls, bit for bit") {
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  try_seeds(
      "shard_tests_program", "random programs: five runs of captured*", [](uint64_t seed) { return attempt(seed); },
      kCases);
  CHECK(refused <= from_environment("SHARD_PROPERTY_CASES", kCases) / 5 + 4);
}

TEST_CASE("random programs: five runs on a device, eager and captured, are those of eager calls on the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  left_out = 0;
  try_seeds(
      "shard_tests_program", "random programs: five runs on a device*",
      [&](uint64_t seed) { return attempt(seed, device); }, 60);
  CHECK(static_cast<uint64_t>(left_out) <= from_environment("SHARD_PROPERTY_CASES", 60) / 2 + 2);
}

TEST_CASE("random programs: runs with fused loops on a device are those of eager calls on the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  const CountedLoops loops(*device);
  left_out = 0;
  try_seeds(
      "shard_tests_program", "random programs: runs with fused loops*",
      [&](uint64_t seed) { return attempt(4 * seed + seed % 2, device); }, 4);  // of seeds whose programs are fused
  CHECK(loops.count() > 10);
  CHECK(left_out <= 2);
}

}  // namespace random_program_test
