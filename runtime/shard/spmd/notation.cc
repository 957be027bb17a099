#include "shard/spmd/notation.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace shard::spmd {
namespace {

/// The assignment of one mesh axis: it shards a letter, has a pending reduction, or neither.
struct Choice {
  int letter = kNoLetter;
  std::optional<ReduceType> partial;
};

// As in the reshard planner: a start-up cost per collective, in bytes.
constexpr double kStartBytes = 50'000;
// What most kernels all-reduce for each line that they combine: two numbers of 8 bytes, as softmax and argmax do. Others
// need 8 to 24 bytes.
constexpr double kLineBytes = 16;
// The target of an in-place write is resharded, or even sliced, only where nothing else is correct.
constexpr double kPinnedBytes = 1e18;
// Resharding an argument that the first output follows changes the layout of that output too, and
// its readers would have to reshard it back.
constexpr double kLeadFactor = 2;
// Only ops that compute nothing commute with every reduction.
constexpr unsigned kAllReduceTypes = (1u << kNumReduceTypes) - 1;

class Solver {
 public:
  Solver(const RuleArgs& args, const Notation& notation)
      : args_(args), notation_(notation), commuting_(commuting(args)) {}

  RuleResult run() {
    std::vector<Choice> choices;
    for (int axis = 0; axis < args_.mesh->rank(); ++axis) choices.push_back(choose(axis));
    order_axes(choices);
    return result_of(choices);
  }

  RuleResult run_reverse(std::span<const DistSpec* const> wanted) {
    std::vector<Choice> choices(static_cast<size_t>(args_.mesh->rank()));
    for (int axis = 0; axis < args_.mesh->rank(); ++axis) {
      Choice& choice = choices[static_cast<size_t>(axis)];
      for (size_t o = 0; o < wanted.size() && choice.letter == kNoLetter; ++o) {
        const int dim = wanted[o] == nullptr ? -1 : wanted[o]->layout().dim_of(axis);
        const int letter = dim < 0 ? kNoLetter : notation_.outputs[o][static_cast<size_t>(dim)];
        if (letter != kNoLetter && role(letter) != Letter::Role::whole) choice.letter = letter;
      }
    }
    axes_.assign(notation_.letters.size(), {});
    for (size_t o = 0; o < wanted.size(); ++o) {
      if (wanted[o] != nullptr) take_order(*wanted[o], notation_.outputs[o], choices);
    }
    return result_of(choices);
  }

 private:
  RuleResult result_of(const std::vector<Choice>& choices) const {
    RuleResult result;
    for (size_t t = 0; t < args_.tensors.size(); ++t) result.inputs.push_back(input_layout(t, choices));
    for (size_t o = 0; o < args_.outputs.size(); ++o) result.outputs.push_back(output_layout(o, choices));
    for (size_t letter = 0; letter < notation_.letters.size(); ++letter) {
      const Letter::Role role = notation_.letters[letter].role;
      const bool fetched = fetches(static_cast<int>(letter)) && axes_[letter].size() > 0;
      result.fetches = result.fetches || fetched;
      if (role != Letter::Role::collective && role != Letter::Role::combined && !fetched) continue;
      for (int i = 0; i < axes_[letter].size(); ++i) result.reduce_axes.push_back(axes_[letter][i]);
    }
    return result;
  }

  Letter::Role role(int letter) const { return notation_.letters[static_cast<size_t>(letter)].role; }
  bool fetches(int letter) const {
    return std::any_of(notation_.fetches.begin(), notation_.fetches.end(),
                       [&](const Fetch& fetch) { return fetch.letter == letter && present(fetch.input); });
  }
  bool present(size_t t) const { return args_.tensors[t].spec != nullptr; }
  bool leads(size_t t) const { return !notation_.outputs.empty() && notation_.inputs[t] == notation_.outputs[0]; }
  bool kept(int letter) const {
    for (size_t o = 0; o < notation_.outputs.size(); ++o) {
      if (notation_.has(o, letter)) return true;
    }
    return false;
  }
  bool pinned(size_t t) const { return t < args_.pinned.size() && args_.pinned[t]; }
  int dim_with(const std::vector<int>& letters, int letter) const {
    const auto found = std::find(letters.begin(), letters.end(), letter);
    return letter == kNoLetter || found == letters.end() ? -1 : static_cast<int>(found - letters.begin());
  }
  int letter_of(size_t t, int axis) const {
    const int dim = args_.tensors[t].spec->layout().dim_of(axis);
    return dim < 0 ? kNoLetter : notation_.inputs[t][static_cast<size_t>(dim)];
  }

  /// The possible choices for an axis, in the order that decides ties.
  std::vector<Choice> candidates(int axis) const {
    std::vector<Choice> all;
    for (size_t t = 0; t < args_.tensors.size(); ++t) {
      if (!present(t)) continue;
      const int letter = letter_of(t, axis);
      const bool known = std::any_of(all.begin(), all.end(), [&](const Choice& c) { return c.letter == letter; });
      if (letter != kNoLetter && !known && role(letter) != Letter::Role::whole) all.push_back({letter, {}});
    }
    if (const auto type = partial_candidate(axis)) all.push_back({kNoLetter, type});
    all.push_back({});
    return all;
  }

  /// The type with which all arguments can be partial on this axis, where the op commutes with it.
  std::optional<ReduceType> partial_candidate(int axis) const {
    std::optional<ReduceType> type;
    DType dtype = DType::boolean;  // of the pending argument
    int count = 0;
    for (size_t t = 0; t < args_.tensors.size(); ++t) {
      if (!present(t)) continue;
      const auto mine = args_.tensors[t].spec->partial(axis);
      if (!mine) continue;
      if (type && *type != *mine) return std::nullopt;
      type = mine;
      dtype = args_.tensors[t].meta.dtype;
      ++count;
    }
    if (!type || (commuting_.types >> static_cast<int>(*type) & 1u) == 0) return std::nullopt;
    if (commuting_.how == Commutes::multilinear && count > 1) return std::nullopt;
    // An average of integers is truncated, so only ops that move elements without computing commute
    // with it.
    const bool cut_off = is_mean(*type) && !is_floating(dtype);
    if (cut_off && commuting_.types != kAllReduceTypes) return std::nullopt;
    // Any and all map numbers to 0 or 1, so a number that is not a contribution yet cannot become
    // one.
    const bool logical = is_logical(*type) && dtype != DType::boolean;
    return (cut_off || logical) && count < present_count() ? std::nullopt : type;
  }

  int present_count() const {
    int count = 0;
    for (size_t t = 0; t < args_.tensors.size(); ++t) count += present(t);
    return count;
  }

  Choice choose(int axis) const {
    Choice best;
    double best_cost = std::numeric_limits<double>::infinity();
    for (const Choice& choice : candidates(axis)) {
      const double cost = cost_of(axis, choice);
      if (cost < best_cost) {
        best = choice;
        best_cost = cost;
      }
    }
    return best;
  }

  double cost_of(int axis, const Choice& choice) const {
    double cost = 0;
    for (size_t t = 0; t < args_.tensors.size(); ++t) {
      if (!present(t)) continue;
      const double bytes =
          move_cost(t, axis, dim_with(notation_.inputs[t], choice.letter), wanted_partial(t, axis, choice));
      cost += pinned(t) && bytes > 0 ? kPinnedBytes : leads(t) ? kLeadFactor * bytes : bytes;
    }
    for (size_t t = 0; t < args_.tensors.size(); ++t) {
      if (pinned(t) && present(t)) cost += write_back_cost(t, axis, choice);
    }
    return cost + combining_cost(axis, choice.letter) + fetching_cost(axis, choice.letter);
  }

  /// What a rank sends of shards that reach into the windows of others.
  double fetching_cost(int axis, int letter) const {
    double cost = 0;
    for (const Fetch& fetch : notation_.fetches) {
      const double part = fetch.part[static_cast<size_t>(axis)];
      if (fetch.letter == letter && part > 0 && present(fetch.input))
        cost += kStartBytes + part * bytes_beside(fetch.input, axis);
    }
    return cost;
  }

  /// What a kernel sends that combines values for each line along the letter.
  double combining_cost(int axis, int letter) const {
    if (letter == kNoLetter || role(letter) != Letter::Role::combined) return 0;
    double lines = 0;
    for (size_t t = 0; t < args_.tensors.size(); ++t) {
      if (present(t) && dim_with(notation_.inputs[t], letter) >= 0) lines = std::max(lines, local_lines(t, axis));
    }
    const double n = args_.mesh->size(axis);
    const auto gathered = static_cast<double>(notation_.letters[static_cast<size_t>(letter)].gathered);
    return kStartBytes + lines * (n - 1) * (gathered > 0 ? gathered : 2 * kLineBytes / n);
  }

  /// The lines of tensor `t` that a rank has: the elements of its dims over which nothing is combined.
  double local_lines(size_t t, int axis) const {
    double lines = 1;
    for (size_t d = 0; d < notation_.inputs[t].size(); ++d) {
      const int letter = notation_.inputs[t][d];
      if (letter != kNoLetter && role(letter) == Letter::Role::combined) continue;
      lines *= static_cast<double>(args_.tensors[t].meta.dims[static_cast<int>(d)]);
      for (int a = 0; a < args_.mesh->rank(); ++a) {
        if (a != axis && args_.tensors[t].spec->layout().dim_of(a) == static_cast<int>(d)) lines /= args_.mesh->size(a);
      }
    }
    return lines;
  }

  std::optional<ReduceType> wanted_partial(size_t t, int axis, const Choice& choice) const {
    if (!choice.partial) return std::nullopt;
    if (commuting_.how == Commutes::multilinear && !args_.tensors[t].spec->partial(axis)) return std::nullopt;
    return choice.partial;
  }

  /// Bytes that a rank sends to reshard tensor `t` from its state on `axis` to sharding `dim` (or
  /// none) or being partial.
  double move_cost(size_t t, int axis, int dim, std::optional<ReduceType> partial) const {
    const Layout& now = args_.tensors[t].spec->layout();
    const int now_dim = now.dim_of(axis);
    const auto now_partial = now.partial[static_cast<size_t>(axis)];
    if (now_dim == dim && now_partial == partial) return 0;
    if (now_dim < 0 && !now_partial) return 1;  // a local slice or start value
    const double n = args_.mesh->size(axis);
    const double share = bytes_beside(t, axis) * (n - 1) / n;
    if (now_partial) return kStartBytes + (dim >= 0 ? share : 2 * share);
    return kStartBytes + (dim >= 0 ? share / n : share);
  }

  /// The bytes of tensor `t` that the ranks along `axis` have together.
  double bytes_beside(size_t t, int axis) const {
    const Layout& now = args_.tensors[t].spec->layout();
    double bytes = static_cast<double>(args_.tensors[t].meta.bytes());
    for (int a = 0; a < args_.mesh->rank(); ++a) {
      if (a != axis && now.dim_of(a) >= 0) bytes /= args_.mesh->size(a);
    }
    return bytes;
  }

  /// The result of an in-place op must return to the target's layout: a pending result is reduced
  /// where the target is not pending.
  double write_back_cost(size_t t, int axis, const Choice& choice) const {
    const bool reduces =
        choice.letter != kNoLetter && role(choice.letter) == Letter::Role::reduce && !kept(choice.letter);
    if (!reduces && !choice.partial) return 0;
    return args_.tensors[t].spec->partial(axis)
               ? 0
               : kStartBytes + 2.0 * static_cast<double>(args_.tensors[t].meta.bytes());
  }

  /// Several axes on one letter keep the order of the first argument that has them; the in-place
  /// target comes first.
  void order_axes(const std::vector<Choice>& choices) {
    axes_.assign(notation_.letters.size(), {});
    const auto visit = [&](size_t t) {
      if (present(t)) take_order(*args_.tensors[t].spec, notation_.inputs[t], choices);
    };
    for (size_t t = 0; t < args_.tensors.size(); ++t) {
      if (pinned(t)) visit(t);
    }
    for (size_t t = 0; t < args_.tensors.size(); ++t) visit(t);
  }

  /// Appends to each letter the axes that were chosen for it and with which `spec` shards it, in
  /// the order of `spec`.
  void take_order(const DistSpec& spec, const std::vector<int>& letters, const std::vector<Choice>& choices) {
    for (size_t d = 0; d < letters.size(); ++d) {
      if (letters[d] == kNoLetter) continue;
      const AxisList& axes = spec.axes(static_cast<int>(d));
      AxisList& list = axes_[static_cast<size_t>(letters[d])];
      for (int i = 0; i < axes.size(); ++i) {
        if (choices[static_cast<size_t>(axes[i])].letter == letters[d] && !list.contains(axes[i]))
          list.push_back(axes[i]);
      }
    }
  }

  Layout sharded(const std::vector<int>& letters) const {
    Layout layout(args_.mesh, static_cast<int>(letters.size()));
    for (size_t d = 0; d < letters.size(); ++d) {
      if (letters[d] != kNoLetter) layout.dims[d] = axes_[static_cast<size_t>(letters[d])];
    }
    return layout;
  }

  Layout input_layout(size_t t, const std::vector<Choice>& choices) const {
    if (!present(t)) return Layout(args_.mesh, args_.tensors[t].meta.dims.rank());
    Layout layout = sharded(notation_.inputs[t]);
    for (int axis = 0; axis < args_.mesh->rank(); ++axis) {
      layout.partial[static_cast<size_t>(axis)] = wanted_partial(t, axis, choices[static_cast<size_t>(axis)]);
    }
    return layout;
  }

  Layout output_layout(size_t o, const std::vector<Choice>& choices) const {
    Layout layout = sharded(notation_.outputs[o]);
    for (int axis = 0; axis < args_.mesh->rank(); ++axis) {
      const Choice& choice = choices[static_cast<size_t>(axis)];
      auto& partial = layout.partial[static_cast<size_t>(axis)];
      partial = choice.partial;
      if (choice.letter == kNoLetter || role(choice.letter) != Letter::Role::reduce) continue;
      const bool uniform = o < notation_.uniform.size() && notation_.uniform[o] && kept(choice.letter);
      if (!uniform && !notation_.has(o, choice.letter))
        partial = notation_.letters[static_cast<size_t>(choice.letter)].type;
    }
    return layout;
  }

  const RuleArgs& args_;
  const Notation& notation_;
  Commuting commuting_;
  std::vector<AxisList> axes_;  // for each letter
};

}  // namespace

RuleResult solve(const RuleArgs& args, const Notation& notation) {
  for (size_t t = 0; t < args.tensors.size(); ++t) {
    const int rank = args.tensors[t].meta.dims.rank();
    if (args.tensors[t].spec == nullptr || notation.inputs[t].size() == static_cast<size_t>(rank)) continue;
    fail(ErrorCode::shape_mismatch, "[{}] argument {} has {} dims, but its placement rule names {}", args.op.name, t,
         rank, notation.inputs[t].size());
  }
  if (args.solver != nullptr) return args.solver->solve(args, notation);
  return args.wanted.empty() ? Solver(args, notation).run() : solve_reverse(args, notation, args.wanted);
}

RuleResult solve_reverse(const RuleArgs& args, const Notation& notation, std::span<const DistSpec* const> outputs) {
  return Solver(args, notation).run_reverse(outputs);
}

std::vector<int> fresh_letters(Notation& notation, const Dims& dims, Letter::Role role) {
  std::vector<int> letters;
  for (int64_t size : dims) letters.push_back(notation.add({role, ReduceType::sum, size}));
  return letters;
}

}  // namespace shard::spmd
