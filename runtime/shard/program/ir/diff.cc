#include "shard/program/ir/diff.h"

#include <fmt/format.h>

#include <algorithm>

#include "shard/program/ir/text.h"

namespace shard::program {
namespace {

using Lines = std::vector<std::string>;
using Pairs = std::vector<std::pair<size_t, size_t>>;

/// The index pairs of a longest common subsequence.
Pairs common(const Lines& a, const Lines& b) {
  size_t begin = 0, end = 0;  // the equal lines at both ends
  while (begin < std::min(a.size(), b.size()) && a[begin] == b[begin]) ++begin;
  while (end < std::min(a.size(), b.size()) - begin && a[a.size() - 1 - end] == b[b.size() - 1 - end]) ++end;
  const size_t rows = a.size() - begin - end, columns = b.size() - begin - end;
  // The length of the longest common subsequence from this position of a and of b on.
  std::vector<uint32_t> longest((rows + 1) * (columns + 1), 0);
  const auto at = [&](size_t i, size_t j) -> uint32_t& { return longest[i * (columns + 1) + j]; };
  for (size_t i = rows; i-- > 0;) {
    for (size_t j = columns; j-- > 0;)
      at(i, j) = a[begin + i] == b[begin + j] ? at(i + 1, j + 1) + 1 : std::max(at(i + 1, j), at(i, j + 1));
  }
  Pairs pairs;
  for (size_t i = 0; i < begin; ++i) pairs.emplace_back(i, i);
  for (size_t i = 0, j = 0; i < rows && j < columns;) {
    if (a[begin + i] == b[begin + j]) pairs.emplace_back(begin + i++, begin + j++);
    else if (at(i + 1, j) >= at(i, j + 1)) ++i;
    else ++j;
  }
  for (size_t i = end; i > 0; --i) pairs.emplace_back(a.size() - i, b.size() - i);
  return pairs;
}

/// The lines that only one side has, and those paired lines whose texts differ.
std::string difference(const Lines& a, const Lines& b, const Pairs& pairs) {
  std::string text;
  size_t i = 0, j = 0;
  const auto skip = [&](size_t to_i, size_t to_j) {
    for (; i < to_i; ++i) text += fmt::format("- {}\n", a[i]);
    for (; j < to_j; ++j) text += fmt::format("+ {}\n", b[j]);
  };
  for (const auto& [in_a, in_b] : pairs) {
    skip(in_a, in_b);
    if (a[in_a] != b[in_b]) skip(in_a + 1, in_b + 1);
    i = in_a + 1;
    j = in_b + 1;
  }
  skip(a.size(), b.size());
  return text;
}
std::string difference(const Lines& a, const Lines& b) { return difference(a, b, common(a, b)); }

/// A program whose values have names.
class Side {
 public:
  explicit Side(const Program& program) : program_(program), names_(program.value_count()) { names_[0] = "none"; }

  const Program& program() const { return program_; }
  const std::string& name(ValueId id) const { return names_[id]; }
  void set_name(ValueId id, const std::string& name) {
    if (id != 0) names_[id] = name;
  }
  /// Names the values that have no name yet, in program order.
  void number(std::string_view prefix) {
    int next = 0;
    const auto assign_name = [&](ValueId id) {
      if (id != 0 && names_[id].empty()) names_[id] = fmt::format("{}{}", prefix, ++next);
    };
    for (const Named& input : program_.inputs) assign_name(input.value);
    for (const Named& parameter : program_.parameters) assign_name(parameter.value);
    for (const Op& op : program_.ops) std::for_each(op.outputs.begin(), op.outputs.end(), assign_name);
  }

  /// The text of each op without the numbers of its values.
  Lines anonymous_ops() const {
    return op_lines([](ValueId id) { return std::string(id == 0 ? "none" : "%"); });
  }
  Lines ops() const {
    return op_lines([this](ValueId id) { return names_[id]; });
  }
  Lines entries() const {
    Lines lines;
    const ProcessMesh* last = nullptr;  // the texts of layouts do not name their mesh
    for (ValueId id = 1; id < program_.value_count(); ++id) {
      const DistSpec* const spec = program_.value(id).type.spec;
      if (spec == nullptr || spec->mesh() == last) continue;
      last = spec->mesh();
      if (std::find(lines.begin(), lines.end(), last->describe()) == lines.end()) lines.push_back(last->describe());
    }
    const auto add = [&](const std::vector<Named>& list, const char* what) {
      for (const Named& each : list)
        lines.push_back(fmt::format("{} {} {}", what, each.name,
                                    each.value == 0 ? "none" : value_text(program_, each.value, names())));
    };
    add(program_.inputs, "input");
    add(program_.parameters, "parameter");
    return lines;
  }
  Lines results() const {
    Lines lines;
    for (const Named& output : program_.outputs)
      lines.push_back(fmt::format("return {} {}", output.name, names_[output.value]));
    for (const GradientEffect& each : program_.gradients) {
      lines.push_back(fmt::format("gradient of {} {}", names_[each.leaf],
                                  each.gradient == 0 ? "cleared" : "is " + names_[each.gradient]));
    }
    lines.push_back(fmt::format("draws: on meshes {} after {}, plain {} after {}", program_.world_draws,
                                program_.world_before, program_.plain_draws, program_.plain_before));
    return lines;
  }

 private:
  ValueNames names() const {
    return [this](ValueId id) { return names_[id]; };
  }
  Lines op_lines(const ValueNames& name) const {
    Lines lines;
    for (const Op& op : program_.ops) {
      const bool random = op.kind == Kind::call && op.entry->op->random;
      lines.push_back(op_text(program_, op, name) + (random ? fmt::format("  # draw {}", op.draw) : ""));
    }
    return lines;
  }

  const Program& program_;
  std::vector<std::string> names_;
};

/// Gives values of inputs or parameters that have the same name on both sides the same value name.
void pair_entries(const Side& a, Side& b, std::vector<Named> Program::*list) {
  for (const Named& in_a : a.program().*list) {
    for (const Named& in_b : b.program().*list) {
      if (in_a.name == in_b.name && in_a.value != 0) b.set_name(in_b.value, a.name(in_a.value));
    }
  }
}

}  // namespace

std::string diff(const Program& first, const Program& second) {
  Side a(first), b(second);
  const Pairs ops = common(a.anonymous_ops(), b.anonymous_ops());
  a.number("%");
  pair_entries(a, b, &Program::inputs);
  pair_entries(a, b, &Program::parameters);
  for (const auto& [in_a, in_b] : ops) {
    const std::vector<ValueId>& from = first.ops[in_a].outputs;
    for (size_t i = 0; i < from.size(); ++i) b.set_name(second.ops[in_b].outputs[i], a.name(from[i]));
  }
  b.number("%b");
  return difference(a.entries(), b.entries()) + difference(a.ops(), b.ops(), ops) +
         difference(a.results(), b.results());
}

}  // namespace shard::program
