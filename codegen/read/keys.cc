// Functions that every key reader needs: kinds of nodes, names, lists of names, booleans.
#include "read/keys.h"

#include <algorithm>

namespace shardgen {
namespace {

std::string_view kind_name(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::null: return "nothing";
    case YamlNode::Kind::scalar: return "a text";
    case YamlNode::Kind::sequence: return "a list";
    case YamlNode::Kind::map: return "a map";
  }
  return "";
}

/// Capitalises the first letter, for the start of a sentence.
std::string capital(std::string_view what) {
  std::string text(what);
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

/// Appends words separated by commas to `names`.
void read_words(Cursor cursor, std::string_view what, bool qualified, std::vector<Name>& names) {
  do {
    const std::optional<Name> name = cursor.expect_word("a name", qualified);
    if (!name) return;
    names.push_back(*name);
  } while (cursor.eat(","));
  cursor.expect_end(what);
}

}  // namespace

bool check_key(const ReadContext& context, const YamlNode& map, size_t index) {
  const YamlNode& key = map.entries[index].key;
  if (key.kind != YamlNode::Kind::scalar) {
    context.sink.error(context.at(key), "syntax", fmt::format("A key must be a word, not {}.", kind_name(key.kind)));
    return false;
  }
  if (key.text == "<<") {
    context.sink.error(context.at(key), "merge-key",
                       "Merge keys ('<<') are not allowed in op YAML: write the keys out.");
    return false;
  }
  const auto is_same = [&](const YamlEntry& entry) {
    return entry.key.kind == YamlNode::Kind::scalar && entry.key.text == key.text;
  };
  const auto at = map.entries.begin() + static_cast<std::ptrdiff_t>(index);
  if (const auto first = std::find_if(map.entries.begin(), at, is_same); first != at) {
    context.sink.warning(context.at(key), "duplicate-key",
                         fmt::format("Key '{}' is given twice, and the last one counts: remove the other.", key.text),
                         {{context.at(first->key), "First given here."}});
  }
  return std::none_of(at + 1, map.entries.end(), is_same);
}

bool expect_map(const ReadContext& context, const YamlNode& node, std::string_view what) {
  if (node.kind == YamlNode::Kind::map) return true;
  context.sink.error(context.at(node), "syntax",
                     fmt::format("{} must be a map of keys, not {}.", capital(what), kind_name(node.kind)));
  return false;
}

bool expect_scalar(const ReadContext& context, const YamlNode& node, std::string_view what) {
  if (node.kind == YamlNode::Kind::scalar) return true;
  context.sink.error(context.at(node), "syntax",
                     fmt::format("{} must be a text, not {}.", capital(what), kind_name(node.kind)));
  return false;
}

std::optional<Name> read_name(const ReadContext& context, const YamlNode& node, std::string_view what, bool qualified) {
  if (!expect_scalar(context, node, what)) return std::nullopt;
  Cursor cursor = context.cursor(node);
  std::optional<Name> name = cursor.expect_word("a name", qualified);
  cursor.expect_end(what);
  return cursor.failed() ? std::nullopt : name;
}

std::vector<Name> read_names(const ReadContext& context, const YamlNode& node, std::string_view what, bool qualified) {
  std::vector<Name> names;
  if (node.kind == YamlNode::Kind::sequence) {
    const std::string entry = fmt::format("an entry of {}", what);
    for (const YamlNode& item : node.items) {
      if (std::optional<Name> name = read_name(context, item, entry, qualified)) names.push_back(std::move(*name));
    }
  } else if (expect_scalar(context, node, what)) {
    read_words(context.cursor(node), what, qualified, names);
  }
  return names;
}

std::optional<bool> read_bool(const ReadContext& context, const YamlNode& node, std::string_view what) {
  if (!expect_scalar(context, node, what)) return std::nullopt;
  if (node.text == "true" || node.text == "false") return node.text == "true";
  context.sink.error(context.at(node), "bad-value",
                     fmt::format("{} must be true or false, not '{}'.", what, node.text));
  return std::nullopt;
}

}  // namespace shardgen
