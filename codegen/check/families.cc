// Checks that the names of files are valid names of generated files.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "check/parts.h"

namespace shardgen {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The file's name, including its extension, occurs in comments and texts of generated files.
bool is_plain(const std::string& name) {
  return !name.empty() && kLetters.find(name[0]) != std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return kLetters.find(c) != std::string_view::npos || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
                  c == '.';
         });
}

/// True for a suffix that follows a family's name in the names of its generated files: "_dense",
/// "_0", "_0_ops".
bool is_suffix(std::string_view text) {
  if (text == "_dense" || text == "_dist" || text == "_ops" || text == "_autograd" || text == "_program") return true;
  if (text.size() < 2 || text[0] != '_' || text[1] < '0' || text[1] > '9') return false;
  const size_t end = text.find_first_not_of("0123456789", 1);
  return end == std::string_view::npos || is_suffix(text.substr(end));
}

void check_plain(const Family& family, DiagnosticSink& sink) {
  if (!is_plain(base_name(family.path))) {
    sink.error({family.path, 1, 1}, "bad-name",
               "The name of this file cannot name a family: start it with a letter, and use letters, digits, '_', '-' "
               "and '.'.");
  } else if (family.name == "api") {
    sink.error({family.path, 1, 1}, "bad-name",
               "'api' cannot name a family: a generated file has that name; rename this file.");
  }
}

}  // namespace

void check_family_names(const std::vector<Family>& families, DiagnosticSink& sink) {
  std::map<std::string, const Family*> seen;
  for (const Family& family : families) {
    check_plain(family, sink);
    const auto [first, fresh] = seen.emplace(family.name, &family);
    if (fresh) continue;
    sink.error({family.path, 1, 1}, "duplicate-family",
               fmt::format("Two files have the family name '{}': rename one of them.", family.name),
               {{{first->second->path, 1, 1}, "The first one."}});
  }
  for (const auto& [name, family] : seen) {
    for (size_t end = name.find('_'); end != std::string::npos; end = name.find('_', end + 1)) {
      const auto other = seen.find(name.substr(0, end));
      if (other == seen.end() || !is_suffix(std::string_view(name).substr(end))) continue;
      sink.error(
          {family->path, 1, 1}, "duplicate-family",
          fmt::format("Files generated from family '{}' have the names of files of family '{}': rename this file.",
                      name, other->first),
          {{{other->second->path, 1, 1}, "The other one."}});
    }
  }
}

}  // namespace shardgen
