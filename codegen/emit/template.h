// Strict mustache: a tag without a value is an error, and so is a value that no tag shows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lower/template_data.h"

namespace shardgen {

/// A template, parsed to a tree of tags that can be rendered with different data.
class Template {
 public:
  /// How values are inserted: unchanged in C++, with special characters escaped in HTML.
  enum class Language { cpp, html };

  /// `name` is used in messages. render() reports problems of the text itself.
  Template(std::string name, std::string text, Language language = Language::cpp);
  ~Template();
  Template(Template&&) noexcept;

  /// The text with the values of `data`. Mismatches are added to `problems`, a sentence each.
  std::string render(const Json& data, std::vector<std::string>& problems) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardgen
