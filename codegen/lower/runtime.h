// The runtime for which code is generated: the spellings of its types and functions, and what it
// supports. The runtime of this project is built in (codegen/runtime/shard.json); `--runtime FILE`
// describes another. description.cc reads descriptions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

struct Runtime {
  using Texts = std::map<std::string, std::string, std::less<>>;
  Texts symbols;   // "DenseTensor" -> its spelling; "{}" in it stands for an argument
  Texts dtypes;    // "FLOAT32" -> "DType::float32"
  Texts types;     // "str" -> "std::string": attributes of op YAML
  Texts op_table;  // "rule" -> the member of OpDef that holds it; other facts are not written
  std::map<std::string, std::vector<std::string>, std::less<>> headers;  // "dense.cc" -> what it includes
  int abi = 0;
  bool dist = true;                  // false: no distributed layer is generated
  bool autograd = true;              // false: calls are not recorded
  bool program = true;               // false: ops are not added to a table
  bool python = true;                // false: no bindings are generated
  std::set<std::string> infer_meta;  // "AddInferMeta(const OpContext&, const Meta&, Meta&)", in canonical spelling
  std::set<std::string> rules;       // names of placement rules
  std::set<std::string> kernels;     // names of kernels
  std::set<std::string> namespaces;  // names before ::, which no function may have
  // types and functions that generated code names without a namespace: no op may have such a name
  std::set<std::string, std::less<>> names;
  std::vector<std::string> files;  // the files from which the description was read; none for the built-in one
};

/// Marks a symbol of the runtime in text that is not spelled yet. lower/ and the templates (as
/// @symbol) write it; emit/ spells it. The marks are control characters, which YAML text that
/// reaches C++ cannot contain.
std::string rt(std::string_view symbol);
/// A symbol with an argument, which may contain symbols; templates write @symbol[argument].
std::string rt(std::string_view symbol, std::string_view argument);
/// Declares these names (separated by spaces) as variables, up to the next such mark. Symbols that
/// they hide are spelled with the namespace of the runtime.
std::string declare(std::string_view names);

/// The word that `spelling` starts with, or "" if it is qualified or not a name. A variable or
/// function of that name hides it.
std::string_view leading_name(std::string_view spelling);
/// The symbols in a text, in their order; they point into it.
std::vector<std::string_view> symbols_in(std::string_view text);
/// Those of them that the runtime does not have.
std::set<std::string> missing_symbols(const Runtime& runtime, std::string_view text);
/// `text` with every symbol spelled. Symbols that the runtime does not have are left out.
std::string spell_symbols(const Runtime& runtime, std::string_view text);
/// Replaces @symbol by the marked form that rt() returns, in the text of a template.
std::string mark_symbols(std::string_view text);
/// "the runtime has no symbol 'x'", without a full stop.
std::string describe_missing(std::string_view symbol);

/// The built-in runtime.
const Runtime& own_runtime();

}  // namespace shardgen
