// Finds contradictions within an axis expression, whatever the op. The tool checks that it fits an
// op's signature, spmd/expression.cc that it fits a call's tensors.
#include <algorithm>

#include "shard/core/axis_expr.h"

namespace shard {
namespace {

using Problem = std::optional<AxisProblem>;

std::string quote_name(std::string_view text) { return "'" + std::string(text) + "'"; }

const Axis* find_axis(const std::vector<AxisTerm>& terms, std::string_view name) {
  for (const AxisTerm& term : terms) {
    for (const Axis& axis : term.axes) {
      if (axis.kind == Axis::Kind::name && axis.name == name) return &axis;
    }
  }
  return nullptr;
}

bool has_ellipsis(const std::vector<AxisTerm>& terms) {
  return std::any_of(terms.begin(), terms.end(), [](const AxisTerm& term) { return term.ellipsis() != nullptr; });
}

Problem find_in_marks(const Axis& ellipsis) {
  const AxisMark* moving = nullptr;
  for (const AxisMark& mark : ellipsis.marks) {
    if (!mark.moves()) continue;
    if (moving != nullptr) {
      return AxisProblem{
          mark.at, "Braces can contain one of '-axis', '+axis' and '@perm', because their order would be ambiguous."};
    }
    moving = &mark;
  }
  return std::nullopt;
}

Problem find_in_term(const AxisTerm& term) {
  const Axis* ellipsis = nullptr;
  for (size_t i = 0; i < term.axes.size(); ++i) {
    const Axis& axis = term.axes[i];
    if (axis.kind == Axis::Kind::ellipsis) {
      if (ellipsis != nullptr) return AxisProblem{axis.at, "A term can contain '...' only once."};
      ellipsis = &axis;
      if (Problem problem = find_in_marks(axis)) return problem;
    }
    if (axis.kind == Axis::Kind::name && (axis.whole || axis.combined) && axis.type) {
      return AxisProblem{axis.at, "Axis " + quote_name(axis.name) +
                                      (axis.whole ? " is never sharded, so a reduction type has no meaning on it."
                                                  : " is combined by the kernel, so a reduction type has no meaning.")};
    }
    for (size_t k = 0; k < i && axis.kind == Axis::Kind::name; ++k) {
      if (term.axes[k].name == axis.name)
        return AxisProblem{axis.at, "Axis " + quote_name(axis.name) + " occurs in one term twice."};
    }
  }
  const size_t count = term.axes.size();
  const auto named = [&](size_t back) { return count >= back && term.axes[count - back].kind == Axis::Kind::name; };
  if (!term.transpose.empty() && !(named(1) && named(2))) {
    return AxisProblem{term.transpose_at,
                       "'^" + term.transpose + "' swaps the last two axes, so the term must end in two names."};
  }
  return std::nullopt;
}

/// An axis must be optional everywhere or nowhere, and its types must agree.
Problem find_in_uses(const AxisExpr& expr, const Axis& axis) {
  for (const auto* terms : {&expr.inputs, &expr.outputs}) {
    for (const AxisTerm& term : *terms) {
      for (const Axis& other : term.axes) {
        if (other.kind != Axis::Kind::name || other.name != axis.name) continue;
        if (other.optional != axis.optional) {
          return AxisProblem{axis.at, "Axis " + quote_name(axis.name) + " has a '?' in one term but not in another."};
        }
        if (axis.type && other.type && *other.type != *axis.type) {
          return AxisProblem{axis.at, "Axis " + quote_name(axis.name) + " is reduced by '" + to_string(*other.type) +
                                          "' in one term and by '" + to_string(*axis.type) + "' in another."};
        }
      }
    }
  }
  return std::nullopt;
}

/// A typed axis is reduced, so no output may have it.
Problem find_in_types(const AxisExpr& expr, const Axis& axis) {
  if (axis.kind == Axis::Kind::one && axis.type) {
    return AxisProblem{axis.at,
                       "'1' can have a reduction type in an output only, where it is a sum over what is sharded."};
  }
  if (axis.kind == Axis::Kind::name && axis.type && find_axis(expr.outputs, axis.name) != nullptr) {
    return AxisProblem{axis.at, "Axis " + quote_name(axis.name) + " has a type of reduction, but an output keeps it."};
  }
  for (const AxisMark& mark : axis.marks) {
    if (mark.kind != AxisMark::Kind::reduce) continue;
    for (const AxisTerm& output : expr.outputs) {
      const Axis* kept = output.ellipsis();
      const auto removes = [&](const AxisMark& other) {
        return other.kind == AxisMark::Kind::removed && other.attr == mark.attr && other.onward == mark.onward;
      };
      if (kept == nullptr || std::any_of(kept->marks.begin(), kept->marks.end(), removes)) continue;
      return AxisProblem{mark.at, "The dims of " + quote_name(mark.attr) +
                                      " are reduced, but an output keeps them; write '...{-" + mark.attr + "}' there."};
    }
  }
  return std::nullopt;
}

/// A tensor that all entries of the lists have in common cannot be sharded, or be pending, as one of them is.
Problem find_in_each(const AxisExpr& expr) {
  const auto is_list = [](const AxisTerm& term) { return term.list; };
  const auto is_one = [](const Axis& axis) { return axis.kind == Axis::Kind::one; };
  if (std::none_of(expr.inputs.begin(), expr.inputs.end(), is_list)) {
    return AxisProblem{expr.inputs[0].at, "'each:' needs an input that is a list, a term in square brackets."};
  }
  for (const auto* terms : {&expr.inputs, &expr.outputs}) {
    for (const AxisTerm& term : *terms) {
      const bool shared = std::all_of(term.axes.begin(), term.axes.end(), is_one);
      if (!term.list && !shared)
        return AxisProblem{term.at, "With 'each:', a tensor that is in no list belongs to all entries; write '1'."};
      if (shared && term.is_one() && term.axes[0].type)
        return AxisProblem{term.at, "With 'each:', no sum over the entries of a list can be pending; write '1'."};
      if (shared && expr.commutation)
        return AxisProblem{expr.commutation->at,
                           "With 'each:', an op whose entries have a tensor in common, '1', "
                           "cannot commute with reductions."};
    }
  }
  return std::nullopt;
}

Problem find_in_output(const AxisExpr& expr, const AxisTerm& term, const Axis& axis) {
  const bool dims = axis.kind == Axis::Kind::ellipsis;
  const bool known =
      axis.kind == Axis::Kind::one || (dims ? has_ellipsis(expr.inputs) : find_axis(expr.inputs, axis.name) != nullptr);
  if (!known)
    return AxisProblem{axis.at, "Axis " + quote_name(dims ? "..." : axis.name) + " of an output occurs in no input."};
  if (axis.type && !(term.is_one() && *axis.type == ReduceType::sum)) {
    return AxisProblem{
        axis.at,
        "A type of reduction belongs to an axis of an input; in an output only '1:sum' has one, alone in its term."};
  }
  for (const AxisMark& mark : axis.marks) {
    if (mark.kind == AxisMark::Kind::reduce) {
      return AxisProblem{mark.at, "A reduction belongs to an input; an output is written '-" + mark.attr + "'."};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<AxisProblem> find_problem(const AxisExpr& expr) {
  if (expr.each) {
    if (Problem problem = find_in_each(expr)) return problem;
  }
  for (const auto* terms : {&expr.inputs, &expr.outputs}) {
    for (const AxisTerm& term : *terms) {
      if (Problem problem = find_in_term(term)) return problem;
      for (const Axis& axis : term.axes) {
        if (axis.kind != Axis::Kind::name) continue;
        if (Problem problem = find_in_uses(expr, axis)) return problem;
      }
    }
  }
  for (const AxisTerm& term : expr.outputs) {
    for (const Axis& axis : term.axes) {
      if (Problem problem = find_in_output(expr, term, axis)) return problem;
    }
  }
  for (const AxisTerm& term : expr.inputs) {
    for (const Axis& axis : term.axes) {
      if (Problem problem = find_in_types(expr, axis)) return problem;
    }
  }
  return std::nullopt;
}

}  // namespace shard
