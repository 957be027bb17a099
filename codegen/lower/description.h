// Reads descriptions of runtimes: the JSON of docs/other_runtimes.md. runtime.h says what a Runtime
// is for.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lower/runtime.h"

namespace shardgen {

/// The runtime that the JSON file at `path` describes; the built-in one for an empty path. When the
/// file cannot be used, returns nothing and adds sentences to `problems`.
std::optional<Runtime> load_runtime(const std::string& path, std::vector<std::string>& problems);

/// The signatures of the `void` functions that a header declares, without parameter names.
std::set<std::string> read_declarations(std::string_view header);

/// The kind of C++ text that a part of a description becomes.
enum class SymbolKind {
  code,        // a type, a function or another expression
  pattern,     // the same with an argument, in whose place "{}" occurs once
  name_space,  // names joined by "::"
  identifier,
  text  // a comment, or the inside of a string literal
};
SymbolKind kind_of(std::string_view symbol, std::string_view built_in_spelling);
/// The reason why a spelling is not of that kind, as the end of a sentence, or "".
std::string refusal(SymbolKind kind, std::string_view spelling);

std::string_view embedded_runtime();     // shard.json
std::string_view embedded_infer_meta();  // runtime/shard/meta/infer_meta.h

}  // namespace shardgen
