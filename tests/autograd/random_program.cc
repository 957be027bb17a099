#include "autograd/random_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "shard/autograd/autograd.h"
#include "shard/shard.h"
#include "shard/testing/op_cases.h"

namespace shard::test {
namespace {

using testing::pick;
using testing::Random;
using testing::Tensors;
using Shapes = std::vector<Dims>;
using Attributes = std::optional<IntArray>;

Attributes always(Random&, const Shapes&) { return IntArray(); }

/// Whether y can be broadcast against x; with `into_x` the result has the shape of x.
bool fit(const Dims& x, const Dims& y, bool into_x) {
  if (into_x && y.rank() > x.rank()) return false;
  for (int d = 1; d <= std::min(x.rank(), y.rank()); ++d) {
    const int64_t a = x[x.rank() - d], b = y[y.rank() - d];
    if (a != b && b != 1 && (into_x || a != 1)) return false;
  }
  return true;
}
Attributes both_fit(Random&, const Shapes& x) { return fit(x[0], x[1], false) ? Attributes(IntArray()) : std::nullopt; }
Attributes fits_into(Random&, const Shapes& x) { return fit(x[0], x[1], true) ? Attributes(IntArray()) : std::nullopt; }
Attributes alike(Random&, const Shapes& x) {
  return x[0] == x[1] && x[0].rank() > 0 ? Attributes(IntArray()) : std::nullopt;
}

int64_t any_axis(Random& random, const Dims& x) { return pick(random, 0, x.rank() - 1); }
Attributes axis(Random& random, const Shapes& x) {
  return x[0].rank() > 0 ? Attributes(IntArray{any_axis(random, x[0])}) : std::nullopt;
}
/// An axis, or -1 for all, and whether to keep it.
Attributes reduced_axis(Random& random, const Shapes& x) {
  return IntArray{pick(random, -1, x[0].rank() - 1), pick(random, 0, 1)};
}
IntArray list_of(int64_t axis) { return axis < 0 ? IntArray() : IntArray{axis}; }
int to_int(int64_t value) { return static_cast<int>(value); }

Attributes permutation(Random& random, const Shapes& x) {
  IntArray perm;
  for (int d = 0; d < x[0].rank(); ++d) perm.push_back(d);
  std::shuffle(perm.begin(), perm.end(), random);
  return perm;
}

/// The same elements: in one dim, with the dims reversed, with the first two dims merged, or with one more dim of
/// size 1.
Attributes other_shape(Random& random, const Shapes& x) {
  const Dims& dims = x[0];
  const int64_t way = pick(random, 0, 3);
  const int split = way == 2 ? 2 : to_int(pick(random, 0, dims.rank()));
  IntArray shape;
  if (way == 0) shape.push_back(dims.numel());
  if (way == 1) {
    for (int d = dims.rank(); d-- > 0;) shape.push_back(dims[d]);
  }
  if ((way == 2 && dims.rank() >= 2) || (way == 3 && dims.rank() < 4)) {
    for (int d = 0; d < split && way == 3; ++d) shape.push_back(dims[d]);
    shape.push_back(way == 2 ? dims[0] * dims[1] : 1);
    for (int d = split; d < dims.rank(); ++d) shape.push_back(dims[d]);
  }
  return shape.empty() ? std::nullopt : Attributes(shape);
}

Attributes range(Random& random, const Shapes& x) {
  if (x[0].rank() == 0) return std::nullopt;
  const int64_t at = any_axis(random, x[0]), begin = pick(random, 0, x[0][to_int(at)] - 1);
  return IntArray{at, begin, pick(random, begin + 1, x[0][to_int(at)])};
}

Attributes cut(Random& random, const Shapes& x) {
  if (x[0].rank() == 0) return std::nullopt;
  const int64_t at = any_axis(random, x[0]);
  if (x[0][to_int(at)] < 2) return std::nullopt;
  return IntArray{at, pick(random, 1, x[0][to_int(at)] - 1)};
}

Attributes joined_axis(Random& random, const Shapes& x) {
  if (x[0].rank() == 0 || x[0].rank() != x[1].rank()) return std::nullopt;
  const int64_t at = any_axis(random, x[0]);
  for (int d = 0; d < x[0].rank(); ++d) {
    if (d != at && x[0][d] != x[1][d]) return std::nullopt;
  }
  return IntArray{at};
}

Attributes product(Random& random, const Shapes& x) {
  if (x[0].rank() != 2 || x[1].rank() != 2) return std::nullopt;
  const int64_t tx = pick(random, 0, 1), ty = pick(random, 0, 1);
  if (x[0][tx != 0 ? 0 : 1] != x[1][ty != 0 ? 1 : 0]) return std::nullopt;
  return IntArray{tx, ty};
}

Attributes small(Random&, const Shapes& x) {
  return x[0].numel() <= 40 && x[0].rank() < 4 ? Attributes(IntArray()) : std::nullopt;
}
Attributes small_axis(Random& random, const Shapes& x) { return x[0].numel() <= 40 ? axis(random, x) : std::nullopt; }
Attributes new_axis(Random& random, const Shapes& x) {
  return x[0].rank() < 4 ? Attributes(IntArray{pick(random, 0, x[0].rank())}) : std::nullopt;
}
Attributes axis_of_1(Random& random, const Shapes& x) {
  Attributes found = axis(random, x);
  return found && x[0][to_int((*found)[0])] == 1 ? found : std::nullopt;
}
Attributes diagonal(Random& random, const Shapes& x) {
  return x[0].rank() >= 2 ? Attributes(IntArray{pick(random, -1, 1)}) : std::nullopt;
}
Attributes at_least_2_dims(Random&, const Shapes& x) {
  return x[0].rank() >= 2 ? Attributes(IntArray()) : std::nullopt;
}
Attributes factor(Random& random, const Shapes&) { return IntArray{pick(random, -3, 3), pick(random, -1, 1)}; }
Attributes layout_seed(Random& random, const Shapes&) { return IntArray{pick(random, 1, 1000000)}; }

using T = Tensors&;
using A = const IntArray&;
constexpr double kAny = 100;

Kind unary(const char* name, double most, testing::Unary f, unsigned traits = Kind::none) {
  return {name, 1, traits, most, always, [=](T x, A) { return Tensors{f(x[0])}; }};
}
Kind unary_(const char* name, double most, testing::UnaryInplace f, unsigned traits = Kind::none) {
  return {name, 1, traits | Kind::writes, most, always, [=](T x, A) { return f(x[0]), Tensors{}; }};
}
Kind binary(const char* name, double most, testing::Binary f, unsigned traits = Kind::none) {
  return {name, 2, traits, most, both_fit, [=](T x, A) { return Tensors{f(x[0], x[1])}; }};
}
Kind binary_(const char* name, double most, testing::BinaryInplace f, unsigned traits = Kind::none) {
  return {name, 2, traits | Kind::writes, most, fits_into, [=](T x, A) { return f(x[0], x[1]), Tensors{}; }};
}

std::vector<Kind> elementwise() {
  return {
      unary("tanh", kAny, tanh),
      unary("sigmoid", kAny, sigmoid),
      unary("sin", 20, sin),
      unary("cos", 20, cos),
      unary("exp", 3, exp),
      unary("square", 6, square),
      unary("silu", 20, silu),
      unary("relu", kAny, relu, Kind::bent),
      unary("abs", kAny, abs, Kind::bent),
      unary("assign", kAny, assign),
      {"scale", 1, Kind::none, kAny, factor,
       [](T x, A a) {
         return Tensors{scale(x[0], 0.25 * static_cast<double>(a[0]), 0.5 * static_cast<double>(a[1]))};
       }},
      {"gelu", 1, Kind::none, 20, always, [](T x, A) { return Tensors{gelu(x[0], true)}; }},
      {"dropout", 1, Kind::none, kAny, always,
       [](T x, A) { return Tensors{dropout(x[0], {}, 0.25f, false, "upscale_in_train", 7)}; }},
      binary("add", kAny, add),
      binary("subtract", kAny, subtract),
      binary("multiply", 6, multiply),
      binary("maximum", kAny, maximum, Kind::bent),
      {"swiglu", 2, Kind::none, 6, alike, [](T x, A) { return Tensors{swiglu(x[0], x[1])}; }},
      {"add_n", 2, Kind::none, kAny, alike,
       [](T x, A) {
         return Tensors{add_n({x[0], x[1], x[0]})};
       }},
  };
}

std::vector<Kind> combining() {
  return {
      {"sum", 1, Kind::none, 20, reduced_axis, [](T x, A a) { return Tensors{sum(x[0], list_of(a[0]), a[1] != 0)}; }},
      {"mean", 1, Kind::none, kAny, reduced_axis,
       [](T x, A a) { return Tensors{mean(x[0], list_of(a[0]), a[1] != 0)}; }},
      {"amax", 1, Kind::bent, kAny, reduced_axis,
       [](T x, A a) { return Tensors{amax(x[0], list_of(a[0]), a[1] != 0)}; }},
      {"squared_l2_norm", 1, Kind::none, 3, always, [](T x, A) { return Tensors{squared_l2_norm(x[0])}; }},
      {"cumsum", 1, Kind::none, 10, axis, [](T x, A a) { return Tensors{cumsum(x[0], a[0])}; }},
      {"softmax", 1, Kind::none, 20, axis, [](T x, A a) { return Tensors{softmax(x[0], to_int(a[0]))}; }},
      {"log_softmax", 1, Kind::none, 20, axis, [](T x, A a) { return Tensors{log_softmax(x[0], to_int(a[0]))}; }},
      {"layer_norm", 1, Kind::none, 20, at_least_2_dims,
       [](T x, A) { return Tensors{layer_norm(x[0], {}, {}, 0.5f, x[0].dims().rank() - 1)}; }},
      {"matmul", 2, Kind::none, 4, product, [](T x, A a) { return Tensors{matmul(x[0], x[1], a[0] != 0, a[1] != 0)}; }},
  };
}

std::vector<Kind> rearranging() {
  return {
      {"transpose", 1, Kind::none, kAny, permutation, [](T x, A a) { return Tensors{transpose(x[0], a)}; }},
      {"slice", 1, Kind::none, kAny, range, [](T x, A a) { return Tensors{slice(x[0], {a[0]}, {a[1]}, {a[2]})}; }},
      {"split", 1, Kind::none, kAny, cut,
       [](T x, A a) {
         return split(x[0], {a[1], -1}, a[0]);
       }},
      {"concat", 2, Kind::none, kAny, joined_axis,
       [](T x, A a) {
         return Tensors{concat({x[0], x[1]}, a[0])};
       }},
      {"stack", 2, Kind::none, kAny, alike,
       [](T x, A) {
         return Tensors{stack({x[0], x[1]}, 0)};
       }},
      {"expand", 1, Kind::none, kAny, small,
       [](T x, A) {
         IntArray shape{2};
         for (int d = 0; d < x[0].dims().rank(); ++d) shape.push_back(-1);
         return Tensors{expand(x[0], shape)};
       }},
      {"tile", 1, Kind::none, kAny, small_axis,
       [](T x, A a) {
         IntArray times;
         for (int d = 0; d < x[0].dims().rank(); ++d) times.push_back(d == a[0] ? 2 : 1);
         return Tensors{tile(x[0], times)};
       }},
      {"tril", 1, Kind::none, kAny, diagonal, [](T x, A a) { return Tensors{tril(x[0], to_int(a[0]))}; }},
      {"reshape", 1, Kind::view, kAny, other_shape, [](T x, A a) { return Tensors{reshape(x[0], a)}; }},
      {"flatten", 1, Kind::view, kAny, at_least_2_dims, [](T x, A) { return Tensors{flatten(x[0], 0, -1)}; }},
      {"unsqueeze", 1, Kind::view, kAny, new_axis, [](T x, A a) { return Tensors{unsqueeze(x[0], a)}; }},
      {"squeeze", 1, Kind::view, kAny, axis_of_1, [](T x, A a) { return Tensors{squeeze(x[0], a)}; }},
      {"detach", 1, Kind::view | Kind::impure, kAny, always, [](T x, A) { return Tensors{x[0].detach()}; }},
      {"reshard", 1, Kind::reshard, kAny, layout_seed, nullptr},
  };
}

std::vector<Kind> in_place() {
  return {
      unary_("tanh_", kAny, tanh_),
      unary_("sin_", 20, sin_),
      unary_("square_", 6, square_),
      unary_("sigmoid_", kAny, sigmoid_),
      unary_("relu_", kAny, relu_, Kind::bent),
      {"scale_", 1, Kind::writes, kAny, factor,
       [](T x, A a) {
         return scale_(x[0], 0.25 * static_cast<double>(a[0]), 0.5 * static_cast<double>(a[1])), Tensors{};
       }},
      binary_("add_", kAny, add_),
      binary_("subtract_", kAny, subtract_),
      binary_("multiply_", 6, multiply_),
      binary_("maximum_", kAny, maximum_, Kind::bent),
      {"cumsum_", 1, Kind::writes, 10, axis, [](T x, A a) { return cumsum_(x[0], a[0]), Tensors{}; }},
      {"softmax_", 1, Kind::writes, 20, axis, [](T x, A a) { return softmax_(x[0], to_int(a[0])), Tensors{}; }},
      {"tril_", 1, Kind::writes, kAny, diagonal, [](T x, A a) { return tril_(x[0], to_int(a[0])), Tensors{}; }},
      {"transpose_", 1, Kind::writes, kAny, permutation, [](T x, A a) { return transpose_(x[0], a), Tensors{}; }},
      {"reshape_", 1, Kind::writes | Kind::view, kAny, other_shape,
       [](T x, A a) { return reshape_(x[0], a), Tensors{}; }},
  };
}

/// Infinity for a tensor that cannot be read: a view of a tensor that has another buffer now.
double largest(const Tensor& x) {
  if (x.get().value.storage()->stale()) return INFINITY;
  double most = 0;
  for (const double value : x.to_vector<double>())
    most = std::isnan(value) ? INFINITY : std::max(most, std::abs(value));
  return most;
}

Tensor copy_for_plain(const Tensor& x, uint64_t) { return assign(x); }

/// A step whose operands fit it, or nothing.
std::optional<Step> draw_step(Random& random, const ProgramValues& values, const ProgramOptions& options) {
  const Kind& kind = kinds()[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(kinds().size()) - 1))];
  if ((kind.has(Kind::bent) && !options.bent) || (kind.has(Kind::impure) && !options.impure)) return {};
  Step step{&kind, {}, {}, options.impure && pick(random, 0, 14) == 0, {}};
  Shapes shapes;
  for (size_t i = 0; i < kind.operands; ++i) {
    // The last ones are used more often.
    const int64_t last = static_cast<int64_t>(values.size()) - 1;
    const auto chosen = std::next(values.begin(), std::max(pick(random, 0, last), pick(random, 0, last)));
    step.operands.push_back(chosen->first);
    shapes.push_back(chosen->second.dims());
    if (largest(chosen->second) > kind.most) return {};
  }
  const Attributes attributes = kind.draw(random, shapes);
  if (!attributes) return {};
  step.attributes = *attributes;
  return step;
}

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> list;
    for (const auto& family : {elementwise(), combining(), rearranging(), in_place()})
      list.insert(list.end(), family.begin(), family.end());
    return list;
  }();
  return all;
}

