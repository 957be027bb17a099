// Renders with kainjow's mustache, after a check of the tags that finds what mustache silently
// accepts.
#include "emit/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <kainjow/mustache.hpp>
#include <set>
#include <unordered_set>

#include "diag/printable.h"

namespace shardgen {
namespace {

namespace mustache = kainjow::mustache;

struct Tag {
  enum class Kind { variable, section, inverted };
  Kind kind = Kind::variable;
  std::string name;
  std::vector<Tag> children;
};

/// Reads the tags of a template. Only {{name}}, {{#name}}, {{^name}}, {{/name}} are allowed.
class TagReader {
 public:
  explicit TagReader(const std::string& text) : text_(text) {}

  std::vector<Tag> read(std::string& problem) {
    std::vector<Tag> tags = read_until("", 0);
    problem = problem_;
    return tags;
  }

 private:
  static constexpr int kMaxDepth = 64;  // of sections; each level takes a few calls when it is rendered

  /// Reads tags up to the end of section `section`, or of the text.
  std::vector<Tag> read_until(const std::string& section, int depth) {
    std::vector<Tag> tags;
    while (problem_.empty()) {
      const size_t begin = text_.find("{{", position_);
      const size_t end = begin == std::string::npos ? begin : text_.find("}}", begin);
      if (end == std::string::npos) {
        if (begin != end) problem_ = "a tag is opened and not closed";
        if (!section.empty()) problem_ = fmt::format("section '{}' is not closed", section);
        return tags;
      }
      std::string name = text_.substr(begin + 2, end - begin - 2);
      position_ = end + 2;
      const char sigil = name.empty() ? '\0' : name[0];
      if (sigil == '#' || sigil == '^' || sigil == '/') name.erase(0, 1);
      if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos) {
        problem_ = fmt::format("'{}' is no tag that templates may use", printable(name));
      } else if (sigil == '/') {
        if (name != section) problem_ = fmt::format("section '{}' ends here, but '{}' is open", name, section);
        return tags;
      } else if (sigil == '#' || sigil == '^') {
        if (depth == kMaxDepth) {
          problem_ = fmt::format("section '{}' is nested deeper than {} sections", name, kMaxDepth);
          return tags;
        }
        std::vector<Tag> children = read_until(name, depth + 1);
        tags.push_back({sigil == '#' ? Tag::Kind::section : Tag::Kind::inverted, name, std::move(children)});
      } else {
        tags.push_back({Tag::Kind::variable, name, {}});
      }
    }
    return tags;
  }

  const std::string& text_;
  size_t position_ = 0;
  std::string problem_;
};

/// Walks tags and values together, as rendering will.
class Checker {
 public:
  explicit Checker(std::set<std::string>& problems) : problems_(problems) {}

  void check(const std::vector<Tag>& tags, const Json& data) {
    stack_.push_back(&data);
    walk(tags);
    stack_.pop_back();
    report_unused(data);
  }

 private:
  const Json* resolve(const std::string& name) {
    for (auto scope = stack_.rbegin(); scope != stack_.rend(); ++scope) {
      if (!(*scope)->is_object()) continue;
      const auto found = (*scope)->find(name);
      if (found == (*scope)->end()) continue;
      used_.insert(&*found);
      return &*found;
    }
    problems_.insert(fmt::format("tag '{}' has no value", name));
    return nullptr;
  }

  static bool is_false(const Json& value) { return value == false || (value.is_array() && value.empty()); }

  void walk(const std::vector<Tag>& tags) {
    for (const Tag& tag : tags) {
      const Json* value = resolve(tag.name);
      if (value == nullptr) continue;
      switch (tag.kind) {
        case Tag::Kind::variable:
          if (!value->is_string() && !value->is_number())
            problems_.insert(fmt::format("tag '{}' has a value that is no text", tag.name));
          break;
        case Tag::Kind::inverted:
          if (is_false(*value)) walk(tag.children);
          break;
        case Tag::Kind::section: walk_section(tag, *value); break;
      }
    }
  }

  void walk_section(const Tag& tag, const Json& value) {
    if (is_false(value)) return;
    if (!value.is_array()) {
      stack_.push_back(&value);
      walk(tag.children);
      stack_.pop_back();
      return;
    }
    for (const Json& item : value) {
      stack_.push_back(&item);
      walk(tag.children);
      stack_.pop_back();
    }
  }

  void report_unused(const Json& value) {
    if (value.is_array()) {
      for (const Json& item : value) report_unused(item);
    }
    if (!value.is_object()) return;
    for (const auto& [key, member] : value.items()) {
      if (!used_.contains(&member)) {
        problems_.insert(fmt::format("value '{}' is shown by no tag", key));
      } else {
        report_unused(member);
      }
    }
  }

  std::set<std::string>& problems_;
  std::vector<const Json*> stack_;
  std::unordered_set<const Json*> used_;
};

mustache::data to_mustache(const Json& value) {
  if (value.is_string()) return mustache::data(value.get_ref<const std::string&>());
  if (value.is_boolean()) return mustache::data(value.get<bool>());
  if (value.is_number()) return mustache::data(value.dump());
  if (value.is_array()) {
    mustache::data list(mustache::data::type::list);
    // Its push_back() copies everything below an item, at every level. The list itself is ours and
    // not const.
    auto& items = const_cast<mustache::list&>(list.list_value());
    items.reserve(value.size());
    for (const Json& item : value) items.push_back(to_mustache(item));
    return list;
  }
  mustache::data object(mustache::data::type::object);
  for (const auto& [key, member] : value.items()) {
    // mustache treats false like an absent value. set() would copy.
    if (member != false) object[key] = to_mustache(member);
  }
  return object;
}

/// Marks an empty line of a template, so that the engine does not treat it as the rest of a tag's
/// line.
constexpr char kEmptyLine = '\x01';

/// The text without the line ends after lone section tags, some of which the engine would keep.
std::string without_tag_lines(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const bool tag = (line.starts_with("{{#") || line.starts_with("{{^") || line.starts_with("{{/")) &&
                     line.find("}}") + 2 == line.size();
    if (line.empty()) out += kEmptyLine;
    out += line;
    if (!tag) out += '\n';
  }
  return out;
}

}  // namespace

struct Template::Impl {
  std::string name;
  std::string problem;
  std::vector<Tag> tags;
  mutable mustache::mustache engine;

  Impl(std::string name, const std::string& text, Language language)
      : name(std::move(name)), tags(TagReader(text).read(problem)),
        engine(problem.empty() ? without_tag_lines(text) : "") {
    if (language == Language::cpp) engine.set_custom_escape([](const std::string& value) { return value; });
  }
};

Template::Template(std::string name, std::string text, Language language)
    : impl_(std::make_unique<Impl>(std::move(name), text, language)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

std::string Template::render(const Json& data, std::vector<std::string>& problems) const {
  std::set<std::string> found;
  if (!impl_->problem.empty()) {
    found.insert(impl_->problem);
  } else {
    Checker(found).check(impl_->tags, data);
  }
  for (const std::string& problem : found) problems.push_back(fmt::format("{}: {}", impl_->name, problem));
  if (!found.empty()) return "";
  std::string text = impl_->engine.render(to_mustache(data));
  std::erase(text, kEmptyLine);
  return text;
}

}  // namespace shardgen
