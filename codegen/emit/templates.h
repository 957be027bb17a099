// The set of templates: the built-in ones, some of them replaced by files of a user's folder.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

struct EmbeddedTemplate {
  std::string_view name;  // "dense.cc.mustache"
  std::string_view text;
};

/// The contents of templates/ when the tool was built.
std::span<const EmbeddedTemplate> embedded_templates();

/// The contents of templates/reference/: the page of `shardgen docs`.
std::span<const EmbeddedTemplate> embedded_pages();
/// The contents of templates/scaffold/: the files of `shardgen scaffold`.
std::span<const EmbeddedTemplate> embedded_skeletons();
/// The text of that name, which must be among them.
std::string text_of(std::span<const EmbeddedTemplate> embedded, std::string_view name);

struct Templates {
  std::map<std::string, std::string> texts;  // by name
  std::vector<std::string> replaced;         // the names that came from the folder, sorted
};

/// The built-in templates, replaced by those for which `directory` has a file; an empty `directory`
/// replaces none. Returns nothing, and sets `problem`, when the folder or a file cannot be read or
/// is not a template. Folders in it and names that start with a dot are ignored.
std::optional<Templates> load_templates(const std::string& directory, std::string& problem);

}  // namespace shardgen