bool RandomProgram::has(Kind::Trait trait) const {
  return std::any_of(steps.begin(), steps.end(), [&](const Step& step) { return step.kind->has(trait); });
}

std::string run_step(const Step& step, ProgramValues& values, const Mover& move) {
  Tensors operands;
  for (const int operand : step.operands) {
    const auto found = values.find(operand);
    if (found == values.end()) return "";
    operands.push_back(found->second);
  }
  try {
    const GradMode mode(!step.no_grad);
    const Tensors results = step.kind->has(Kind::reshard)
                                ? Tensors{move(operands[0], static_cast<uint64_t>(step.attributes[0]))}
                                : step.kind->run(operands, step.attributes);
    for (size_t i = 0; i < results.size(); ++i) values[step.results[i]] = results[i];
    return "";
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::autograd:      // a leaf, or a view of one, is written
      case ErrorCode::stale_view:    // what it reads is a view whose source has been written
      case ErrorCode::view_of_copy:  // it writes through a view that has parted from its source
      case ErrorCode::capture: return shard::to_string(error.code());
      default: throw;
    }
  }
}

RandomProgram draw_program(Random& random, const ProgramOptions& options) {
  RandomProgram program;
  program.seed = random();
  const int64_t m = pick(random, 1, 5), n = pick(random, 1, 5), k = pick(random, 1, 3);
  const Shapes shapes = {{m, n}, {m, n}, {n}, {n, m}, {m, 1}, {k, m, n}};
  for (int64_t leaves = pick(random, 2, 3); leaves > 0; --leaves)
    program.leaves.push_back(shapes[static_cast<size_t>(pick(random, 0, 5))]);
  ProgramValues values;
  int next = 0;
  for (const Tensor& leaf : draw_leaves(program)) values[next++] = leaf.set_requires_grad(true);
  const int64_t wanted = pick(random, 3, 12);
  for (int tries = 0; tries < 300 && static_cast<int64_t>(program.steps.size()) < wanted; ++tries) {
    std::optional<Step> step = draw_step(random, values, options);
    if (!step) continue;
    const size_t results = step->kind->has(Kind::writes) ? 0 : std::string_view(step->kind->name) == "split" ? 2 : 1;
    for (size_t i = 0; i < results; ++i) step->results.push_back(next + static_cast<int>(i));
    const std::string error = run_step(*step, values, copy_for_plain);
    if (!error.empty() && (!options.impure || pick(random, 0, 9) != 0)) continue;
    next += static_cast<int>(results);
    program.steps.push_back(*step);
  }
  std::vector<int> candidates;
  for (const auto& [number, value] : values) {
    if (value.requires_grad()) candidates.push_back(number);
  }
  const int64_t last = static_cast<int64_t>(candidates.size()) - 1;
  for (int64_t outputs = pick(random, 1, 3); outputs > 0; --outputs) {
    const int chosen = candidates[static_cast<size_t>(
        std::max({pick(random, 0, last), pick(random, 0, last), pick(random, 0, last)}))];
    if (std::find(program.outputs.begin(), program.outputs.end(), chosen) == program.outputs.end())
      program.outputs.push_back(chosen);
  }
  return program;
}

Tensors draw_leaves(const RandomProgram& program) {
  Random random(program.seed);
  Tensors leaves;
  for (const Dims& dims : program.leaves) {
    std::vector<double> values(static_cast<size_t>(dims.numel()));
    for (double& value : values) value = static_cast<double>(pick(random, -6000, 6000)) / 4096;
    leaves.push_back(Tensor::from_data(values, dims));
  }
  return leaves;
}

std::string to_string(const RandomProgram& program) {
  std::string text;
  for (size_t i = 0; i < program.leaves.size(); ++i)
    text += fmt::format("    v{} = leaf({})\n", i, shard::to_string(program.leaves[i]));
  for (const Step& step : program.steps) {
    std::string operands;
    for (const int operand : step.operands) operands += fmt::format("{}v{}", operands.empty() ? "" : ", ", operand);
    std::string results;
    for (const int result : step.results) results += fmt::format("{}v{}", results.empty() ? "" : ", ", result);
    text += fmt::format("    {}{}{}({}{})\n", results, results.empty() ? "" : " = ", step.kind->name, operands,
                        step.attributes.empty() ? "" : fmt::format("; {}", fmt::join(step.attributes, ", ")));
    if (step.no_grad) text.insert(text.size() - 1, "  // under NoGrad");
  }
  std::string outputs;
  for (const int output : program.outputs) outputs += fmt::format("{}v{}", outputs.empty() ? "" : ", ", output);
  return text + "    backward({" + outputs + "})\n";
}

RandomProgram shrink(RandomProgram program, const std::function<bool(const RandomProgram&)>& fails) {
  const auto drop = [&](auto list) {
    bool dropped = false;
    for (size_t i = (program.*list).size(); i-- > 0;) {
      RandomProgram less = program;
      (less.*list).erase((less.*list).begin() + static_cast<std::ptrdiff_t>(i));
      if (!fails(less)) continue;
      program = std::move(less);
      dropped = true;
    }
    return dropped;
  };
  for (bool dropped = true; dropped;) {
    dropped = drop(&RandomProgram::steps);
    dropped = drop(&RandomProgram::outputs) || dropped;
  }
  return program;
}

}  // namespace shard::test
