// Reads and writes manifest.json.
#include "emit/manifest.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lower/hash.h"
#include "read/read_file.h"

namespace shardgen {
namespace {

/// True for the name of a file that the tool may have written: in no folder, or in that of the bindings.
bool may_be_written(std::string_view name) {
  constexpr std::string_view kFolder = "python/";
  if (name.starts_with(kFolder)) name.remove_prefix(kFolder.size());
  return name.find('/') == std::string_view::npos;
}

bool has_bytes(const std::string& directory, const std::string& name, const std::string& hash) {
  const std::optional<std::string> bytes = read_bytes(directory + "/" + name);
  return bytes && hash_text(hash_bytes(*bytes)) == hash;
}

}  // namespace

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

std::string to_json(const Manifest& manifest) {
  nlohmann::json json = {{"inputs", manifest.inputs}, {"files", manifest.files}};
  return json.dump(2) + "\n";
}

std::optional<Manifest> read_manifest(const std::string& directory) {
  const std::optional<std::string> bytes = read_bytes(directory + "/" + kManifestName);
  if (!bytes) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(*bytes, nullptr, false);
  if (!json.is_object() || !json.contains("inputs") || !json["inputs"].is_string() || !json.contains("files") ||
      !json["files"].is_object()) {
    return std::nullopt;
  }
  Manifest manifest{json["inputs"].get<std::string>(), {}};
  for (const auto& [name, hash] : json["files"].items()) {
    // What the tool did not write must never be removed.
    if (hash.is_string() && may_be_written(name)) manifest.files.emplace(name, hash.get<std::string>());
  }
  return manifest;
}

bool is_intact(const Manifest& manifest, const std::string& directory) {
  for (const auto& [name, hash] : manifest.files) {
    if (!has_bytes(directory, name, hash)) return false;
  }
  return true;
}

void remove_stale(const Manifest& old, const Manifest& now, const std::string& directory) {
  for (const auto& [name, hash] : old.files) {
    if (now.files.contains(name) || !has_bytes(directory, name, hash)) continue;
    std::error_code ignored;
    std::filesystem::remove(directory + "/" + name, ignored);
  }
}

}  // namespace shardgen
