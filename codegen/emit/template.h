// Strict mustache: a tag without a value is an error, and so is a value that no tag shows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lower/view.h"

namespace shardgen {

/// A template, parsed to a tree of tags that can be rendered with many views.
class Template {
 public:
  /// How values are inserted: unchanged in C++, with special characters escaped in HTML.
  enum class Language { cpp, html };

  /// `name` is used in messages. render() reports problems of the text itself.
  Template(std::string name, const std::string& text, Language language = Language::cpp);
  ~Template();
  Template(Template&&) noexcept;

  /// The text with the view's values. Mismatches are added to `problems`, a sentence each.
  std::string render(const Json& view, std::vector<std::string>& problems) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardgen
