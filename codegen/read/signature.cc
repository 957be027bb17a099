// Reads argument lists and output lists; model/print.cc is the other direction.
#include "read/signature.h"

#include <fmt/format.h>

#include <charconv>

#include "diag/suggest.h"
#include "read/literal.h"

namespace shardgen {
namespace {

std::vector<std::string_view> known_arg_types() {
  std::vector<std::string_view> names = attr_type_names();
  names.push_back("Tensor");
  names.push_back("Tensor[]");
  return names;
}

struct ArgType {
  bool tensor = false;
  bool list = false;
  AttrType attr = AttrType::boolean;
  std::optional<AttrType> scalar_of;
};

void unknown_type(Cursor& cursor, size_t begin, const std::string& type) {
  cursor.fail_at(begin, fmt::format("Unknown type '{}'{}", type, suggestion(type, known_arg_types())), "unknown-type");
}

/// "int" of "Scalar(int)", after the opening bracket.
std::optional<AttrType> read_scalar_of(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::string word = cursor.word().text;
  const std::optional<AttrType> inner = parse_attr_type(word);
  if (!inner) {
    unknown_type(cursor, begin, word);
    return std::nullopt;
  }
  if (!cursor.expect(")", "the type in 'Scalar('")) return std::nullopt;
  return inner;
}

std::optional<ArgType> read_arg_type(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::optional<Name> word = cursor.expect_word("the type of an argument");
  if (!word) return std::nullopt;
  ArgType type;
  if (word->text == "Scalar" && cursor.eat("(")) {
    type.attr = AttrType::scalar;
    type.scalar_of = read_scalar_of(cursor);
    if (!type.scalar_of) return std::nullopt;
    return type;
  }
  const std::string name = word->text + (cursor.eat("[]") ? "[]" : "");
  if (name == "Tensor" || name == "Tensor[]") {
    type.tensor = true;
    type.list = name == "Tensor[]";
    return type;
  }
  const std::optional<AttrType> attr = parse_attr_type(name);
  if (!attr) {
    unknown_type(cursor, begin, name);
    return std::nullopt;
  }
  type.attr = *attr;
  return type;
}

bool read_arg(Cursor& cursor, Signature& signature) {
  const std::optional<ArgType> type = read_arg_type(cursor);
  if (!type) return false;
  const std::optional<Name> name = cursor.expect_word("the name of an argument");
  if (!name) return false;
  std::optional<Literal> value;
  if (cursor.eat("=")) {
    if (type->tensor) {
      cursor.fail(fmt::format("Tensor argument '{}' cannot have a default value; list it under 'optional'.", name->text),
                  "bad-default");
      return false;
    }
    value = read_literal(cursor);
    if (!value) return false;
  }
  if (type->tensor) {
    signature.args.push_back({true, static_cast<int>(signature.inputs.size())});
    signature.inputs.push_back({*name, type->list});
  } else {
    signature.args.push_back({false, static_cast<int>(signature.attrs.size())});
    signature.attrs.push_back({*name, type->attr, type->scalar_of, std::move(value)});
  }
  return true;
}

bool read_size_term(Cursor& cursor, SizeTerm& term) {
  if (const std::string_view digits = cursor.number(); !digits.empty()) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), term.constant);
    if (error == std::errc() && end == digits.data() + digits.size()) return true;
    cursor.fail(fmt::format("'{}' is not a whole number.", digits));
    return false;
  }
  const std::optional<Name> name = cursor.expect_word("the length of the list");
  if (!name) return false;
  term.name = *name;
  term.kind = SizeTerm::Kind::value;
  if (cursor.eat(".")) {
    if (!cursor.expect("size()", "'" + name->text + ".'")) return false;
    term.kind = SizeTerm::Kind::length;
  }
  return true;
}

/// True when the text up to the brace is more than sums of what read_size_term reads.
bool is_expression(Cursor ahead) { return ahead.raw_until("}").text.find_first_of("?:<>[]*/%&|") != std::string::npos; }

/// "sections.size()" or "high - low + 1", after the opening brace.
bool read_size(Cursor& cursor, std::vector<SizeTerm>& terms) {
  if (is_expression(cursor)) {
    SizeTerm term;
    term.kind = SizeTerm::Kind::opaque;
    const std::optional<Name> text = cursor.expression("}");
    if (!text) return false;
    term.name = *text;
    cursor.sink().warning(term.name.at, "cpp-expression",
                          "The length is a C++ expression, which is not read: infer_meta decides.");
    terms.push_back(std::move(term));
    return cursor.expect("}", "the length of a list");
  }
  bool negative = cursor.eat("-");
  while (true) {
    SizeTerm term;
    term.negative = negative;
    if (!read_size_term(cursor, term)) return false;
    terms.push_back(std::move(term));
    if (cursor.eat("}")) return true;
    negative = cursor.eat("-");
    if (!negative && !cursor.expect("+", "the length of a list")) return false;
  }
}

bool read_output(Cursor& cursor, Output& output) {
  const size_t begin = cursor.offset();
  const Location at = cursor.here();
  const std::optional<Name> type = cursor.expect_word("an output");
  if (!type) return false;
  if (type->text != "Tensor") {
    cursor.fail_at(
        begin, fmt::format("Unknown type '{}' of an output{}", type->text, suggestion(type->text, {"Tensor", "Tensor[]"})),
        "unknown-type");
    return false;
  }
  output.list = cursor.eat("[]");
  output.named = cursor.eat("(");
  output.name = {"out", at};
  if (output.named) {
    const std::optional<Name> name = cursor.expect_word("the name of an output");
    if (!name) return false;
    output.name = *name;
    if (cursor.eat("@")) {
      output.dense = false;
      if (!cursor.expect_word("the kind of a tensor")) return false;
    }
    if (!cursor.expect(")", "the name of an output")) return false;
  }
  if (!cursor.eat("{")) return true;
  if (!output.list) {
    cursor.fail_at(begin, fmt::format("Output '{}' is a single tensor and cannot have a length.", output.name.text));
    return false;
  }
  return read_size(cursor, output.size);
}

/// Outputs up to the end or a character that cannot belong to one.
void read_output_list(Cursor& cursor, Signature& signature) {
  do {
    Output output;
    if (!read_output(cursor, output)) return;
    signature.outputs.push_back(std::move(output));
  } while (cursor.eat(","));
}

}  // namespace

void read_args(Cursor& cursor, Signature& signature) {
  if (!cursor.eat("(")) {
    cursor.fail(fmt::format("Expected '(' at the start of the arguments, found {}.", cursor.describe_next()));
    return;
  }
  if (cursor.eat(")")) return;
  do {
    if (!read_arg(cursor, signature)) return;
  } while (cursor.eat(","));
  cursor.expect(")", "the arguments");
}

void read_outputs(Cursor& cursor, Signature& signature) {
  read_output_list(cursor, signature);
  cursor.expect_end("the outputs");
}

std::optional<Forward> read_forward(Cursor& cursor) {
  Forward forward;
  const std::optional<Name> name = cursor.expect_word("the name of the forward op");
  if (!name) return std::nullopt;
  forward.name = *name;
  read_args(cursor, forward.signature);
  if (cursor.failed() || !cursor.expect("->", "the arguments")) return std::nullopt;
  read_output_list(cursor, forward.signature);
  cursor.expect_end("the outputs");
  if (cursor.failed()) return std::nullopt;
  return forward;
}

}  // namespace shardgen
