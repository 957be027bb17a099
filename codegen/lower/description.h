// Reads descriptions of runtimes: the JSON of docs/other_runtimes.md. What a Runtime is for stands in runtime.h.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lower/runtime.h"

namespace shardgen {

/// The runtime that the JSON file at `path` describes; the built-in one for an empty path. Nothing, and sentences in
/// `problems`, when the file cannot be used.
std::optional<Runtime> load_runtime(const std::string& path, std::vector<std::string>& problems);

/// The signatures of the `void` functions that a header declares, without names of parameters.
std::set<std::string> read_declarations(std::string_view header);

/// How a part of a description becomes text of C++.
enum class SymbolKind {
  code,        // a type, a function or another expression
  pattern,     // the same with an argument, for which "{}" stands once
  name_space,  // names joined by "::"
  identifier,
  text  // a comment, or the inside of a string literal
};
SymbolKind kind_of(std::string_view symbol, std::string_view built_in_spelling);
/// Why a spelling cannot be one of that kind: the end of a sentence, or "".
std::string refusal(SymbolKind kind, std::string_view spelling);

std::string_view embedded_runtime();     // shard.json
std::string_view embedded_infer_meta();  // runtime/meta/infer_meta.h

}  // namespace shardgen
