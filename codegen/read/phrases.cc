// Reads the smaller languages. Each function reads a whole scalar and reports remaining text.
#include "read/phrases.h"

#include <fmt/format.h>

#include "diag/suggest.h"
#include "read/literal.h"

namespace shardgen {
namespace {

/// The kinds of tensors up to `end`. An unknown kind is kept for check/kernel.cc.
bool read_formats(Cursor& cursor, std::vector<TensorFormat>& formats, std::vector<Name>& unknown,
                  std::string_view end) {
  while (!cursor.eat(end)) {
    if (!formats.empty() && !cursor.expect(",", "the kind of a tensor")) return false;
    const std::optional<Name> word = cursor.expect_word("the kind of a tensor");
    if (!word) return false;
    formats.push_back(parse_tensor_format(word->text).value_or(TensorFormat::unknown));
    if (formats.back() == TensorFormat::unknown) unknown.push_back(*word);
  }
  return true;
}

std::optional<KernelFunc> read_kernel_func(Cursor& cursor) {
  const std::optional<Name> name = cursor.expect_word("the name of a kernel");
  if (!name) return std::nullopt;
  KernelFunc func;
  func.name = *name;
  func.has_formats = cursor.eat("{");
  if (func.has_formats && (!read_formats(cursor, func.inputs, func.unknown, "->") ||
                           !read_formats(cursor, func.outputs, func.unknown, "}"))) {
    return std::nullopt;
  }
  return func;
}

std::optional<Candidate> read_candidate(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::optional<Name> word = cursor.expect_word("the name of an argument", true);
  if (!word) return std::nullopt;
  Candidate candidate;
  candidate.name = *word;
  if (word->text.starts_with("DataType::")) {
    candidate.constant = parse_data_type(word->text.substr(10));  // check/references.cc reports an unknown one
    return candidate;
  }
  if (!cursor.eat("(")) return candidate;
  if (word->text != "complex") {
    cursor.fail_at(
        begin, fmt::format("Unknown function '{}' of a data type{}", word->text, suggestion(word->text, {"complex"})),
        "unknown-type");
    return std::nullopt;
  }
  const std::optional<Name> inner = cursor.expect_word("the name of an argument");
  if (!inner || !cursor.expect(")", "the argument of 'complex'")) return std::nullopt;
  candidate.name = *inner;
  candidate.to_complex = true;
  return candidate;
}

/// A name, a constant, or `x.dtype()`; false for anything else.
bool read_known_arg(Cursor& cursor, CallArg& arg) {
  const char next = cursor.peek();
  const bool letter = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || next == '_';
  // A word is an argument of the op unless it is one of the constants that look like words.
  Cursor ahead = cursor;
  const std::string word = letter ? ahead.word(true).text : "";
  const bool constant = !letter || word == "true" || word == "false" || word == "INT64_MAX" ||
                        word.starts_with("DataType::") || ahead.peek() == '(';
  if (constant) {
    arg.name.at = cursor.here();
    arg.kind = CallArg::Kind::literal;
    std::optional<Literal> literal = read_literal(cursor);
    if (!literal) return false;
    arg.literal = std::move(*literal);
    return true;
  }
  arg.name = cursor.word();
  if (!cursor.eat(".")) return true;
  arg.kind = CallArg::Kind::dtype_of;
  return cursor.expect("dtype()", "'" + arg.name.text + ".'");
}

/// An argument up to one of `ends`. Text that cannot be read is kept unchanged, and
/// check/references.cc reports it.
CallArg read_call_arg(Cursor& cursor, std::string_view ends) {
  CallArg arg;
  Cursor ahead = cursor;
  if (const std::string word = ahead.word().text; !word.empty() && ahead.eat("=") && ahead.peek() != '=') {
    arg.keyword = word;
    cursor = ahead;
  }
  Cursor rest = cursor;
  const Name text = rest.raw_until(ends);
  DiagnosticSink problems;
  Cursor probe = cursor.with_sink(problems);
  arg.name.at = text.at;
  if (!read_known_arg(probe, arg) || probe.offset() != rest.offset()) {
    arg.kind = CallArg::Kind::literal;
    if (std::optional<Literal> value = evaluate_number(text.text)) {
      arg.literal = std::move(*value);
      cursor.rewind(rest.offset());
      return arg;
    }
    const std::string problem = text.text.empty()
                                    ? "An argument is missing here: add one, or remove the comma."
                                    : fmt::format("'{}' is not a name, a constant or 'x.dtype()'.", text.text);
    arg.literal = {Opaque{"syntax", problem, text.at}, text.text};
  }
  cursor.rewind(rest.offset());
  return arg;
}

std::optional<ReduceKind> read_reduce_kind(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::string word = cursor.word().text;
  const std::optional<ReduceKind> kind = parse_reduce_kind(word);
  if (!kind) {
    cursor.fail_at(begin, fmt::format("Unknown reduction '{}'{}", word, suggestion(word, reduce_kind_names())),
                   "unknown-type");
  }
  return kind;
}

}  // namespace

std::vector<AliasPair> read_alias_pairs(Cursor& cursor) {
  std::vector<AliasPair> pairs;
  do {
    if (!cursor.expect("(", pairs.empty() ? "the key" : "','")) return pairs;
    // PaddlePaddle's files have a bracket for each pair, or one for all.
    do {
      const std::optional<Name> input = cursor.expect_word("the name of an argument");
      if (!input || !cursor.expect("->", "'" + input->text + "'")) return pairs;
      const std::optional<Name> output = cursor.expect_word("the name of an output");
      if (!output) return pairs;
      pairs.push_back({*input, *output});
    } while (cursor.eat(","));
    if (!cursor.expect(")", "'" + pairs.back().output.text + "'")) return pairs;
  } while (cursor.eat(","));
  cursor.expect_end("the pairs");
  return pairs;
}

std::vector<KernelFunc> read_kernel_funcs(Cursor& cursor) {
  std::vector<KernelFunc> funcs;
  do {
    std::optional<KernelFunc> func = read_kernel_func(cursor);
    if (!func) return funcs;
    funcs.push_back(std::move(*func));
    // PaddlePaddle's files sometimes omit the comma after a brace, or have one at the end.
  } while ((cursor.eat(",") || funcs.back().has_formats) && !cursor.at_end());
  cursor.expect_end("the kernels");
  return funcs;
}

DispatchKey read_dispatch_key(Cursor& cursor) {
  DispatchKey key;
  key.at = cursor.here();
  const bool braces = cursor.eat("{");
  do {
    std::optional<Candidate> candidate = read_candidate(cursor);
    if (!candidate) return key;
    key.candidates.push_back(std::move(*candidate));
    const size_t separator = cursor.offset();
    if (cursor.eat(">")) {
      key.ordered = true;
    } else if (!cursor.eat(",")) {
      break;
    }
    if (cursor.at_end()) {
      cursor.sink().warning(
          cursor.at(separator), "stray-character",
          fmt::format("No candidate follows '{}': remove it.", cursor.text_between(separator, separator + 1)));
      break;
    }
  } while (true);
  key.ordered = key.ordered && key.candidates.size() > 1;
  if (braces) cursor.expect("}", "the candidates");
  cursor.expect_end("the candidates");
  return key;
}

std::optional<Call> read_call(Cursor& cursor) {
  Call call;
  const std::optional<Name> function = cursor.expect_word("the name of a function");
  if (!function || !cursor.expect("(", "'" + function->text + "'")) return std::nullopt;
  call.function = *function;
  while (!cursor.eat(")")) {
    if (!call.args.empty() && !cursor.expect(",", "an argument")) return std::nullopt;
    call.args.push_back(read_call_arg(cursor, ",)"));
  }
  cursor.expect_end("the call");
  if (cursor.failed()) return std::nullopt;
  return call;
}

std::vector<CallArg> read_call_args(Cursor& cursor) {
  std::vector<CallArg> args;
  do {
    if (cursor.at_end()) {
      cursor.fail("Expected the name of an argument or a constant, found the end.");
      return args;
    }
    args.push_back(read_call_arg(cursor, ","));
  } while (cursor.eat(","));
  return args;
}

namespace {

/// `a || b`, `a && b`, `!a`, `(a)`. C++ has the same precedence, so the terms are kept in their
/// order.
bool read_terms(Cursor& cursor, std::vector<Condition::Term>& terms) {
  using Kind = Condition::Term::Kind;
  const auto symbol = [&](std::string_view text) {
    const Location at = cursor.here();
    if (!cursor.eat(text)) return false;
    terms.push_back({Kind::symbol, {std::string(text), at}});
    return true;
  };
  do {
    while (symbol("!")) {}
    if (symbol("(")) {
      if (!read_terms(cursor, terms) || !cursor.expect(")", "the condition")) return false;
      terms.push_back({Kind::symbol, {")", cursor.here()}});
      continue;
    }
    std::optional<Name> name = cursor.expect_word("an attribute, or wanted(..) of a result");
    if (!name) return false;
    if (name->text == "wanted" && cursor.eat("(")) {
      name = cursor.expect_word("a result");
      if (!name || !cursor.expect(")", "the result")) return false;
      terms.push_back({Kind::wanted, *name});
    } else {
      terms.push_back({Kind::attr, *name});
    }
  } while (symbol("&&") || symbol("||"));
  return true;
}

}  // namespace

std::optional<Condition> read_condition(Cursor& cursor) {
  Condition condition;
  if (!read_terms(cursor, condition.terms)) return std::nullopt;
  cursor.expect_end("the condition");
  return cursor.failed() ? std::nullopt : std::optional(std::move(condition));
}

std::optional<Partial> read_partial(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::string word = cursor.word().text;
  const std::optional<PartialKind> kind = parse_partial_kind(word);
  if (!kind) {
    cursor.fail_at(begin,
                   fmt::format("Unknown value '{}' of 'partial'{}", word, suggestion(word, partial_kind_names())),
                   "bad-value");
    return std::nullopt;
  }
  std::optional<Partial> partial = Partial{*kind, {}, begin};
  if (cursor.eat("(")) {
    if (cursor.peek() == ')') cursor.fail("Name the reductions between '(' and ')', or remove the parentheses.");
    while (!cursor.eat(")")) {
      if (!partial->types.empty() && !cursor.expect(",", "a reduction")) return std::nullopt;
      const std::optional<ReduceKind> type = read_reduce_kind(cursor);
      if (!type) return std::nullopt;
      partial->types.push_back(*type);
    }
  }
  cursor.expect_end("the value");
  return cursor.failed() ? std::nullopt : partial;
}

}  // namespace shardgen
