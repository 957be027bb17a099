// Reads the keys of a YAML map through a table of functions. Unknown keys and duplicate keys are
// reported.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include "diag/diagnostics.h"
#include "diag/suggest.h"
#include "read/cursor.h"
#include "read/key_tables.h"
#include "read/yaml_tree.h"

namespace shardgen {

struct ReadContext {
  const YamlFile& file;
  DiagnosticSink& sink;

  Cursor cursor(const YamlNode& scalar) const { return Cursor(file, scalar, sink); }
  Location at(const YamlNode& node) const { return file.at(node); }
};

/// A key, its documentation, and the function that reads its value into a T.
template <class T>
struct KeyReader : KeyInfo {
  void (*read)(const ReadContext& context, const YamlNode& value, T& target);
};

/// Reports duplicate keys and keys that are not scalars. True when `index` is to be read: of equal
/// keys that is the last.
bool check_key(const ReadContext& context, const YamlNode& map, size_t index);

/// Reads each entry of `map` into `target`. `where` completes "Unknown key 'x' in ...".
template <class T>
void read_keys(const ReadContext& context, const YamlNode& map, std::span<const KeyReader<T>> readers,
               std::string_view where, T& target) {
  for (size_t i = 0; i < map.entries.size(); ++i) {
    const YamlNode& key = map.entries[i].key;
    if (!check_key(context, map, i)) continue;
    const KeyReader<T>* found = nullptr;
    for (const KeyReader<T>& reader : readers) {
      if (reader.key == key.text) found = &reader;
    }
    if (found != nullptr) {
      found->read(context, map.entries[i].value, target);
      continue;
    }
    std::vector<std::string_view> known;
    for (const KeyReader<T>& reader : readers) known.push_back(reader.key);
    context.sink.warning(context.at(key), "unknown-key",
                         fmt::format("Unknown key '{}' in {}{}", key.text, where, suggestion(key.text, known)));
  }
}

/// True when the node is a map; otherwise reports `what` ("'kernel'").
bool expect_map(const ReadContext& context, const YamlNode& node, std::string_view what);
/// True when the node is a scalar with text; otherwise reports `what`.
bool expect_scalar(const ReadContext& context, const YamlNode& node, std::string_view what);
/// Reads a single word, with `::` in it when `qualified`.
std::optional<Name> read_name(const ReadContext& context, const YamlNode& node, std::string_view what,
                              bool qualified = false);
/// `a, b` or `[a, b]`.
std::vector<Name> read_names(const ReadContext& context, const YamlNode& node, std::string_view what,
                             bool qualified = false);
std::optional<bool> read_bool(const ReadContext& context, const YamlNode& node, std::string_view what);

}  // namespace shardgen
