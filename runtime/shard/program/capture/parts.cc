#include "shard/program/capture/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "shard/core/error.h"
#include "shard/program/ir/rewrite.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

std::vector<size_t> up_to(size_t count) {
  std::vector<size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  return numbers;
}

bool can_split(const Program& backward) {
  if (backward.plain_draws != 0 || backward.world_draws != 0) return false;
  for (const Op& op : backward.ops) {
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] != 0 && op.writes[o] && backward.value(backward.value(op.outputs[o]).root).op < 0) return false;
    }
  }
  return true;
}

/// Makes part.program, the ops of `backward` that compute part.wanted, and lists the inputs and
/// parameters that these read in part.inputs and part.parameters.
void extract(const Program& backward, BackwardPart& part) {
  Program chosen = backward;
  chosen.outputs.clear();
  for (const size_t i : part.wanted) chosen.outputs.push_back(backward.outputs[i]);
  // This also removes collectives: a part is the same on all ranks, and the other parts have their
  // own.
  chosen = dce_with_collectives(chosen);
  std::vector<bool> used(chosen.value_count(), false);  // by root
  for (const Op& op : chosen.ops) {
    for (const Operand& input : op.inputs) used[chosen.value(input.value).root] = true;
  }
  for (const Named& output : chosen.outputs) used[chosen.value(output.value).root] = true;
  Rewriter copy(chosen, part.program);
  const auto enter = [&](const std::vector<Named>& from, std::vector<Named>& to, std::vector<size_t>& numbers) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].value == 0 || !used[chosen.value(from[i].value).root]) continue;
      copy.enter(from[i], to);
      numbers.push_back(i);
    }
  };
  enter(chosen.inputs, part.program.inputs, part.inputs);
  enter(chosen.parameters, part.program.parameters, part.parameters);
  for (size_t i = 0; i < chosen.ops.size(); ++i) copy.copy(i);
  copy.leave_all();
}

/// Copies a backward program without the ops that only absent gradients lead to. Its own inputs
/// come first, then the zeros.
class Narrowing {
 public:
  /// `given`: for each gradient of an output, whether it is present. These are the inputs after the
  /// residuals.
  Narrowing(const Split& split, const std::vector<bool>& given)
      : program_(split.backward), copy_(program_, result_), source_(program_.value_count(), Source::neither) {
    for (size_t i = 0; i < given.size(); ++i)
      source_[program_.inputs[split.residuals.size() + i].value] = given[i] ? Source::given : Source::absent;
    source_[0] = Source::neither;
  }

  /// `kept`: for each output, whether it has a gradient. The others have no value.
  Program run(const std::vector<bool>& kept) {
    copy_.enter_all();
    for (size_t i = 0; i < program_.ops.size(); ++i) copy(i);
    for (size_t i = 0; i < kept.size(); ++i) {
      const Named& output = program_.outputs[i];
      result_.outputs.push_back({output.name, kept[i] ? value_of(output.value) : 0});
    }
    result_.world_draws = program_.world_draws;
    result_.plain_draws = program_.plain_draws;
    result_.world_before = program_.world_before;
    result_.plain_before = program_.plain_before;
    return std::move(result_);
  }

 private:
  enum class Source : uint8_t { neither, absent, given };  // which gradients the bytes of a tree come from

  void copy(size_t i) {
    const Op& op = program_.ops[i];
    Source source = Source::neither;
    for (const Operand& input : op.inputs) source = std::max(source, source_[program_.value(input.value).root]);
    for (const ValueId id : op.outputs) {
      const ValueId root = program_.value(id).root;
      if (program_.value(root).op >= 0) source_[root] = std::max(source_[root], source);
    }
    if (source == Source::absent) return;
    for (const Operand& input : op.inputs) value_of(input.value);
    copy_.copy(i);
  }

  /// A value that is left out is replaced by zeros. A later op may write them.
  ValueId value_of(ValueId id) {
    if (id == 0 || copy_.has(id)) return copy_(id);
    const ValueId root = program_.value(id).root;
    if (!copy_.has(root)) {
      copy_.map(root, result_.add_value(program_.value(root).type));
      result_.inputs.push_back({fmt::format("zeros_{}", result_.inputs.size()), copy_(root)});
    }
    if (id != root) copy_.map(id, add_alias(result_, copy_(root), program_.value(id).type));
    return copy_(id);
  }

  const Program& program_;
  Program result_;
  Rewriter copy_;
  std::vector<Source> source_;  // by root
};

}  // namespace

std::vector<BackwardPart> parts_of(const Split& split, const TracedGradient& gradient) {
  const size_t groups = group_count(gradient);
  if (groups <= 1 || !gradient.error.empty() || !can_split(split.backward)) {
    const Program& whole = split.backward;
    return {{whole, up_to(whole.inputs.size()), up_to(whole.parameters.size()), up_to(gradient.outputs.size()),
             up_to(gradient.wanted.size())}};
  }
  std::vector<BackwardPart> parts(groups);
  for (size_t i = 0; i < gradient.outputs.size(); ++i) parts[gradient.output_groups[i]].outputs.push_back(i);
  for (size_t i = 0; i < gradient.wanted.size(); ++i) parts[gradient.wanted_groups[i]].wanted.push_back(i);
  for (BackwardPart& part : parts) {
    extract(split.backward, part);
    for (const size_t i : part.inputs) {
      if (i < split.residuals.size() ||
          std::find(part.outputs.begin(), part.outputs.end(), i - split.residuals.size()) != part.outputs.end())
        continue;
      fail(ErrorCode::internal,
           "[split] a gradient requested of one group depends on '{}', which belongs to another group",
           split.backward.inputs[i].name);
    }
  }
  return parts;
}

BackwardPart narrow(const Split& split, const TracedGradient& gradient, const BackwardPart& part,
                    const std::vector<bool>& given) {
  std::vector<bool> all_given(gradient.outputs.size(), false), kept(gradient.wanted.size(), false);
  std::set<std::pair<size_t, ValueId>>
      reached;  // by group: if several groups run as one pass, each has gradients of its own
  for (size_t i = 0; i < given.size(); ++i) {
    const size_t output = part.outputs[i];
    if (!given[i]) continue;
    all_given[output] = true;
    if (gradient.reaches.empty()) kept.assign(kept.size(), true);
    else
      for (const size_t number : gradient.reaches[output])
        reached.emplace(gradient.output_groups[output], gradient.wanted[number]);
  }
  for (const size_t i : part.wanted)
    kept[i] = kept[i] || reached.contains({gradient.wanted_groups[i], gradient.wanted[i]});
  BackwardPart narrowed{.program = {}, .inputs = {}, .parameters = {}, .outputs = part.outputs, .wanted = part.wanted};
  extract(Narrowing(split, all_given).run(kept), narrowed);
  return narrowed;
}

}  // namespace shard::program
