// Prints signatures in the language of op YAML; read/signature.cc parses them.
#include "model/print.h"

namespace shardgen {
namespace {

std::string attr_to_string(const Attr& attr) {
  std::string text(attr.type == AttrType::unknown ? attr.unknown.text : yaml_name(attr.type));
  if (attr.scalar_of) text += "(" + std::string(yaml_name(*attr.scalar_of)) + ")";
  text += " " + attr.name.text;
  if (attr.default_value) text += "=" + attr.default_value->spelling;
  return text;
}

}  // namespace

std::string size_to_string(const std::vector<SizeTerm>& terms) {
  std::string text;
  for (const SizeTerm& term : terms) {
    if (!text.empty()) {
      text += term.negative ? " - " : " + ";
    } else if (term.negative) {
      text += "-";
    }
    switch (term.kind) {
      case SizeTerm::Kind::constant: text += std::to_string(term.constant); break;
      case SizeTerm::Kind::opaque:
      case SizeTerm::Kind::value: text += term.name.text; break;
      case SizeTerm::Kind::length: text += term.name.text + ".size()"; break;
    }
  }
  return text;
}

namespace {

std::string output_to_string(const Output& output) {
  std::string text = output.unknown.text.empty() ? "Tensor" : output.unknown.text;
  if (output.list) text += "[]";
  if (output.named) text += "(" + output.name.text + (output.kind.empty() ? "" : "@" + output.kind) + ")";
  if (!output.size.empty()) text += "{" + size_to_string(output.size) + "}";
  return text;
}

}  // namespace

std::string args_to_string(const Signature& signature) {
  std::string text;
  for (const ArgRef arg : signature.args) {
    if (!text.empty()) text += ", ";
    if (arg.tensor) {
      const Input& input = signature.inputs[arg.index];
      text += (input.list ? "Tensor[] " : "Tensor ") + input.name.text;
    } else {
      text += attr_to_string(signature.attrs[arg.index]);
    }
  }
  return "(" + text + ")";
}

std::string outputs_to_string(const Signature& signature) {
  std::string text;
  for (const Output& output : signature.outputs) text += (text.empty() ? "" : ", ") + output_to_string(output);
  return text;
}

std::string to_string(const std::string& name, const Signature& signature) {
  return name + args_to_string(signature) + " -> " + outputs_to_string(signature);
}

std::string condition_text(const Condition& condition,
                           const std::function<std::string(const Condition::Term&)>& spell) {
  std::string text;
  for (const Condition::Term& term : condition.terms) {
    if (term.kind != Condition::Term::Kind::symbol) text += spell(term);
    else text += term.name.text == "&&" || term.name.text == "||" ? " " + term.name.text + " " : term.name.text;
  }
  return text;
}

std::string condition_text(const Condition& condition) {
  return condition_text(condition, [](const Condition::Term& term) {
    return term.kind == Condition::Term::Kind::wanted ? "wanted(" + term.name.text + ")" : term.name.text;
  });
}

}  // namespace shardgen
