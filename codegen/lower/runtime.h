// The runtime that generated code is written for: how its types and functions are spelled, and what it has. That of this
// project is built in (codegen/runtime/shard.json); `--runtime FILE` describes another. Descriptions are read in description.cc.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

struct Runtime {
  using Texts = std::map<std::string, std::string, std::less<>>;
  Texts symbols;   // "DenseTensor" -> how it is written; "{}" in it stands for an argument
  Texts dtypes;    // "FLOAT32" -> "DType::float32"
  Texts types;     // "str" -> "std::string": attributes of op YAML
  Texts op_table;  // "rule" -> the member of OpDef that has it; what is not here is not written
  std::map<std::string, std::vector<std::string>, std::less<>> headers;  // "dense.cc" -> what it includes
  int abi = 0;
  bool dist = true;                  // false: no distributed layer is written
  bool autograd = true;              // false: calls are not recorded
  bool program = true;               // false: ops are in no table
  std::set<std::string> infer_meta;  // "AddInferMeta(const OpContext&, const Meta&, Meta&)", in canonical spelling
  std::set<std::string> rules;       // names of placement rules
  std::set<std::string> kernels;     // names of kernels
  std::set<std::string> namespaces;  // names before ::, which no function may have
  std::set<std::string, std::less<>>
      names;  // types and functions that generated code names without a namespace: no op may be called so
  std::vector<std::string> files;  // what the description was read from; none for the built-in one
};

/// A symbol of the runtime in text that is not yet spelled. lower/ and the templates (as @symbol) write this; emit/ spells it.
/// The marks are control characters, which YAML text that reaches C++ cannot hold.
std::string rt(std::string_view symbol);
/// A symbol with an argument, which may have symbols in it; the templates write @symbol[argument].
std::string rt(std::string_view symbol, std::string_view argument);
/// From here on up to the next such mark, these names (separated by spaces) are variables: symbols that they hide are spelled with
/// the namespace of the runtime before them.
std::string declare(std::string_view names);

/// The word that `spelling` starts with, or "" where it is qualified or no name: a variable or function of that name hides it.
std::string_view leading_name(std::string_view spelling);
/// `text` with every symbol spelled. Adds symbols that the runtime does not have to `missing`.
std::string spell_symbols(const Runtime& runtime, std::string_view text, std::set<std::string>& missing);
/// @symbol to the marked form that rt() gives, in the text of a template.
std::string mark_symbols(std::string_view text);
/// "the runtime has no symbol 'x'", without a full stop.
std::string describe_missing(std::string_view symbol);

/// The built-in runtime.
const Runtime& own_runtime();

}  // namespace shardgen
