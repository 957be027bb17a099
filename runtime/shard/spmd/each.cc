// Axis expressions that begin with "each:": every entry of the lists of a call has layouts of its own, as if there were a
// call for each.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// Splits the arguments of a call into those of the entries of its lists, and puts their results together.
class Entries {
 public:
  Entries(const RuleArgs& args, const AxisExpr& expr, std::string_view text) : args_(args), expr_(expr), text_(text) {
    const auto list = std::find_if(expr.inputs.begin(), expr.inputs.end(), [](const AxisTerm& t) { return t.list; });
    count_ = args.slots[static_cast<size_t>(list - expr.inputs.begin())].count;
  }

  RuleResult infer() const {
    RuleResult all = infer_replicated(args_);
    std::vector<bool> reduces(static_cast<size_t>(args_.mesh->rank()));
    for (size_t i = 0; i < count_; ++i) {
      const RuleResult one = infer_entry(i);
      for (size_t s = 0; s < args_.slots.size(); ++s) {
        if (const auto at = find(args_.slots[s], expr_.inputs[s], i))
          put(i, args_.slots[s], one.inputs[s], all.inputs[*at]);
      }
      for (size_t s = 0; s < args_.output_slots.size(); ++s) {
        if (const auto at = find(args_.output_slots[s], expr_.outputs[s], i))
          put(i, args_.output_slots[s], one.outputs[s], all.outputs[*at]);
      }
      all.fetches = all.fetches || one.fetches;
      for (int k = 0; k < one.reduce_axes.size(); ++k) reduces[static_cast<size_t>(one.reduce_axes[k])] = true;
    }
    for (int axis = 0; axis < args_.mesh->rank(); ++axis) {
      if (reduces[static_cast<size_t>(axis)]) all.reduce_axes.push_back(axis);
    }
    return all;
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const {
    fail(ErrorCode::layout, "[{}] axis expression \"{}\" ({}): {}", args_.op.name, text_, args_.op.location, problem);
  }
  /// The layout of entry i, or of what all entries have in common: there `shard: partial:` of an op may make them differ.
  void put(size_t i, const SlotRange& slot, const Layout& layout, Layout& to) const {
    if (i > 0 && slot.count == 1 && !(layout == to))
      refuse("entries of the lists need different layouts of a tensor that they have in common");
    to = layout;
  }
  /// The flat position of what entry `i` has in a slot; nothing where it is absent. A tensor in no list, and the only one
  /// of a list of numbers, is that of all entries.
  std::optional<size_t> find(const SlotRange& slot, const AxisTerm& term, size_t i) const {
    if (slot.count == 0) return std::nullopt;
    if (term.list && slot.count == count_) return slot.first + i;
    if (slot.count == 1 && (!term.list || term.is_one())) return slot.first;
    refuse(fmt::format("a list has {} tensors where another has {}; only a list whose term is [1] can have one for all",
                       slot.count, count_));
  }

  RuleResult infer_entry(size_t i) const {
    std::vector<TensorArg> tensors;
    std::vector<Meta> outputs;
    std::vector<const DistSpec*> wanted;
    std::vector<SlotRange> slots, output_slots;
    RuleArgs entry = args_;
    entry.pinned.clear();
    for (size_t s = 0; s < args_.slots.size(); ++s) {
      const auto at = find(args_.slots[s], expr_.inputs[s], i);
      slots.push_back({tensors.size(), 1});
      tensors.push_back(at ? args_.tensors[*at] : TensorArg{});
      entry.pinned.push_back(at && *at < args_.pinned.size() && args_.pinned[*at]);
    }
    for (size_t s = 0; s < args_.output_slots.size(); ++s) {
      const auto at = find(args_.output_slots[s], expr_.outputs[s], i);
      output_slots.push_back({outputs.size(), 1});
      outputs.push_back(at ? args_.outputs[*at] : Meta{});
      if (!args_.wanted.empty()) wanted.push_back(at ? args_.wanted[*at] : nullptr);
    }
    entry.tensors = tensors;
    entry.slots = slots;
    entry.outputs = outputs;
    entry.output_slots = output_slots;
    entry.wanted = wanted;
    return solve(entry, from_expression(entry, expr_, text_));
  }

  const RuleArgs& args_;
  const AxisExpr& expr_;
  std::string_view text_;
  size_t count_ = 0;
};

}  // namespace

RuleResult infer_by_expression(const RuleArgs& args, std::string_view expression) {
  const AxisExpr& expr = parsed(args, expression);
  const bool fits = expr.inputs.size() == args.slots.size() && expr.outputs.size() == args.output_slots.size();
  if (expr.each && fits) return Entries(args, expr, expression).infer();
  return solve(args, from_expression(args, expr, expression));
}

}  // namespace shard::spmd
