// Derives the expression of a backward op from that of its forward op: each tensor keeps the term
// of the tensor that it belongs to.
#include <algorithm>

#include "shard/core/axis_expr.h"

namespace shard {
namespace {

const AxisTerm* find_term(const std::vector<AxisTerm>& terms, const std::vector<std::string>& names,
                          std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  const auto index = static_cast<size_t>(found - names.begin());
  return index < terms.size() && found != names.end() ? &terms[index] : nullptr;
}

/// The name without "_grad", or nothing.
std::string_view base_of(std::string_view name) {
  constexpr std::string_view suffix = "_grad";
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : std::string_view();
}

bool is_sum(const std::optional<ReduceType>& type) { return !type || *type == ReduceType::sum; }

/// A sum passes its gradient to every summand alike. Another reduction depends on all values at
/// once (which is the largest, what is the product of the others), so its axis must not be sharded.
/// Nor must one over which the forward kernel combines values: whether the kernel of the gradient does
/// so too is for a rule of its own to say.
AxisTerm without_types(AxisTerm term) {
  for (Axis& axis : term.axes) {
    axis.whole = axis.whole || axis.combined || !is_sum(axis.type);
    axis.combined = false;
    axis.type.reset();
    std::erase_if(axis.marks,
                  [](const AxisMark& mark) { return mark.kind == AxisMark::Kind::reduce && is_sum(mark.type); });
    for (AxisMark& mark : axis.marks) {
      if (mark.kind != AxisMark::Kind::reduce && mark.kind != AxisMark::Kind::combined) continue;
      mark.kind = AxisMark::Kind::whole;
      mark.type.reset();
    }
  }
  return term;
}

}  // namespace

std::optional<AxisExpr> gradient_of(const AxisExpr& forward, const SlotNames& forward_slots,
                                    const SlotNames& backward_slots) {
  AxisExpr gradient;
  gradient.each = forward.each;
  bool only_gradients = true;
  for (const std::string& name : backward_slots.inputs) {
    const AxisTerm* term = find_term(forward.inputs, forward_slots.inputs, name);
    if (term == nullptr) term = find_term(forward.outputs, forward_slots.outputs, name);
    const bool read = std::find(backward_slots.shape_only.begin(), backward_slots.shape_only.end(), name) ==
                      backward_slots.shape_only.end();
    only_gradients = only_gradients && (term == nullptr || !read);
    if (term == nullptr) term = find_term(forward.outputs, forward_slots.outputs, base_of(name));
    if (term == nullptr) return std::nullopt;
    gradient.inputs.push_back(without_types(*term));
  }
  for (const std::string& name : backward_slots.outputs) {
    const AxisTerm* term = find_term(forward.inputs, forward_slots.inputs, base_of(name));
    if (term == nullptr) return std::nullopt;
    gradient.outputs.push_back(without_types(*term));
    // A tensor that is replicated for all indices gets the sum of their gradients.
    if (term->is_one()) gradient.outputs.back().axes[0].type = ReduceType::sum;
  }
  // A gradient is linear in the gradients of outputs. If it reads other values too, no kind of
  // commutation holds.
  if (only_gradients) gradient.commutation = Commutation{};
  if (find_problem(gradient)) return std::nullopt;
  return gradient;
}

}  // namespace shard
