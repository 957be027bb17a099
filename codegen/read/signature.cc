// Reads argument lists and output lists; model/print.cc prints them.
#include "read/signature.h"

#include <fmt/format.h>

#include <charconv>

#include "read/literal.h"

namespace shardgen {
namespace {

struct ArgType {
  bool tensor = false;
  bool list = false;
  AttrType attr = AttrType::boolean;
  std::optional<AttrType> scalar_of;
  UnknownType unknown;
};

/// The text of a type in C++ or YAML spelling: "std::vector<int64_t>", "Scalar(int)", "float[]",
/// "const Foo&".
std::optional<Name> read_type_text(Cursor& cursor, std::string_view what) {
  const size_t begin = cursor.offset();
  const Location at = cursor.here();
  if (!cursor.expect_word(what, true)) return std::nullopt;
  const auto skip = [&](std::string_view open, std::string_view close) {
    if (!cursor.eat(open)) return true;
    cursor.raw_until(close);
    return cursor.expect(close, "a type");
  };
  if (!skip("<", ">") || !skip("(", ")")) return std::nullopt;
  while (cursor.eat("[]") || cursor.eat("*") || cursor.eat("&")) {}
  std::string text;
  for (const char c : cursor.text_between(begin, cursor.offset())) {
    if (c != ' ' && c != '\n') text += c;
  }
  return Name{text, at};
}

/// The type of an argument. An unknown type is kept with its text, and check/names.cc reports it.
std::optional<ArgType> read_arg_type(Cursor& cursor) {
  const std::optional<Name> text = read_type_text(cursor, "the type of an argument");
  if (!text) return std::nullopt;
  const std::string& name = text->text;
  ArgType type;
  if (name == "Tensor" || name == "Tensor[]") {
    type.tensor = true;
    type.list = name == "Tensor[]";
    return type;
  }
  if (name.starts_with("Scalar(") && name.ends_with(")")) {
    type.scalar_of = parse_attr_type(std::string_view(name).substr(7, name.size() - 8));
    type.attr = type.scalar_of ? AttrType::scalar : AttrType::unknown;
  } else {
    type.attr = parse_attr_type(name).value_or(AttrType::unknown);
  }
  if (type.attr == AttrType::unknown) type.unknown = {name, text->at};
  return type;
}

/// The constant after '='. Text that cannot be read is kept with the reason, and check/defaults.cc
/// reports it.
Literal read_default(Cursor& cursor) {
  Cursor rest = cursor;
  const Name text = rest.raw_until(",)");
  DiagnosticSink problems;
  Cursor probe = cursor.with_sink(problems);
  const std::optional<Literal> literal = read_literal(probe);
  if (literal && probe.offset() == rest.offset()) {
    cursor.rewind(rest.offset());
    return *literal;
  }
  if (std::optional<Literal> value = evaluate_number(text.text)) {
    cursor.rewind(rest.offset());
    return std::move(*value);
  }
  Opaque opaque{"bad-default", fmt::format("'{}' is not a constant that can be a default value.", text.text), text.at};
  if (problems.error_count() > 0) {
    const Diagnostic& first = problems.all().front();
    opaque = {first.code, first.message, first.at};
  }
  cursor.rewind(rest.offset());
  // A quote or bracket that is never closed swallows the remaining arguments.
  if (rest.at_end()) cursor.fail_as(opaque.at, opaque.code, opaque.problem);
  return {std::move(opaque), text.text};
}

bool read_arg(Cursor& cursor, Signature& signature) {
  const std::optional<ArgType> type = read_arg_type(cursor);
  if (!type) return false;
  const std::optional<Name> name = cursor.expect_word("the name of an argument");
  if (!name) return false;
  std::optional<Literal> value;
  if (cursor.eat("=")) {
    if (type->tensor) {
      cursor.fail(
          fmt::format("Tensor argument '{}' cannot have a default value; list it under 'optional'.", name->text),
          "bad-default");
      return false;
    }
    value = read_default(cursor);
  }
  if (type->tensor) {
    signature.args.push_back({true, static_cast<int>(signature.inputs.size())});
    signature.inputs.push_back({*name, type->list});
  } else {
    signature.args.push_back({false, static_cast<int>(signature.attrs.size())});
    signature.attrs.push_back({*name, type->attr, type->scalar_of, type->unknown, std::move(value)});
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

/// True when the text up to the brace is more than a sum of terms that read_size_term accepts.
bool is_expression(Cursor ahead) { return ahead.raw_until("}").text.find_first_of("?:<>[]*/%&|") != std::string::npos; }

/// "sections.size()" or "high - low + 1", after the opening brace.
bool read_size(Cursor& cursor, std::vector<SizeTerm>& terms) {
  if (is_expression(cursor)) {
    SizeTerm term;
    term.kind = SizeTerm::Kind::opaque;
    const std::optional<Name> text = cursor.expression("}");
    if (!text) return false;
    term.name = *text;
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
  const std::optional<Name> type = cursor.expect_word("an output", true);
  if (!type) return false;
  if (type->text != "Tensor") output.unknown = {type->text, at};
  output.list = cursor.eat("[]");
  output.named = cursor.eat("(");
  output.name = {"out", at};
  if (output.named) {
    const std::optional<Name> name = cursor.expect_word("the name of an output");
    if (!name) return false;
    output.name = *name;
    if (cursor.eat("@")) {
      output.dense = false;
      const std::optional<Name> kind = cursor.expect_word("the kind of a tensor");
      if (!kind) return false;
      output.kind = kind->text;
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

/// Reads outputs up to the end, or to a character that cannot be part of an output.
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
