// Checks identifiers: no name of the YAML reaches C++ unchecked.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "check/parts.h"
#include "diag/suggest.h"
#include "lower/identifiers.h"

namespace shardgen {
namespace {

/// C++20's keywords and alternative tokens, and macros of the standard headers and of generated ones.
constexpr auto kReserved = std::to_array<std::string_view>(
    {"NULL",        "SHARD_API",    "EOF",          "alignas",   "alignof",  "and",      "and_eq",
     "asm",         "assert",       "auto",         "bitand",    "bitor",    "bool",     "break",
     "case",        "catch",        "char",         "char16_t",  "char32_t", "char8_t",  "class",
     "co_await",    "co_return",    "co_yield",     "compl",     "concept",  "const",    "const_cast",
     "consteval",   "constexpr",    "constinit",    "continue",  "decltype", "default",  "delete",
     "do",          "double",       "dynamic_cast", "else",      "enum",     "errno",    "explicit",
     "export",      "extern",       "false",        "float",     "for",      "friend",   "goto",
     "if",          "inline",       "int",          "linux",     "long",     "main",     "mutable",
     "namespace",   "new",          "noexcept",     "not",       "not_eq",   "nullptr",  "operator",
     "or",          "or_eq",        "private",      "protected", "public",   "register", "reinterpret_cast",
     "requires",    "return",       "short",        "signed",    "sizeof",   "static",   "static_assert",
     "static_cast", "stderr",       "stdin",        "stdout",    "struct",   "switch",   "template",
     "this",        "thread_local", "throw",        "true",      "try",      "typedef",  "typeid",
     "typename",    "union",        "unix",         "unsigned",  "using",    "virtual",  "void",
     "volatile",    "wchar_t",      "while",        "xor",       "xor_eq"});

/// Macros of the headers that generated code includes, and the type of the C library that it names.
constexpr auto kMacros = std::to_array<std::string_view>(
    {"BUFSIZ", "CHAR_BIT", "EXIT_FAILURE", "EXIT_SUCCESS", "HUGE_VAL", "INFINITY", "INT64_MAX", "INT64_MIN", "NAN",
     "RAND_MAX", "int64_t", "offsetof", "setjmp", "va_arg", "va_end", "va_start"});

bool is_identifier(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9') || name[0] == '_') return false;
  return name.find("__") == std::string_view::npos;
}

void check_name(const Name& name, std::string_view what, DiagnosticSink& sink) {
  if (!is_identifier(name.text)) {
    sink.error(name.at, "bad-name",
               fmt::format("'{}' cannot name {}: names start with a letter and do not contain '__'.", name.text, what));
  } else if (is_reserved(name.text)) {
    sink.error(name.at, "bad-name",
               fmt::format("'{}' cannot name {}: it is a C++ keyword or a macro; choose another.", name.text, what));
  }
}

/// The functions of an op are in the same namespace as the types and functions of the runtime.
/// Arguments and outputs may have the names of those.
void check_op_name(const Name& name, const Runtime& runtime, DiagnosticSink& sink) {
  check_name(name, "an op", sink);
  if (!runtime.names.contains(name.text)) return;
  sink.error(name.at, "bad-name",
             fmt::format("'{}' cannot name an op: the runtime has a type or function of that name; choose another.",
                         name.text));
}

/// Checks each part of a name such as strings::CreateInferMeta.
void check_qualified(const Name& name, std::string_view what, const Runtime& runtime, DiagnosticSink& sink) {
  std::string_view rest = name.text;
  while (true) {
    const size_t end = rest.find("::");
    const std::string_view part = rest.substr(0, end);
    if (!is_identifier(part) || is_reserved(part) || runtime.names.contains(part)) {
      sink.error(name.at, "bad-name", fmt::format("'{}' cannot name {} in C++.", name.text, what));
      return;
    }
    if (end == std::string_view::npos) return;
    rest.remove_prefix(end + 2);
  }
}

void check_unique(const std::vector<const Name*>& names, std::string_view what, DiagnosticSink& sink) {
  std::map<std::string_view, const Name*> seen;
  for (const Name* name : names) {
    const auto [first, fresh] = seen.emplace(name->text, name);
    if (fresh) continue;
    sink.error(name->at, "duplicate-name", fmt::format("'{}' names two {}: rename one of them.", name->text, what),
               {{first->second->at, "First named here."}});
  }
}

/// Reports types that the tool does not know.
void check_types(const Op& op, DiagnosticSink& sink) {
  std::vector<std::string_view> known = attr_type_names();
  known.push_back("Tensor");
  known.push_back("Tensor[]");
  for (const Attr& attr : op.signature.attrs) {
    if (attr.type != AttrType::unknown) continue;
    std::string_view word = attr.unknown.text;
    Location at = attr.unknown.at;
    if (constexpr std::string_view scalar = "Scalar("; word.starts_with(scalar)) {
      word = word.substr(scalar.size(), word.size() - scalar.size() - 1);
      at.column += static_cast<int>(scalar.size());
    }
    sink.error(at, "unknown-type", fmt::format("Unknown type '{}'{}", word, suggestion(word, known)));
  }
  for (const Output& output : op.signature.outputs) {
    if (output.unknown.text.empty()) continue;
    sink.error(output.unknown.at, "unknown-type",
               fmt::format("Unknown type '{}' of an output{}", output.unknown.text,
                           suggestion(output.unknown.text, {"Tensor", "Tensor[]"})));
  }
}

}  // namespace

bool is_reserved(std::string_view name) {
  return std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end() ||
         std::find(kMacros.begin(), kMacros.end(), name) != kMacros.end();
}

void check_names(const Op& op, const Runtime& runtime, DiagnosticSink& sink) {
  check_types(op, sink);
  const std::string function = cpp_name(op);
  if (op.name.text.find("__") != std::string::npos) {
    sink.warning(op.name.at, "bad-name",
                 fmt::format("'{}' contains '__', which C++ reserves: the functions of the op are called '{}'.",
                             op.name.text, function));
  }
  check_op_name({function, op.name.at}, runtime, sink);
  std::vector<const Name*> args;
  for (const ArgRef arg : op.signature.args) args.push_back(&name_of(op.signature, arg));
  for (const Name* name : args) check_name(*name, "an argument", sink);
  check_unique(args, "arguments", sink);
  std::vector<const Name*> outputs;
  for (const Output& output : op.signature.outputs) {
    outputs.push_back(&output.name);
    check_name(output.name, "an output", sink);
    if (!output.named && op.signature.outputs.size() > 1) {
      sink.error(output.name.at, "unnamed-output",
                 "An op with more than one output must name each of them: 'Tensor(name)'.");
    }
  }
  if (std::all_of(op.signature.outputs.begin(), op.signature.outputs.end(), [](const Output& o) { return o.named; })) {
    check_unique(outputs, "outputs", sink);
  }
  if (op.invoke) check_qualified(op.invoke->function, "a function", runtime, sink);
  if (op.composite) check_qualified(op.composite->function, "a function", runtime, sink);
  if (op.infer_meta && op.infer_meta->func) check_qualified(*op.infer_meta->func, "a function", runtime, sink);
}

}  // namespace shardgen
