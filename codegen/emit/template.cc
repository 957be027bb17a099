// Parses, checks and renders templates. Tags are the part of mustache that needs no escapes in C++:
// {{name}}, {{#name}}, {{^name}}, {{/name}}.
#include "emit/template.h"

#include <fmt/format.h>

#include <set>
#include <unordered_set>

#include "diag/printable.h"

namespace shardgen {
namespace {

using Nodes = std::vector<TemplateNode>;
using Kind = TemplateNode::Kind;

/// The tags of a line that has nothing but tags of sections, or "".
std::string lone_tags(const std::string& line) {
  std::string tags;
  for (size_t at = 0; at < line.size();) {
    const std::string_view rest = std::string_view(line).substr(at);
    const size_t end = rest.find("}}");
    if (rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r') {
      ++at;
    } else if (end != std::string_view::npos &&
               (rest.starts_with("{{#") || rest.starts_with("{{^") || rest.starts_with("{{/"))) {
      tags += rest.substr(0, end + 2);
      at += end + 2;
    } else {
      return "";
    }
  }
  return tags;
}

/// The text without what is around lone tags, so that their lines leave no empty lines.
std::string without_tag_lines(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin), tags = lone_tags(line);
    out += tags.empty() ? line + '\n' : tags;
    begin = end + 1;
  }
  return out;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Nodes parse(std::string& problem) {
    Nodes nodes = parse_until("", 0);
    problem = problem_;
    return nodes;
  }

 private:
  static constexpr int kMaxDepth = 64;  // of sections; each level takes a few calls when it is rendered

  /// Parses up to the end of section `section`, or of the text.
  Nodes parse_until(const std::string& section, int depth) {
    Nodes nodes;
    while (problem_.empty()) {
      const size_t begin = text_.find("{{", position_);
      const size_t end = begin == std::string::npos ? begin : text_.find("}}", begin);
      nodes.push_back({Kind::text, text_.substr(position_, begin - position_), {}});
      if (end == std::string::npos) {
        if (begin != end) problem_ = "a tag is opened and not closed";
        if (!section.empty()) problem_ = fmt::format("section '{}' is not closed", section);
        return nodes;
      }
      std::string name = text_.substr(begin + 2, end - begin - 2);
      position_ = end + 2;
      const char sigil = name.empty() ? '\0' : name[0];
      if (sigil == '#' || sigil == '^' || sigil == '/') name.erase(0, 1);
      if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos) {
        problem_ = fmt::format("'{}' is no tag that templates may use", printable(name));
      } else if (sigil == '/') {
        if (name != section) problem_ = fmt::format("section '{}' ends here, but '{}' is open", name, section);
        return nodes;
      } else if (sigil == '#' || sigil == '^') {
        if (depth == kMaxDepth) {
          problem_ = fmt::format("section '{}' is nested deeper than {} sections", name, kMaxDepth);
          return nodes;
        }
        Nodes children = parse_until(name, depth + 1);
        nodes.push_back({sigil == '#' ? Kind::section : Kind::inverted, std::move(name), std::move(children)});
      } else {
        nodes.push_back({Kind::variable, std::move(name), {}});
      }
    }
    return nodes;
  }

  const std::string& text_;
  size_t position_ = 0;
  std::string problem_;
};

/// Walks a template with its data: a section once for each item of a list, and not at all for false
/// and for an empty list.
class Walk {
 protected:
  virtual ~Walk() = default;
  virtual void show(const std::string& text) = 0;
  virtual void show(const TemplateNode& tag, const Json& value) = 0;
  /// The value of that name was looked up; null if there is none.
  virtual void found(const std::string& /*name*/, const Json* /*value*/) {}

