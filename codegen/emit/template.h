// Strict mustache: a tag without a value is an error, and so is a value that no tag shows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lower/template_data.h"

namespace shardgen {

/// A text, or a tag of a template.
struct TemplateNode {
  enum class Kind { text, variable, section, inverted };
  Kind kind = Kind::text;
  std::string text;                    // the text itself, or the name in the tag
  std::vector<TemplateNode> children;  // of a section
};

/// A symbol of the runtime in a text.
struct NeededSymbol {
  std::string_view symbol;
  const Json* ops;  // the names of the ops that need it (kOps); null: the file itself does
};

/// A template, parsed to a tree that can be rendered with different data.
class Template {
 public:
  /// How values are inserted: unchanged in C++, with special characters escaped in HTML.
  enum class Language { cpp, html };

  /// `name` is used in messages. check() reports problems of the text itself.
  Template(std::string name, const std::string& text, Language language = Language::cpp);

  /// Adds mismatches of tags and values to `problems`, a sentence each. Returns the symbols that
  /// the text has with this data, or nothing if there are problems. They point into the data and
  /// the template.
  std::vector<NeededSymbol> check(const Json& data, std::vector<std::string>& problems) const;
  /// The text with the values of `data`. Tags without a value show nothing.
  std::string render(const Json& data) const;

 private:
  std::string name_;
  Language language_;
  std::string problem_;  // of the text, or ""
  std::vector<TemplateNode> nodes_;
};

}  // namespace shardgen
