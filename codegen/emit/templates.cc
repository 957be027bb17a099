// Finds templates.
#include "emit/templates.h"

#include <fmt/format.h>

#include <stdexcept>

#include "read/read_file.h"

namespace shardgen {

std::string text_of(std::span<const EmbeddedTemplate> embedded, std::string_view name) {
  for (const EmbeddedTemplate& each : embedded) {
    if (each.name == name) return std::string(each.text);
  }
  throw std::logic_error(fmt::format("the tool was built without '{}'", name));
}

std::optional<std::map<std::string, std::string>> load_templates(const std::string& directory, std::string& problem) {
  std::map<std::string, std::string> texts;
  for (const EmbeddedTemplate& embedded : embedded_templates()) {
    if (directory.empty()) {
      texts.emplace(embedded.name, embedded.text);
      continue;
    }
    const std::string path = fmt::format("{}/{}", directory, embedded.name);
    std::optional<std::string> text = read_bytes(path);
    if (!text) {
      problem = fmt::format("Cannot read template '{}'.", path);
      return std::nullopt;
    }
    texts.emplace(embedded.name, std::move(*text));
  }
  return texts;
}

}  // namespace shardgen
