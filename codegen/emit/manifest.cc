// Reads and writes manifest.json.
#include "emit/manifest.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lower/hash.h"
#include "read/read_file.h"

namespace shardgen {
namespace {

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
    // A name with a folder in it was not written by the tool, and must never be removed.
    if (hash.is_string() && name.find('/') == std::string::npos) manifest.files.emplace(name, hash.get<std::string>());
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
