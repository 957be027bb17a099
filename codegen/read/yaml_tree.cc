// Builds the tree from yaml-cpp's events, because its own Node type hides duplicates and follows
// aliases.
#include "read/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "diag/utf8.h"

namespace shardgen {
namespace {

/// Stops yaml-cpp's parser from within an event; never leaves this file.
struct Refused {
  int line;
  int column;
  std::string code;
  std::string message;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(YamlNode& root) : root_(root) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, anchor, YamlNode::Kind::null); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_alias(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_tag(mark, tag);
    YamlNode& node = add(mark, anchor, YamlNode::Kind::scalar);
    if (value.size() > kMaxScalarBytes) {
      throw Refused{mark.line + 1, mark.column + 1, "too-large",
                    fmt::format("The text that starts here is longer than {} KB.", kMaxScalarBytes >> 10)};
    }
    node.text = value;
    node.quoted = tag == "!";
    // yaml-cpp reports the words that YAML treats as null as OnNull or as a scalar, depending on
    // their spelling.
    if (!node.quoted && value.empty()) node.kind = YamlNode::Kind::null;
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open(mark, add(mark, anchor, YamlNode::Kind::sequence));
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_tag(mark, tag);
    open(mark, add(mark, anchor, YamlNode::Kind::map));
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  /// A container that is being built. Its address is stable: a parent does not grow while a child
  /// is open.
  struct Open {
    YamlNode* node;
    bool key_next = true;
  };

  void refuse_alias(const YAML::Mark& mark) {
    throw Refused{mark.line + 1, mark.column + 1, "alias",
                  "Anchors and aliases are not allowed in op YAML: write the text out where it is used."};
  }

  /// "?" and "!" are the tags of plain and quoted texts.
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.size() < 2) return;
    throw Refused{mark.line + 1, mark.column + 1, "tag",
                  "Tags, such as '!!str', are not allowed in op YAML: remove the tag."};
  }

  void open(const YAML::Mark& mark, YamlNode& node) {
    if (open_.size() >= kMaxDepth) {
      throw Refused{mark.line + 1, mark.column + 1, "too-deep",
                    fmt::format("Nesting is deeper than {} levels.", kMaxDepth)};
    }
    open_.push_back({&node});
  }

  YamlNode& add(const YAML::Mark& mark, YAML::anchor_t anchor, YamlNode::Kind kind) {
    if (anchor != 0) refuse_alias(mark);
    YamlNode& node = slot(mark);
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  /// Work within an op may be quadratic in its entries, so their number is limited.
  void limit(const YAML::Mark& mark, size_t entries) const {
    const size_t most = open_.size() == 1 ? kMaxOps : kMaxEntries;
    if (entries < most) return;
    throw Refused{
        mark.line + 1, mark.column + 1, "too-large",
        fmt::format("This {} contains more than {} entries.", open_.size() == 1 ? "file" : "list or map", most)};
  }

  YamlNode& slot(const YAML::Mark& mark) {
    if (open_.empty()) return root_;
    Open& top = open_.back();
    limit(mark, top.node->items.size() + top.node->entries.size());
    if (top.node->kind == YamlNode::Kind::sequence) return top.node->items.emplace_back();
    const bool is_key = top.key_next;
    top.key_next = !is_key;
    if (is_key) return top.node->entries.emplace_back().key;
    return top.node->entries.back().value;
  }

  YamlNode& root_;
  std::vector<Open> open_;
};

std::vector<size_t> find_line_starts(std::string_view bytes) {
  std::vector<size_t> starts = {0};
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\n') starts.push_back(i + 1);
  }
  return starts;
}