  void walk(const Nodes& nodes, const Json& data) {
    scopes_.push_back(&data);
    for (const TemplateNode& node : nodes) {
      if (node.kind == Kind::text) {
        show(node.text);
        continue;
      }
      const Json* value = find(node.text);
      found(node.text, value);
      if (value == nullptr) continue;
      if (node.kind == Kind::variable) show(node, *value);
      else walk_section(node, *value);
    }
    scopes_.pop_back();
  }

  /// The value of the innermost scope that has one of that name, or null.
  const Json* find(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (!(*scope)->is_object()) continue;
      const auto value = (*scope)->find(name);
      if (value != (*scope)->end()) return &*value;
    }
    return nullptr;
  }

 private:
  void walk_section(const TemplateNode& section, const Json& value) {
    const bool empty = value == false || (value.is_array() && value.empty());
    if (empty != (section.kind == Kind::inverted)) return;
    if (empty || !value.is_array()) return walk(section.children, value);
    for (const Json& item : value) walk(section.children, item);
  }

  std::vector<const Json*> scopes_;
};

/// Finds mismatches of tags and values, and the symbols of the text.
class Checker : Walk {
 public:
  std::set<std::string> problems;
  std::vector<NeededSymbol> needed;

  void check(const Nodes& nodes, const Json& data) {
    walk(nodes, data);
    report_unused(data);
  }

 private:
  void show(const std::string& text) override {
    for (const std::string_view symbol : symbols_in(text)) needed.push_back({symbol, find(kOps)});
  }
  void show(const TemplateNode& tag, const Json& value) override {
    if (value.is_string()) show(value.get_ref<const std::string&>());
    else if (!value.is_number()) problems.insert(fmt::format("tag '{}' has a value that is no text", tag.text));
  }
  void found(const std::string& name, const Json* value) override {
    if (value == nullptr) problems.insert(fmt::format("tag '{}' has no value", name));
    else used_.insert(value);
  }

  void report_unused(const Json& value) {
    if (value.is_array()) {
      for (const Json& item : value) report_unused(item);
    }
    if (!value.is_object()) return;
    for (const auto& [key, member] : value.items()) {
      if (key == kOps) continue;
      if (used_.contains(&member)) report_unused(member);
      else problems.insert(fmt::format("value '{}' is shown by no tag", key));
    }
  }

  std::unordered_set<const Json*> used_;
};

class Renderer : Walk {
 public:
  explicit Renderer(Template::Language language) : language_(language) {}

  std::string render(const Nodes& nodes, const Json& data) {
    walk(nodes, data);
    return std::move(text_);
  }

 private:
  void show(const std::string& text) override { text_ += text; }
  void show(const TemplateNode&, const Json& value) override {
    if (!value.is_string()) text_ += value.dump();
    else if (language_ == Template::Language::cpp) text_ += value.get_ref<const std::string&>();
    else escape(value.get_ref<const std::string&>());
  }

  void escape(const std::string& text) {
    for (const char c : text) {
      switch (c) {
        case '&': text_ += "&amp;"; break;
        case '<': text_ += "&lt;"; break;
        case '>': text_ += "&gt;"; break;
        case '"': text_ += "&quot;"; break;
        case '\'': text_ += "&apos;"; break;
        default: text_ += c;
      }
    }
  }

  Template::Language language_;
  std::string text_;
};

}  // namespace

Template::Template(std::string name, const std::string& text, Language language)
    : name_(std::move(name)), language_(language), nodes_(Parser(without_tag_lines(text)).parse(problem_)) {}

std::vector<NeededSymbol> Template::check(const Json& data, std::vector<std::string>& problems) const {
  Checker checker;
  if (problem_.empty()) checker.check(nodes_, data);
  else checker.problems.insert(problem_);
  for (const std::string& problem : checker.problems) problems.push_back(fmt::format("{}: {}", name_, problem));
  return checker.problems.empty() ? std::move(checker.needed) : std::vector<NeededSymbol>();
}

std::string Template::render(const Json& data) const { return Renderer(language_).render(nodes_, data); }

}  // namespace shardgen
