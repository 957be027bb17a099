// Names the dims of a call's tensors by the letters of an axis expression. core/axis_expr.cc parses
// expressions.
#include <map>
#include <mutex>

#include "shard/core/axis_expr.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

[[noreturn]] void fail_expression(const RuleArgs& args, std::string_view text, std::string_view problem) {
  fail(ErrorCode::layout, "[{}] axis expression \"{}\" ({}): {}", args.op.name, text, args.op.location, problem);
}

/// A tensor of the call and its term; the term is null for an absent one.
struct Bound {
  const AxisTerm* term = nullptr;
  const Dims* dims = nullptr;
};

const AxisMark* moving_mark(const AxisTerm& term) {
  const Axis* ellipsis = term.ellipsis();
  if (ellipsis == nullptr) return nullptr;
  for (const AxisMark& mark : ellipsis->marks) {
    if (mark.moves()) return &mark;
  }
  return nullptr;
}

class Builder {
 public:
  Builder(const RuleArgs& args, const AxisExpr& expr, std::string_view text) : args_(args), text_(text) {
    if (expr.inputs.size() != args.slots.size()) refuse("its number of inputs is not that of the op");
    if (expr.outputs.size() != args.output_slots.size()) refuse("its number of outputs is not that of the op");
    for (size_t s = 0; s < expr.inputs.size(); ++s) {
      for (size_t i = 0; i < args.slots[s].count; ++i) {
        const TensorArg& tensor = args.tensors[args.slots[s].first + i];
        inputs_.push_back({tensor.spec ? &expr.inputs[s] : nullptr, &tensor.meta.dims});
      }
    }
    for (size_t s = 0; s < expr.outputs.size(); ++s) {
      const AxisTerm* term = is_absent_output(args, s) ? nullptr : &expr.outputs[s];
      for (size_t i = 0; i < args.output_slots[s].count; ++i) {
        outputs_.push_back({term, &args.outputs[args.output_slots[s].first + i].dims});
      }
    }
  }

  Notation build() {
    for (const Bound& input : inputs_) choose_optional(input);
    add_ellipsis();
    for (const auto* tensors : {&inputs_, &outputs_}) {
      for (const Bound& tensor : *tensors) mark_roles(tensor);
    }
    for (const Bound& input : inputs_) measure(input);
    for (const Bound& input : inputs_) notation_.inputs.push_back(assign(input));
    for (const Bound& output : outputs_) {
      notation_.outputs.push_back(assign(output));
      notation_.uniform.push_back(output.term != nullptr && output.term->is_one() && !output.term->axes[0].type);
    }
    mark_reduced();
    return std::move(notation_);
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const { fail_expression(args_, text_, problem); }
  [[noreturn]] void refuse_shape(const Dims& dims, std::string_view problem) const {
    refuse("a tensor of shape " + to_string(dims) + " " + std::string(problem));
  }
  Letter& letter_at(int letter) { return notation_.letters[static_cast<size_t>(letter)]; }
  /// Terms without dims, those of absent tensors and "1", have no influence.
  static bool names_dims(const Bound& tensor) { return tensor.term != nullptr && !tensor.term->is_one(); }
  bool has(const Axis& axis) const {
    if (!axis.optional) return true;
    const auto found = optional_.find(axis.name);
    return found != optional_.end() && found->second;
  }
  /// The number of dims that the named axes of a term leave for "...".
  int spread(const Bound& tensor) const {
    int rank = tensor.dims->rank();
    for (const Axis& axis : tensor.term->axes) rank -= axis.kind != Axis::Kind::ellipsis && has(axis) ? 1 : 0;
    if (rank < 0) refuse_shape(*tensor.dims, "has too few dims for it");
    return rank;
  }

  /// The number of dims of the first tensor with an optional axis decides whether the op has that
  /// axis.
  void choose_optional(const Bound& tensor) {
    if (!names_dims(tensor)) return;
    int spare = tensor.dims->rank();
    std::vector<std::string_view> open;
    for (const Axis& axis : tensor.term->axes) {
      if (axis.optional && optional_.find(axis.name) == optional_.end()) open.push_back(axis.name);
      else if (axis.kind != Axis::Kind::ellipsis && has(axis)) --spare;
    }
    const bool all = spare >= static_cast<int>(open.size());
    if (!all && spare > 0) refuse_shape(*tensor.dims, "does not determine which of its optional axes it has");
    for (const std::string_view name : open) optional_[name] = all;
  }

  // --- attributes that name dims of "..."

  IntArray values_of(std::string_view attr) const {
    return std::holds_alternative<IntArray>(args_.attr(attr)) ? args_.integers(attr) : IntArray{args_.integer(attr)};
  }

  /// The dims, of `rank` dims, that a mark names. An empty list names all; a tensor without dims
  /// has none to name.
  std::vector<bool> named_dims(const AxisMark& mark, int rank) const {
    const IntArray values = values_of(mark.attr);
    std::vector<bool> named(static_cast<size_t>(rank), values.empty());
    for (const int64_t value : values) {
      if (rank == 0) break;
      const int dim = normalize_axis(args_.op.name, mark.attr, value, rank);
      for (int d = dim; d < (mark.onward ? rank : dim + 1); ++d) named[static_cast<size_t>(d)] = true;
    }
    return named;
  }

  bool keeps_size_one(const AxisMark& mark) const { return !mark.flag.empty() && args_.flag(mark.flag); }

  /// "..." stands for as many dims as in the widest input. Inputs that lack dims determine the
  /// number only where no other input does.
  void add_ellipsis() {
    int direct = -1;
    int implied = -1;
    for (const Bound& input : inputs_) {
      if (!names_dims(input) || input.term->ellipsis() == nullptr) continue;
      const AxisMark* mark = moving_mark(*input.term);
      const int width = spread(input);
      if (mark == nullptr || mark->kind == AxisMark::Kind::permuted || keeps_size_one(*mark)) {
        direct = std::max(direct, width);
        continue;
      }
      const int named = static_cast<int>(values_of(mark->attr).size());
      if (mark->kind == AxisMark::Kind::added) direct = std::max(direct, width - named);
      else if (named > 0 && !mark->onward) implied = std::max(implied, width + named);
      else implied = std::max(implied, 0);
    }
    const int rank = direct >= 0 ? direct : std::max(implied, 0);
    for (int d = 0; d < rank; ++d) ellipsis_.push_back(notation_.add({Letter::Role::map, ReduceType::sum, 1}));
  }

  /// The letters of "..." in a term with all dims, after applying its marks.
  std::vector<int> ellipsis_letters(const AxisTerm& term) const {
    const AxisMark* mark = moving_mark(term);
    if (mark == nullptr) return ellipsis_;
    const int rank = static_cast<int>(ellipsis_.size());
    std::vector<int> letters;
    if (mark->kind == AxisMark::Kind::permuted) {
      const IntArray order = values_of(mark->attr);
      if (static_cast<int>(order.size()) != rank)
        refuse("attribute '" + mark->attr + "' does not list each dim of '...' once");
      for (const int64_t value : order) {
        letters.push_back(ellipsis_[static_cast<size_t>(normalize_axis(args_.op.name, mark->attr, value, rank))]);
      }
    } else if (mark->kind == AxisMark::Kind::added) {
      const std::vector<bool> added = named_dims(*mark, rank + static_cast<int>(values_of(mark->attr).size()));
      size_t next = 0;
      for (const bool is_new : added)
        letters.push_back(is_new || next == ellipsis_.size() ? kNoLetter : ellipsis_[next++]);
    } else {
      const std::vector<bool> removed = named_dims(*mark, rank);
      for (size_t d = 0; d < removed.size(); ++d) {
        if (!removed[d]) letters.push_back(ellipsis_[d]);
        else if (keeps_size_one(*mark)) letters.push_back(kNoLetter);
      }
    }
    return letters;
  }

  // --- letters

  int named_letter(const Axis& axis) {
    if (axis.kind == Axis::Kind::one) return kNoLetter;
    const auto [found, added] = named_.try_emplace(axis.name, -1);
    if (added) found->second = notation_.add({Letter::Role::map, ReduceType::sum, 1});
    return found->second;
  }

  void mark_roles(const Bound& tensor) {
    if (!names_dims(tensor)) return;
    for (const Axis& axis : tensor.term->axes) {
      if (axis.kind == Axis::Kind::name && has(axis))
        set_role(named_letter(axis), role_of(axis.whole, axis.combined), axis.type);
      if (axis.kind == Axis::Kind::ellipsis && (axis.whole || axis.combined)) {
        // What is combined over all dims is a few values, not some for each line.
        for (const int letter : ellipsis_)
          set_role(letter, axis.whole ? Letter::Role::whole : Letter::Role::collective, {});
      }
      for (const AxisMark& mark : axis.marks) {
        if (mark.moves()) continue;
        const std::vector<bool> named = named_dims(mark, static_cast<int>(ellipsis_.size()));
        for (size_t d = 0; d < named.size(); ++d) {
          if (named[d])
            set_role(ellipsis_[d], role_of(mark.kind == AxisMark::Kind::whole, mark.kind == AxisMark::Kind::combined),
                     mark.type);
        }
      }
    }
  }
  static Letter::Role role_of(bool whole, bool combined) {
    return whole ? Letter::Role::whole : combined ? Letter::Role::combined : Letter::Role::map;
  }
  /// What one term says of a letter holds in all: one mark is enough, and whole overrides combined.
  void set_role(int letter, Letter::Role role, std::optional<ReduceType> type) {
    Letter::Role& now = letter_at(letter).role;
    if (role == Letter::Role::whole || now == Letter::Role::map) now = role;
    if (type) letter_at(letter).type = *type;
  }

  /// The letter of each dim of a tensor, kNoLetter for "1" and new dims.
  std::vector<int> letters_of(const Bound& tensor) {
    const int width = spread(tensor);
    if (width > 0 && tensor.term->ellipsis() == nullptr) refuse_shape(*tensor.dims, "has too many dims for it");
    std::vector<int> letters;
    for (const Axis& axis : tensor.term->axes) {
      if (axis.kind != Axis::Kind::ellipsis) {
        if (has(axis)) letters.push_back(named_letter(axis));
        continue;
      }
      const std::vector<int> all = ellipsis_letters(*tensor.term);
      if (width > static_cast<int>(all.size()))
        refuse_shape(*tensor.dims, "has more dims than '...' has in the inputs");
      letters.insert(letters.end(), all.end() - width, all.end());
    }
    const std::vector<Axis>& axes = tensor.term->axes;
    // A tensor that lacks one of the two has nothing to swap.
    const std::string& flag = tensor.term->transpose;
    if (!flag.empty() && has(axes[axes.size() - 1]) && has(axes[axes.size() - 2]) && args_.flag(flag)) {
      std::swap(letters[letters.size() - 1], letters[letters.size() - 2]);
    }
    return letters;
  }

  /// The size of a letter is the largest of its dims, because dims of size 1 broadcast.
  void measure(const Bound& input) {
    if (!names_dims(input)) return;
    const std::vector<int> letters = letters_of(input);
    for (size_t d = 0; d < letters.size(); ++d) {
      if (letters[d] == kNoLetter) continue;
      int64_t& size = letter_at(letters[d]).size;
      if (size == 1) size = (*input.dims)[static_cast<int>(d)];
    }
  }

  std::vector<int> assign(const Bound& tensor) {
    if (!names_dims(tensor)) return std::vector<int>(static_cast<size_t>(tensor.dims->rank()), kNoLetter);
    std::vector<int> letters = letters_of(tensor);
    for (size_t d = 0; d < letters.size(); ++d) {
      const bool one = (*tensor.dims)[static_cast<int>(d)] == 1;
      if (letters[d] != kNoLetter && one && letter_at(letters[d]).size != 1) letters[d] = kNoLetter;
    }
    return letters;
  }

  /// A letter is reduced where an output lacks it: it has not its name or its position in "...", or
  /// its dim of size 1 was broadcast.
  void mark_reduced() {
    for (size_t i = 0; i < notation_.letters.size(); ++i) {
      Letter& letter = notation_.letters[i];
      if (letter.role != Letter::Role::map) continue;
      for (size_t o = 0; o < outputs_.size(); ++o) {
        if (outputs_[o].term != nullptr && !notation_.has(o, static_cast<int>(i))) letter.role = Letter::Role::reduce;
      }
    }
  }

  const RuleArgs& args_;
  std::string_view text_;
  std::vector<Bound> inputs_;
  std::vector<Bound> outputs_;
  Notation notation_;
  std::map<std::string_view, int> named_;
  std::map<std::string_view, bool> optional_;  // decisions: whether the op has that axis in this call
  std::vector<int> ellipsis_;
};

}  // namespace

const AxisExpr& parsed(const RuleArgs& args, std::string_view expression) {
  static std::mutex mutex;
  static std::map<std::string, AxisExpr, std::less<>> cache;
  const std::lock_guard lock(mutex);
  const auto found = cache.find(expression);
  if (found != cache.end()) return found->second;
  AxisProblem problem;
  std::optional<AxisExpr> expr = parse_axis_expr(expression, problem);
  if (!expr) fail_expression(args, expression, "column " + std::to_string(problem.at + 1) + ": " + problem.message);
  return cache.emplace(expression, std::move(*expr)).first->second;
}

Notation from_expression(const RuleArgs& args, const AxisExpr& expr, std::string_view text) {
  return Builder(args, expr, text).build();
}

}  // namespace shard::spmd