/// The message of yaml-cpp as a sentence, with a fix added to its shorter messages.
std::string sentence(std::string text) {
  struct Fix {
    std::string_view start;
    std::string_view fix;
  };
  constexpr std::array<Fix, 8> fixes = {{
      {"illegal tab", "indent with spaces"},
      {"illegal map value", "check the indentation, and quote texts that contain ': '"},
      {"end of map not found", "align keys of a map, and close brackets"},
      {"end of map flow not found", "close it with '}'"},
      {"end of sequence not found", "align the '-' of a list"},
      {"end of sequence flow not found", "close it with ']'"},
      {"illegal flow end", "a bracket is closed that was not opened"},
      {"illegal EOF in scalar", "close the quote"},
  }};
  std::string_view fix;
  for (const Fix& each : fixes) {
    if (text.starts_with(each.start)) fix = each.fix;
  }
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return "YAML: " + text + (fix.empty() ? "." : ": " + std::string(fix) + ".");
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string not_utf8(std::string_view bytes, size_t bad) {
  if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF")) return "The file is UTF-16: save it as UTF-8.";
  if (bytes[bad] == '\0') return "The file contains a NUL byte here: op YAML is text.";
  return "The file is not valid UTF-8 here: save it as UTF-8.";
}

bool run_parser(YamlFile& file, DiagnosticSink& sink) {
  try {
    std::istringstream stream(file.bytes);
    YAML::Parser parser(stream);
    TreeBuilder builder(file.root);
    parser.HandleNextDocument(builder);
    YamlNode rest;
    TreeBuilder rest_builder(rest);
    if (!parser.HandleNextDocument(rest_builder)) return true;
    sink.error({file.path, std::max(rest.line, 1), std::max(rest.column, 1)}, "yaml",
               "The file contains more than one YAML document: remove the '---' between them.");
  } catch (const Refused& refused) {
    sink.error({file.path, refused.line, refused.column}, refused.code, refused.message);
  } catch (const YAML::Exception& error) {
    const bool marked = !error.mark.is_null();
    sink.error({file.path, marked ? error.mark.line + 1 : 1, marked ? error.mark.column + 1 : 1}, "yaml",
               sentence(error.msg));
  }
  return false;
}

}  // namespace

Location YamlFile::at(const YamlNode& scalar, size_t offset) const {
  const size_t line = static_cast<size_t>(scalar.line - 1);
  if (line >= line_starts.size()) return at(scalar);
  size_t position = line_starts[line] + static_cast<size_t>(scalar.column - 1) + (scalar.quoted ? 1 : 0);
  for (size_t i = 0; i < offset && i < scalar.text.size() && position < bytes.size(); ++i) {
    if (scalar.text[i] == bytes[position]) {
      ++position;
    } else if (scalar.text[i] == ' ' || scalar.text[i] == '\n') {
      while (position < bytes.size() && is_space(bytes[position])) ++position;
    } else {
      return at(scalar);  // an escape: the start of the scalar is close enough
    }
  }
  const auto next = std::upper_bound(line_starts.begin(), line_starts.end(), position);
  const size_t found = static_cast<size_t>(next - line_starts.begin()) - 1;
  return {path, static_cast<int>(found) + 1, static_cast<int>(position - line_starts[found]) + 1};
}

std::optional<YamlFile> parse_yaml(std::string path, std::string bytes, DiagnosticSink& sink) {
  YamlFile file;
  file.path = std::move(path);
  file.bytes = std::move(bytes);
  if (file.bytes.starts_with("\xEF\xBB\xBF")) file.bytes.erase(0, 3);
  if (file.bytes.size() > kMaxFileBytes) {
    sink.error({file.path, 1, 1}, "too-large", fmt::format("The file is larger than {} MB.", kMaxFileBytes >> 20));
    return std::nullopt;
  }
  file.line_starts = find_line_starts(file.bytes);
  if (const size_t bad = find_invalid_utf8(file.bytes); bad != std::string::npos) {
    const auto next = std::upper_bound(file.line_starts.begin(), file.line_starts.end(), bad);
    const size_t line = static_cast<size_t>(next - file.line_starts.begin()) - 1;
    sink.error({file.path, static_cast<int>(line) + 1, static_cast<int>(bad - file.line_starts[line]) + 1}, "utf8",
               not_utf8(file.bytes, bad));
    return std::nullopt;
  }
  if (!run_parser(file, sink)) return std::nullopt;
  return file;
}

}  // namespace shardgen
