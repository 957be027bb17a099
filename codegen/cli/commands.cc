// Runs the stages one after the other and reports.
#include "cli/commands.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "check/check.h"
#include "diag/diagnostics.h"
#include "emit/files.h"
#include "emit/generate.h"
#include "emit/manifest.h"
#include "emit/templates.h"
#include "lower/hash.h"
#include "read/read_file.h"

namespace shardgen {
namespace {

int fail(const std::string& message) {
  fmt::print(stderr, "shardgen: {}\n", message);
  return kUsage;
}

/// Imports come first: where an op is defined twice, the finding is at the user's own.
std::vector<std::string> all_files(const Options& options) {
  std::vector<std::string> files = options.imports;
  files.insert(files.end(), options.files.begin(), options.files.end());
  return files;
}

/// The bytes of every input in the order of all_files, or nothing after a message.
std::optional<std::vector<std::string>> read_all(const Options& options) {
  std::vector<std::string> contents;
  for (const std::string& path : all_files(options)) {
    std::optional<std::string> bytes = read_bytes(path);
    if (!bytes) {
      fail(fmt::format("Cannot read '{}'.", path));
      return std::nullopt;
    }
    contents.push_back(std::move(*bytes));
  }
  return contents;
}

/// Reads and checks; prints every finding. JSON goes to stdout, because it is the result that was asked for.
std::vector<Family> read_and_check(const Options& options, std::vector<std::string> contents, DiagnosticSink& sink) {
  const std::vector<std::string> files = all_files(options);
  std::vector<Family> families;
  for (size_t i = 0; i < contents.size(); ++i) {
    families.push_back(read_family(files[i], std::move(contents[i]), sink));
    families.back().imported = i < options.imports.size();
  }
  check_families(families, sink);
  sink.sort(files);
  if (options.json) {
    fmt::print("{}", to_json(sink.all()));
  } else {
    fmt::print(stderr, "{}", to_text(sink.all()));
  }
  return families;
}

std::string hash_inputs(const Options& options, const std::vector<std::string>& contents,
                        const Templates& templates) {
  uint64_t hash = hash_bytes(fmt::format("{} {} {} {}", kToolVersion, options.strict, options.imports.size(), options.umbrella));
  // Sizes keep "ab" + "c" and "a" + "bc" apart.
  const auto add = [&](const std::string& name, const std::string& bytes) {
    hash = hash_bytes(bytes, hash_bytes(fmt::format("{} {} ", name, bytes.size()), hash));
  };
  for (const auto& [name, count] : options.parts) add(name, fmt::format("{}", count));
  for (const auto& [name, text] : templates.texts) add(name, text);
  const std::vector<std::string> files = all_files(options);
  for (size_t i = 0; i < contents.size(); ++i) add(base_name(files[i]), contents[i]);
  return hash_text(hash);
}

std::string escaped(const std::string& path) {
  std::string text;
  for (const char c : path) {
    if (c == ' ' || c == '#' || c == '\\') text += '\\';
    if (c == '$') text += '$';
    text += c;
  }
  return text;
}

bool write_depfile(const Options& options, const Templates& templates, std::string& problem) {
  if (options.depfile.empty()) return true;
  std::string text = escaped(options.out + "/" + kManifestName) + ":";
  const auto add = [&](const std::string& path) { text += " \\\n  " + escaped(path); };
  for (const std::string& file : all_files(options)) add(file);
  if (!options.templates.empty()) {
    add(options.templates);  // the time stamp of a folder tells of new files
    for (const std::string& name : templates.replaced) add(options.templates + "/" + name);
  }
  return write_file(options.depfile, text + "\n", problem);
}

void report_dropped(const std::vector<Dropped>& dropped) {
  if (dropped.empty()) return;
  for (const Dropped& each : dropped) {
    const Location& at = each.op->name.at;
    fmt::print(stderr, "{}:{}:{}: note: Op '{}' is not generated: {}. [dropped]\n", at.file, at.line, at.column,
               each.op->name.text, each.reason);
  }
  fmt::print(stderr, "shardgen: {} ops are not generated.\n", dropped.size());
}

int write_generated(const Options& options, const std::string& inputs, const Generated& generated, std::string& problem) {
  Manifest manifest{inputs, {}};
  for (const auto& [name, bytes] : generated.files) manifest.files[name] = hash_text(hash_bytes(bytes));
  const std::optional<Manifest> old = read_manifest(options.out);
  if (!write_files(options.out, generated.files, problem)) return fail(problem);
  if (old) remove_stale(*old, manifest, options.out);
  // The manifest comes last: a run that was cut off is not taken for a whole one.
  if (!write_files(options.out, {{kManifestName, to_json(manifest)}}, problem)) return fail(problem);
  return kFine;
}

}  // namespace

int run_check(const Options& options) {
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  read_and_check(options, std::move(*contents), sink);
  return sink.error_count() > 0 ? kFindings : kFine;
}

int run_generate(const Options& options) {
  std::string problem;
  const std::optional<Templates> templates = load_templates(options.templates, problem);
  if (!templates) return fail(problem);
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  const std::string inputs = hash_inputs(options, *contents, *templates);
  const std::optional<Manifest> manifest = read_manifest(options.out);
  if (manifest && manifest->inputs == inputs && is_intact(*manifest, options.out)) {
    if (options.json) fmt::print("[]\n");
    return write_depfile(options, *templates, problem) ? kFine : fail(problem);
  }
  DiagnosticSink sink(options.strict);
  const std::vector<Family> families = read_and_check(options, std::move(*contents), sink);
  if (sink.error_count() > 0) return kFindings;
  const Generated generated = generate(families, templates->texts, options.umbrella, options.parts);
  if (!generated.problems.empty()) {
    for (const std::string& each : generated.problems) fmt::print(stderr, "shardgen: template {}.\n", each);
    return kFindings;
  }
  if (!options.json) report_dropped(generated.dropped);
  if (const int code = write_generated(options, inputs, generated, problem); code != kFine) return code;
  return write_depfile(options, *templates, problem) ? kFine : fail(problem);
}

int run_list_outputs(const Options& options) {
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  for (size_t i = 0; i < options.files.size(); ++i) {
    const Family family = read_family(options.files[i], std::move((*contents)[options.imports.size() + i]), sink);
    const auto given = options.parts.find(family.name);
    const int parts = given != options.parts.end() ? given->second : count_parts(family.ops.size());
    for (const std::string& name : output_names(family.name, parts)) fmt::print("{}\n", name);
  }
  fmt::print("{}\n{}\n", options.umbrella, kManifestName);
  fmt::print(stderr, "{}", to_text(sink.all()));
  return sink.error_count() > 0 ? kFindings : kFine;
}

}  // namespace shardgen
