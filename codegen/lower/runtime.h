// The runtime that generated code is written for: how its types and functions are spelled, and what it has. That of this
// project is built in (codegen/runtime/shard.json); `--runtime FILE` describes another.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

struct Runtime {
  std::map<std::string, std::string, std::less<>> symbols;               // "DenseTensor" -> how it is written
  std::map<std::string, std::string, std::less<>> dtypes;                // "FLOAT32" -> "DType::float32"
  std::map<std::string, std::vector<std::string>, std::less<>> headers;  // "dense.cc" -> what it includes
  int abi = 0;
  bool dist = true;                   // false: no distributed layer is written
  std::set<std::string> infer_meta;   // "AddInferMeta(const OpContext&, const Meta&, Meta&)", in canonical spelling
  std::set<std::string> rules;        // names of placement rules
  std::set<std::string> kernels;      // names of kernels
};

/// A symbol of the runtime in text that is not yet spelled. lower/ and the templates (as @symbol) write this; emit/ spells it.
/// The marks are control characters, which YAML text that reaches C++ cannot hold.
std::string rt(std::string_view symbol);

/// `text` with every symbol spelled. Adds symbols that the runtime does not have to `problems`.
std::string spell_symbols(const Runtime& runtime, std::string_view text, std::vector<std::string>& problems);
/// @symbol to the marked form that rt() gives, in the text of a template.
std::string mark_symbols(std::string_view text);

/// The built-in runtime, changed by what the JSON file at `path` says; an empty path changes nothing. Nothing, and sentences
/// in `problems`, when the file cannot be used.
std::optional<Runtime> load_runtime(const std::string& path, std::vector<std::string>& problems);

/// The built-in runtime, and text in its spelling.
const Runtime& own_runtime();
std::string spell_own(std::string_view text);

/// The signatures of the `void` functions that a header declares, without names of parameters.
std::set<std::string> read_declarations(std::string_view header);

std::string_view embedded_runtime();     // shard.json
std::string_view embedded_infer_meta();  // runtime/meta/infer_meta.h

}  // namespace shardgen
