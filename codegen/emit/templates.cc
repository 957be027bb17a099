// Loads templates.
#include "emit/templates.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "diag/suggest.h"
#include "diag/utf8.h"
#include "read/read_file.h"

namespace shardgen {
namespace {

/// The files in a folder by name, sorted, without hidden ones. Folders in it, such as those of this
/// project's templates/, belong to other commands, unless they are named like a template.
std::optional<std::vector<std::string>> list_folder(const std::string& directory,
                                                    const std::vector<std::string_view>& known, std::string& problem) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    if (name.starts_with('.')) continue;
    if (at->is_directory(error) && std::find(known.begin(), known.end(), name) != known.end()) {
      problem = fmt::format("'{}/{}' has the name of a template and is a folder: put the template itself there.",
                            directory, name);
      return std::nullopt;
    }
    if (!at->is_directory(error)) names.push_back(std::move(name));
  }
  if (error) {
    problem = fmt::format("Cannot read the template folder '{}': {}.", directory, error.message());
    return std::nullopt;
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The first byte that text cannot contain, or npos.
size_t find_binary(std::string_view text) {
  const auto control = [](unsigned char c) { return (c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F; };
  const size_t found = static_cast<size_t>(std::find_if(text.begin(), text.end(), control) - text.begin());
  return std::min(found == text.size() ? std::string_view::npos : found, find_invalid_utf8(text));
}

}  // namespace

std::string text_of(std::span<const EmbeddedTemplate> embedded, std::string_view name) {
  for (const EmbeddedTemplate& each : embedded) {
    if (each.name == name) return std::string(each.text);
  }
  throw std::logic_error(fmt::format("the tool was built without '{}'", name));
}

std::optional<Templates> load_templates(const std::string& directory, std::string& problem) {
  Templates templates;
  std::vector<std::string_view> known;
  for (const EmbeddedTemplate& embedded : embedded_templates()) {
    templates.texts.emplace(embedded.name, embedded.text);
    known.push_back(embedded.name);
  }
  if (directory.empty()) return templates;
  std::optional<std::vector<std::string>> names = list_folder(directory, known, problem);
  if (!names) return std::nullopt;
  for (const std::string& name : *names) {
    const std::string path = fmt::format("{}/{}", directory, name);
    const auto text = templates.texts.find(name);
    if (text == templates.texts.end()) {
      problem = fmt::format("'{}' has the name of no template{}", path, suggestion(name, known));
      return std::nullopt;
    }
    std::optional<std::string> bytes = read_bytes(path);
    if (!bytes) {
      problem = fmt::format("Cannot read template '{}'.", path);
      return std::nullopt;
    }
    if (const size_t bad = find_binary(*bytes); bad != std::string::npos) {
      const auto line = 1 + std::count(bytes->begin(), bytes->begin() + static_cast<std::ptrdiff_t>(bad), '\n');
      problem = fmt::format("Template '{}' is no text: line {} has the byte 0x{:02X}.", path, line,
                            static_cast<unsigned char>((*bytes)[bad]));
      return std::nullopt;
    }
    text->second = std::move(*bytes);
  }
  templates.replaced = std::move(*names);
  return templates;
}

}  // namespace shardgen
