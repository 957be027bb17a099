// Strict mustache: a tag without a value is an error, and so is a value that no tag shows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lower/view.h"

namespace shardgen {

/// A template with its tags as a tree, ready to be shown with many views.
class Template {
 public:
  /// What happens to values in a text of that kind: C++ shows them as they are, HTML with its special characters escaped.
  enum class Language { cpp, html };

  /// `name` is used in messages. Problems of the text itself are found by render().
  Template(std::string name, std::string text, Language language = Language::cpp);
  ~Template();
  Template(Template&&) noexcept;

  /// The text with the view's values. What does not fit together is added to `problems`, a sentence each.
  std::string render(const Json& view, std::vector<std::string>& problems) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardgen
