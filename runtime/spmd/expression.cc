// Reads axis expressions ("b m k, k n -> b m n") and names the dims of a call's tensors by them.
#include <map>

#include "spmd/notation.h"

namespace shard::spmd {
namespace {

struct Token {
  std::string_view name;  // empty for "..."
  bool whole = false;     // "!k" or "1"
};
using Term = std::vector<Token>;

[[noreturn]] void fail_expression(const RuleArgs& args, std::string_view expression, std::string_view problem) {
  fail(ErrorCode::layout, "[{}] axis expression \"{}\" ({}): {}", args.op.name, expression, args.op.location, problem);
}

std::vector<Term> parse_terms(std::string_view text) {
  std::vector<Term> terms(1);
  while (!text.empty()) {
    if (text.front() == ' ') {
      text.remove_prefix(1);
    } else if (text.front() == ',') {
      terms.emplace_back();
      text.remove_prefix(1);
    } else if (text.starts_with("...")) {
      terms.back().push_back({});
      text.remove_prefix(3);
    } else {
      const size_t end = std::min(text.find_first_of(" ,"), text.size());
      const bool marked = text.front() == '!';
      const std::string_view name = text.substr(marked ? 1 : 0, end - (marked ? 1 : 0));
      terms.back().push_back({name, marked || name == "1"});
      text.remove_prefix(end);
    }
  }
  return terms;
}

class Builder {
 public:
  Builder(const RuleArgs& args, std::string_view expression) : args_(args), expression_(expression) {
    const size_t arrow = expression.find("->");
    inputs_ = parse_terms(expression.substr(0, arrow));
    outputs_ = parse_terms(expression.substr(arrow + 2));
  }

  Notation build() {
    if (inputs_.size() != args_.slots.size()) fail_expression(args_, expression_, "it has another number of inputs than the op");
    if (outputs_.size() != args_.output_slots.size()) fail_expression(args_, expression_, "it has another number of outputs than the op");
    measure();
    for (size_t s = 0; s < inputs_.size(); ++s) {
      for (size_t i = 0; i < args_.slots[s].count; ++i) {
        const TensorArg& tensor = args_.tensors[args_.slots[s].first + i];
        notation_.inputs.push_back(tensor.spec ? assign(inputs_[s], tensor.meta.dims) : std::vector<int>());
      }
    }
    for (size_t s = 0; s < outputs_.size(); ++s) {
      for (size_t i = 0; i < args_.output_slots[s].count; ++i) {
        notation_.outputs.push_back(assign(outputs_[s], args_.outputs[args_.output_slots[s].first + i].dims));
      }
    }
    mark_reduced();
    return std::move(notation_);
  }

 private:
  static bool scalar_term(const Term& term) { return term.size() == 1 && term[0].name == "1"; }

  int spread(const Term& term, const Dims& dims) const {
    // The dims that "..." stands for.
    const int named = static_cast<int>(term.size()) - 1;
    if (dims.rank() < named) fail_expression(args_, expression_, "a tensor of shape " + to_string(dims) + " has too few dims for it");
    return dims.rank() - named;
  }

  /// Finds the size of every letter: the largest, as dims of size 1 broadcast.
  void measure() {
    for (size_t s = 0; s < inputs_.size(); ++s) {
      for (size_t i = 0; i < args_.slots[s].count; ++i) {
        const TensorArg& tensor = args_.tensors[args_.slots[s].first + i];
        if (tensor.spec && !scalar_term(inputs_[s])) measure(inputs_[s], tensor.meta.dims);
      }
    }
  }

  void measure(const Term& term, const Dims& dims) {
    int d = 0;
    for (const Token& token : term) {
      if (!token.name.empty()) {
        if (d == dims.rank()) fail_expression(args_, expression_, "a tensor of shape " + to_string(dims) + " has too few dims for it");
        letter(token, dims[d++]);
        continue;
      }
      const int count = spread(term, dims);
      for (int k = 0; k < count; ++k) ellipsis_letter(count - 1 - k, dims[d++]);
    }
    if (d != dims.rank()) fail_expression(args_, expression_, "a tensor of shape " + to_string(dims) + " has too many dims for it");
  }

  int letter(const Token& token, int64_t size) {
    if (token.name == "1") return kNoLetter;
    const auto [found, added] = named_.try_emplace(token.name, -1);
    if (added) found->second = notation_.add({Letter::Role::map, ReduceType::sum, size});
    if (token.whole) notation_.letters[static_cast<size_t>(found->second)].role = Letter::Role::whole;
    return grow(found->second, size);
  }
  /// "..." dims are aligned at the right: `from_right` 0 is the last one.
  int ellipsis_letter(int from_right, int64_t size) {
    while (static_cast<int>(ellipsis_.size()) <= from_right) ellipsis_.push_back(notation_.add({Letter::Role::map, ReduceType::sum, 1}));
    return grow(ellipsis_[static_cast<size_t>(from_right)], size);
  }
  int grow(int letter, int64_t size) {
    int64_t& known = notation_.letters[static_cast<size_t>(letter)].size;
    if (known == 1) known = size;
    return letter;
  }

  std::vector<int> assign(const Term& term, const Dims& dims) {
    std::vector<int> letters;
    if (scalar_term(term)) return std::vector<int>(static_cast<size_t>(dims.rank()), kNoLetter);
    int d = 0;
    const auto push = [&](int letter) {
      if (d == dims.rank()) fail_expression(args_, expression_, "a tensor of shape " + to_string(dims) + " has too few dims for it");
      const bool broadcast = letter == kNoLetter || (dims[d] == 1 && notation_.letters[static_cast<size_t>(letter)].size != 1);
      letters.push_back(broadcast ? kNoLetter : letter);
      ++d;
    };
    for (const Token& token : term) {
      if (!token.name.empty()) {
        push(known_letter(token));
        continue;
      }
      const int count = spread(term, dims);
      if (count > static_cast<int>(ellipsis_.size())) fail_expression(args_, expression_, "an output of shape " + to_string(dims) + " has more dims than the inputs give");
      for (int k = 0; k < count; ++k) push(ellipsis_[static_cast<size_t>(count - 1 - k)]);
    }
    if (d != dims.rank()) fail_expression(args_, expression_, "a tensor of shape " + to_string(dims) + " has too many dims for it");
    return letters;
  }

  int known_letter(const Token& token) {
    if (token.name == "1") return kNoLetter;
    const auto found = named_.find(token.name);
    if (found == named_.end()) fail_expression(args_, expression_, "axis '" + std::string(token.name) + "' of an output is in no input");
    if (token.whole) notation_.letters[static_cast<size_t>(found->second)].role = Letter::Role::whole;
    return found->second;
  }

  /// Letters that no output has are summed over.
  void mark_reduced() {
    std::vector<bool> kept(notation_.letters.size(), false);
    for (const auto& output : notation_.outputs) {
      for (int letter : output) {
        if (letter != kNoLetter) kept[static_cast<size_t>(letter)] = true;
      }
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      Letter& letter = notation_.letters[i];
      if (!kept[i] && letter.role == Letter::Role::map) letter.role = Letter::Role::reduce;
    }
  }

  const RuleArgs& args_;
  std::string_view expression_;
  std::vector<Term> inputs_;
  std::vector<Term> outputs_;
  Notation notation_;
  std::map<std::string_view, int> named_;
  std::vector<int> ellipsis_;
};

}  // namespace

Notation from_expression(const RuleArgs& args, std::string_view expression) { return Builder(args, expression).build(); }

}  // namespace shard::spmd
