// Compares terms with slots and marks with attributes.
#include "model/rule_fit.h"

#include <fmt/format.h>

#include "diag/suggest.h"

namespace shardgen {
namespace {

bool is_integer(AttrType type) {
  return type == AttrType::int32 || type == AttrType::int64 || type == AttrType::scalar;
}
bool is_integer_list(AttrType type) {
  return type == AttrType::int_array || type == AttrType::int32_list || type == AttrType::int64_list;
}

class Fitting {
 public:
  explicit Fitting(const Op& op) : op_(op) {}

  std::vector<AxisProblem> run(const AxisExpr& expr) {
    const Signature& signature = op_.signature;
    if (expr.inputs.size() != signature.inputs.size() || expr.outputs.size() != signature.outputs.size()) {
      add(0, fmt::format("The rule has {} inputs and {} outputs, but op '{}' has {} and {}.", expr.inputs.size(),
                         expr.outputs.size(), op_.name.text, signature.inputs.size(), signature.outputs.size()));
      return std::move(problems_);
    }
    for (size_t i = 0; i < expr.inputs.size(); ++i)
      check_term(expr.inputs[i], signature.inputs[i].name.text, signature.inputs[i].list);
    for (size_t i = 0; i < expr.outputs.size(); ++i)
      check_term(expr.outputs[i], signature.outputs[i].name.text, signature.outputs[i].list);
    return std::move(problems_);
  }

 private:
  void add(size_t at, std::string message) { problems_.push_back({at, std::move(message)}); }

  void check_term(const shard::AxisTerm& term, const std::string& tensor, bool list) {
    if (list && !term.list) {
      add(term.at, fmt::format("'{}' of op '{}' is a list of tensors, so its term must be in square brackets.", tensor,
                               op_.name.text));
    } else if (!list && term.list) {
      add(term.at, fmt::format("'{}' of op '{}' is one tensor, so its term must not be in square brackets.", tensor,
                               op_.name.text));
    }
    for (const shard::Axis& axis : term.axes) {
      for (const shard::AxisMark& mark : axis.marks) check_mark(mark);
    }
    if (!term.transpose.empty()) check_flag(term.transpose_at + 1, term.transpose);
  }

  void check_mark(const shard::AxisMark& mark) {
    const bool signless = mark.kind == shard::AxisMark::Kind::reduce;
    if (const Attr* attr = find(mark.at + (signless ? 0 : 1), mark.attr)) {
      const bool wants_list = mark.kind == shard::AxisMark::Kind::permuted;
      const bool fits = (is_integer(attr->type) && !wants_list) || (is_integer_list(attr->type) && !mark.onward);
      if (!fits) {
        add(mark.at + (signless ? 0 : 1),
            fmt::format("'{}' of op '{}' cannot name dims here: it must be {}.", mark.attr, op_.name.text,
                        wants_list    ? "a list of integers"
                        : mark.onward ? "an integer"
                                      : "an integer or a list of integers"));
      }
    }
    if (!mark.flag.empty()) check_flag(mark.flag_at, mark.flag);
  }

  void check_flag(size_t at, const std::string& name) {
    const Attr* attr = find(at, name);
    if (attr == nullptr || attr->type == AttrType::boolean) return;
    add(at, fmt::format("'{}' of op '{}' decides between two shapes here, so it must be a bool.", name, op_.name.text));
  }

  /// The attribute of that name. Reports a problem if there is none.
  const Attr* find(size_t at, const std::string& name) {
    const int index = find_attr(op_.signature, name);
    if (index >= 0) return &op_.signature.attrs[static_cast<size_t>(index)];
    std::vector<std::string_view> known;
    for (const Attr& attr : op_.signature.attrs) known.push_back(attr.name.text);
    add(at, fmt::format("'{}' is not an attribute of op '{}'{}", name, op_.name.text, suggestion(name, known)));
    return nullptr;
  }

  const Op& op_;
  std::vector<AxisProblem> problems_;
};

}  // namespace

std::vector<AxisProblem> find_mismatches(const AxisExpr& expr, const Op& op) { return Fitting(op).run(expr); }

}  // namespace shardgen
