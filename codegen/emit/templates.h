// The set of templates: those built into the tool, or those of a folder.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shardgen {

struct EmbeddedTemplate {
  std::string_view name;  // "dense.cc.mustache"
  std::string_view text;
};

/// What templates/ held when the tool was built.
std::span<const EmbeddedTemplate> embedded_templates();

/// What templates/reference/ held: the page of `shardgen docs`.
std::span<const EmbeddedTemplate> embedded_pages();
/// What templates/scaffold/ held: the files of `shardgen scaffold`.
std::span<const EmbeddedTemplate> embedded_skeletons();
/// The text of that name, which must be among them.
std::string text_of(std::span<const EmbeddedTemplate> embedded, std::string_view name);

/// By name, the texts of the built-in templates, or of the files of those names in `directory` when it is not empty.
/// Nothing, and a sentence in `problem`, when one is missing.
std::optional<std::map<std::string, std::string>> load_templates(const std::string& directory, std::string& problem);

}  // namespace shardgen
