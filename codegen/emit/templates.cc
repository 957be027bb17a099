// Finds templates.
#include "emit/templates.h"

#include <fmt/format.h>

#include "read/read_file.h"

namespace shardgen {

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
