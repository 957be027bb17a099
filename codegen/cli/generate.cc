// The subcommand generate.
#include "cli/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>

#include "emit/files.h"
#include "emit/generate.h"
#include "emit/manifest.h"
#include "emit/templates.h"
#include "lower/hash.h"
#include "lower/runtime.h"
#include "read/read_file.h"

namespace shardgen {
namespace {

std::string hash_inputs(const GenerateOptions& options, const std::vector<std::string>& contents,
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

bool write_depfile(const GenerateOptions& options, const Templates& templates, std::string& problem) {
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

int write_generated(const GenerateOptions& options, const std::string& inputs, const Generated& generated, std::string& problem) {
  Manifest manifest{inputs, {}};
  for (const auto& [name, bytes] : generated.files) manifest.files[name] = hash_text(hash_bytes(bytes));
  const std::optional<Manifest> old = read_manifest(options.out);
  if (!write_files(options.out, generated.files, problem)) return fail(problem);
  if (old) remove_stale(*old, manifest, options.out);
  // The manifest comes last: a run that was cut off is not taken for a whole one.
  if (!write_files(options.out, {{kManifestName, to_json(manifest)}}, problem)) return fail(problem);
  return kFine;
}

/// Prints the names of the files that generate would write.
int list_outputs(const GenerateOptions& options) {
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

/// "family=2" into the map of parts. Throws what CLI11 reports.
void read_parts(const std::string& text, GenerateOptions& options) {
  const size_t equals = text.find('=');
  int count = 0;
  if (equals != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, count);
    if (error != std::errc() || stop != end) count = 0;
  }
  if (count < 1 || count > 4096)
    throw CLI::ValidationError("--parts", fmt::format("takes FAMILY=COUNT, not '{}'", text));
  options.parts[text.substr(0, equals)] = count;
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  if (options.list_outputs) return list_outputs(options);
  std::string problem;
  const std::optional<Templates> templates = load_templates(options.templates, problem);
  if (!templates) return fail(problem);
  std::vector<std::string> problems;
  const std::optional<Runtime> runtime = load_runtime(options.runtime, problems);
  if (!runtime) {
    for (const std::string& each : problems) fail(fmt::format("runtime '{}': {}", options.runtime, each));
    return kUsage;
  }
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
  print_findings(options, sink);
  if (sink.error_count() > 0) return kFindings;
  const Generated generated = generate(families, {*runtime, templates->texts, options.umbrella, options.parts, {}});
  if (!generated.problems.empty()) {
    for (const std::string& each : generated.problems) fmt::print(stderr, "shardgen: template {}.\n", each);
    return kFindings;
  }
  if (!options.json) report_dropped(generated.dropped);
  if (const int code = write_generated(options, inputs, generated, problem); code != kFine) return code;
  return write_depfile(options, *templates, problem) ? kFine : fail(problem);
}

std::function<int()> add_generate(CLI::App& app) {
  const auto options = std::make_shared<GenerateOptions>();
  add_inputs(app, *options);
  add_imports(app, *options);
  add_format(app, *options, "findings are printed");
  app.add_option("--out", options->out, "Folder to write to")->required()->type_name("DIR");
  app.add_option("--templates", options->templates, "Folder whose files replace the built-in templates of their names")
      ->type_name("DIR");
  app.add_option("--runtime", options->runtime, "JSON description of the runtime to write for, instead of the built-in one")->type_name("FILE");
  app.add_option("--umbrella", options->umbrella, "Name of the header that includes all others")->type_name("NAME")->capture_default_str();
  app.add_option("--depfile", options->depfile, "Write what the output depends on, for make and ninja")->type_name("FILE");
  app.add_option_function<std::vector<std::string>>(
         "--parts",
         [options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) read_parts(text, *options);
         },
         "Split that family into so many parts")
      ->expected(1)
      ->take_all()
      ->type_name("FAMILY=COUNT");
  app.add_flag("--list-outputs", options->list_outputs, "Print the names of the files and write nothing");
  return [options] { return run_generate(*options); };
}

}  // namespace shardgen
