// Reads the smaller languages. Each function reads a whole scalar and reports what is left over.
#include "read/phrases.h"

#include <fmt/format.h>

#include <array>

#include "diag/suggest.h"
#include "read/literal.h"

namespace shardgen {
namespace {

bool read_formats(Cursor& cursor, std::vector<TensorFormat>& formats, std::string_view end) {
  while (!cursor.eat(end)) {
    if (!formats.empty() && !cursor.expect(",", "the kind of a tensor")) return false;
    const size_t begin = cursor.offset();
    const std::optional<Name> word = cursor.expect_word("the kind of a tensor");
    if (!word) return false;
    const std::optional<TensorFormat> format = parse_tensor_format(word->text);
    if (!format) {
      cursor.fail_at(begin,
                     fmt::format("Unknown kind of tensor '{}'{}", word->text, suggestion(word->text, tensor_format_names())),
                     "unknown-type");
      return false;
    }
    formats.push_back(*format);
  }
  return true;
}

std::optional<KernelFunc> read_kernel_func(Cursor& cursor) {
  const std::optional<Name> name = cursor.expect_word("the name of a kernel");
  if (!name) return std::nullopt;
  KernelFunc func;
  func.name = *name;
  func.has_formats = cursor.eat("{");
  if (func.has_formats && (!read_formats(cursor, func.inputs, "->") || !read_formats(cursor, func.outputs, "}"))) {
    return std::nullopt;
  }
  return func;
}

std::optional<Candidate> read_candidate(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::optional<Name> word = cursor.expect_word("the name of an argument", true);
  if (!word) return std::nullopt;
  Candidate candidate;
  if (word->text.starts_with("DataType::")) {
    const std::string name = word->text.substr(10);
    candidate.constant = parse_data_type(name);
    if (candidate.constant) return candidate;
    cursor.fail_at(begin, fmt::format("Unknown data type '{}'{}", name, suggestion(name, data_type_names())),
                   "unknown-type");
    return std::nullopt;
  }
  candidate.name = *word;
  if (!cursor.eat("(")) return candidate;
  if (word->text != "complex") {
    cursor.fail_at(begin,
                   fmt::format("Unknown function '{}' of a data type{}", word->text, suggestion(word->text, {"complex"})),
                   "unknown-type");
    return std::nullopt;
  }
  const std::optional<Name> inner = cursor.expect_word("the name of an argument");
  if (!inner || !cursor.expect(")", "the argument of 'complex'")) return std::nullopt;
  candidate.name = *inner;
  candidate.to_complex = true;
  return candidate;
}

bool read_call_arg(Cursor& cursor, CallArg& arg) {
  const char next = cursor.peek();
  const bool letter = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || next == '_';
  // A word is an argument of the op unless it is one of the constants that are words.
  Cursor ahead = cursor;
  const std::string word = letter ? ahead.word(true).text : "";
  const bool constant = !letter || word == "true" || word == "false" || word == "INT64_MAX" ||
                        word.starts_with("DataType::") || ahead.peek() == '(';
  if (constant) {
    arg.name.at = cursor.here();
    arg.kind = CallArg::Kind::literal;
    if (next == '(') {
      const std::optional<Name> text = cursor.expression(",)");
      if (text) arg.literal = {Opaque{}, text->text};
      return text.has_value();
    }
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

struct PartialName {
  PartialKind kind;
  std::string_view name;
};
constexpr std::array<PartialName, 4> kPartialNames = {{{PartialKind::linear, "linear"},
                                                       {PartialKind::rearranging, "rearranging"},
                                                       {PartialKind::monotone, "monotone"},
                                                       {PartialKind::multilinear, "multilinear"}}};
constexpr std::array<std::pair<ReduceKind, std::string_view>, 7> kReduceNames = {{{ReduceKind::sum, "sum"},
                                                                                  {ReduceKind::avg, "avg"},
                                                                                  {ReduceKind::max, "max"},
                                                                                  {ReduceKind::min, "min"},
                                                                                  {ReduceKind::prod, "prod"},
                                                                                  {ReduceKind::any, "any"},
                                                                                  {ReduceKind::all, "all"}}};

std::optional<ReduceKind> read_reduce_kind(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::string word = cursor.word().text;
  std::vector<std::string_view> known;
  for (const auto& [kind, name] : kReduceNames) {
    if (name == word) return kind;
    known.push_back(name);
  }
  cursor.fail_at(begin, fmt::format("Unknown reduction '{}'{}", word, suggestion(word, known)), "unknown-type");
  return std::nullopt;
}

}  // namespace

std::vector<AliasPair> read_alias_pairs(Cursor& cursor) {
  std::vector<AliasPair> pairs;
  do {
    if (!cursor.expect("(", pairs.empty() ? "the key" : "','")) return pairs;
    const std::optional<Name> input = cursor.expect_word("the name of an argument");
    if (!input || !cursor.expect("->", "'" + input->text + "'")) return pairs;
    const std::optional<Name> output = cursor.expect_word("the name of an output");
    if (!output || !cursor.expect(")", "'" + output->text + "'")) return pairs;
    pairs.push_back({*input, *output});
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
    // The peer now and then leaves out the comma after a brace, or has one at the end.
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
    if (cursor.eat(">")) {
      key.ordered = true;
    } else if (!cursor.eat(",")) {
      break;
    }
  } while (true);
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
    if (!read_call_arg(cursor, call.args.emplace_back())) return std::nullopt;
  }
  cursor.expect_end("the call");
  if (cursor.failed()) return std::nullopt;
  return call;
}

std::optional<Partial> read_partial(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::string word = cursor.word().text;
  std::vector<std::string_view> known;
  std::optional<Partial> partial;
  for (const PartialName& entry : kPartialNames) {
    if (entry.name == word) partial = Partial{entry.kind, {}};
    known.push_back(entry.name);
  }
  if (!partial) {
    cursor.fail_at(begin, fmt::format("Unknown value '{}' of 'partial'{}", word, suggestion(word, known)), "bad-value");
    return std::nullopt;
  }
  if (cursor.eat("(")) {
    if (cursor.peek() == ')') cursor.fail("Name the reductions between '(' and ')', or leave the brackets out.");
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
