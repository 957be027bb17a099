// The subcommand generate.
#include "cli/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "check/check.h"
#include "cli/progress.h"
#include "diag/printable.h"
#include "diag/suggest.h"
#include "emit/files.h"
#include "emit/generate.h"
#include "emit/manifest.h"
#include "emit/stale.h"
#include "emit/templates.h"
#include "lower/description.h"
#include "lower/hash.h"
#include "read/read_file.h"
#include "reference/diff.h"

namespace shardgen {
namespace {

/// The inputs of a run besides the YAML.
struct Setting {
  Templates templates;
  Runtime runtime;
};

/// The manifest inputs of a run that left out ops with errors. They equal no hash, so the next run
/// reports those ops again.
constexpr const char* kUnfinished = "unfinished";

std::string hash_inputs(const GenerateOptions& options, const std::vector<std::string>& contents,
                        const Setting& setting) {
  uint64_t hash =
      hash_bytes(fmt::format("{} {} {} {}", tool_identity(), options.strict, options.imports.size(), options.umbrella));
  // Sizes distinguish "ab" + "c" from "a" + "bc".
  const auto add = [&](const std::string& name, const std::string& bytes) {
    hash = hash_bytes(bytes, hash_bytes(fmt::format("{} {} ", name, bytes.size()), hash));
  };
  for (const auto& [name, count] : options.parts) add(name, fmt::format("{}", count));
  for (const auto& [name, text] : setting.templates.texts) add(name, text);
  add("runtime", std::string(embedded_runtime()));
  add("infer_meta", std::string(embedded_infer_meta()));
  for (const std::string& file : setting.runtime.files) add(base_name(file), read_bytes(file).value_or(""));
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

bool write_depfile(const GenerateOptions& options, const Setting& setting, std::string& problem) {
  if (options.depfile.empty()) return true;
  std::string text = escaped(options.out + "/" + kManifestName) + ":";
  const auto add = [&](const std::string& path) { text += " \\\n  " + escaped(path); };
  for (const std::string& file : all_files(options)) add(file);
  for (const std::string& file : setting.runtime.files) add(file);
  if (!options.templates.empty()) {
    add(options.templates);  // the time stamp of a folder changes with new files
    for (const std::string& name : setting.templates.replaced) add(options.templates + "/" + name);
  }
  return write_file(options.depfile, text + "\n", problem);
}

/// What a run did, for its last line.
struct Summary {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::vector<Diagnostic> findings;
  bool up_to_date = false;  // nothing was rendered: neither the inputs nor the output had changed
  size_t ops = 0;
  std::vector<Dropped> dropped;
  size_t written = 0;
  size_t unchanged = 0;
  std::vector<StaleFile> stale;  // with --check

  long long milliseconds() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
  }
};

nlohmann::ordered_json json_of(const Summary& summary) {
  nlohmann::ordered_json json = {{"findings", json_of(summary.findings)},
                                 {"up_to_date", summary.up_to_date},
                                 {"ops", summary.ops},
                                 {"left_out", nlohmann::ordered_json::array()},
                                 {"written", summary.written},
                                 {"unchanged", summary.unchanged},
                                 {"stale", nlohmann::ordered_json::array()},
                                 {"ms", summary.milliseconds()}};
  for (const Dropped& each : summary.dropped) {
    const Name& name = each.op->name;
    json["left_out"].push_back(
        {{"op", name.text}, {"file", name.at.file}, {"line", name.at.line}, {"reason", each.reason}});
  }
  for (const StaleFile& each : summary.stale)
    json["stale"].push_back({{"file", each.name}, {"state", name_of(each.state)}});
  return json;
}

void report_dropped(const std::vector<Dropped>& dropped) {
  for (const Dropped& each : dropped) {
    const Location& at = each.op->name.at;
    print_stderr(fmt::format("{}:{}:{}: note: Op '{}' is not generated: {}. [dropped]\n", one_line(at.file), at.line,
                             at.column, each.op->name.text, each.reason));
  }
}

/// Prints JSON with the findings, or the last line of a successful run.
void report(const GenerateOptions& options, const Summary& summary) {
  if (options.json) {
    put(dump(json_of(summary)));
  } else if (summary.up_to_date) {
    note(fmt::format("{} is up to date: {} files, {} ms.", options.out, summary.unchanged, summary.milliseconds()));
  } else {
    const std::string files = options.check
                                  ? fmt::format("{} files stale", summary.stale.size())
                                  : fmt::format("{} files written, {} unchanged", summary.written, summary.unchanged);
    note(fmt::format("{} ops generated, {} left out; {}, {} ms.", summary.ops, summary.dropped.size(), files,
                     summary.milliseconds()));
  }
}

int write_generated(const GenerateOptions& options, const std::string& inputs, const Generated& generated,
                    Summary& summary) {
  std::string problem;
  Manifest manifest{inputs, {}};
  for (const auto& [name, bytes] : generated.files) manifest.files[name] = hash_text(hash_bytes(bytes));
  const std::optional<Manifest> old = read_manifest(options.out);
  const std::optional<size_t> written = write_files(options.out, generated.files, problem);
  if (!written) return fail(problem);
  if (old) remove_stale(*old, manifest, options.out);
  // The manifest is written last, so that an interrupted run does not count as complete.
  if (!write_files(options.out, {{kManifestName, to_json(manifest)}}, problem)) return fail(problem);
  summary.written = *written;
  summary.unchanged = generated.files.size() - *written;
  return kFine;
}

/// Prints what a run would change, as a diff that `patch -p1` accepts.
int check_generated(const GenerateOptions& options, const Generated& generated, Summary& summary) {
  using State = StaleFile::State;
  summary.stale = find_stale(options.out, generated.files);
  if (!options.json) {
    for (const StaleFile& each : summary.stale) {
      put(unified_diff(each.state == State::missing ? "/dev/null" : "a/" + each.name,
                       each.state == State::left_over ? "/dev/null" : "b/" + each.name, each.before, each.after));
      note(fmt::format("'{}/{}' is {}.", options.out, each.name, name_of(each.state)));
    }
  }
  return summary.stale.empty() ? kFine : kFindings;
}

/// What is wrong with the name of the umbrella header or of a family in --parts, or "". Nothing is
/// written for imports.
std::string wrong_names(const GenerateOptions& options, const std::vector<Family>& families, const Runtime& runtime) {
  std::vector<std::string_view> known;
  for (const Family& family : families) {
    if (family.imported) continue;
    known.push_back(family.name);
    const auto given = options.parts.find(family.name);
    const int parts = given != options.parts.end() ? given->second : count_parts(family.ops.size());
    const std::vector<std::string> names = output_names(family.name, parts, runtime);
    for (const std::string& umbrella : umbrella_names(options.umbrella, runtime)) {
      if (std::find(names.begin(), names.end(), umbrella) != names.end())
        return fmt::format("'{}' of --umbrella is also a file of family '{}': choose another name.", umbrella,
                           family.name);
    }
  }
  if (options.umbrella == kManifestName)
    return fmt::format("'{}' of --umbrella is the name of the manifest: choose another name.", options.umbrella);
  for (const auto& [family, count] : options.parts) {
    if (std::find(known.begin(), known.end(), family) == known.end())
      return fmt::format("--parts names '{}', which is not the family of any of the files{}", family,
                         suggestion(family, known));
  }
  return "";
}

/// Prints the names of the files that generate would write.
int list_outputs(const GenerateOptions& options) {
  const std::optional<Runtime> runtime = load_runtime_or_fail(options.runtime);
  if (!runtime) return kUsage;
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  std::vector<Family> families;
  for (size_t i = 0; i < options.files.size(); ++i)
    families.push_back(read_family(options.files[i], std::move((*contents)[options.imports.size() + i]), sink));
  if (const std::string wrong = wrong_names(options, families, *runtime); !wrong.empty()) return fail(wrong);
  for (const Family& family : families) {
    const auto given = options.parts.find(family.name);
    const int parts = given != options.parts.end() ? given->second : count_parts(family.ops.size());
    for (const std::string& name : output_names(family.name, parts, *runtime)) put(name + "\n");
  }
  for (const std::string& name : umbrella_names(options.umbrella, *runtime)) put(name + "\n");
  put(fmt::format("{}\n", kManifestName));
  print_stderr(to_text(sink.all()));
  return sink.error_count() > 0 ? kFindings : kFine;
}

/// Parses "family=2" into the map of parts. Throws what CLI11 reports.
void read_parts(const std::string& text, GenerateOptions& options) {
  const size_t equals = text.find('=');
  int count = 0;
  if (equals != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + equals + 1, end, count);
    if (error != std::errc() || stop != end) count = 0;
  }
  if (count < 1 || count > 4096 || equals == 0)
    throw CLI::ValidationError("--parts", fmt::format("takes FAMILY=COUNT, not '{}'", text));
  options.parts[text.substr(0, equals)] = count;
}

/// The umbrella must be a file in --out. Throws what CLI11 reports.
std::string check_umbrella(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  if (!name.empty() && name[0] != '.' && name[0] != '-' && std::all_of(name.begin(), name.end(), allowed)) return "";
  return fmt::format("takes the name of a file, of letters, digits, '_', '-' and '.', not '{}'", printable(name));
}

Generated render_all(const GenerateOptions& options, const std::vector<Family>& families, const Setting& setting,
                     const std::set<const Op*>& refused) {
  Progress progress("rendered file");
  const int hardware = static_cast<int>(std::thread::hardware_concurrency());
  return generate(families, {.runtime = setting.runtime,
                             .templates = setting.templates.texts,
                             .umbrella = options.umbrella,
                             .parts = options.parts,
                             .refused = refused,
                             .jobs = options.jobs > 0 ? options.jobs : hardware,
                             .progress = [&](size_t done, size_t total) { progress.show(done, total); }});
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  if (options.list_outputs) return list_outputs(options);
  Summary summary;
  std::string problem;
  std::optional<Templates> templates = load_templates(options.templates, problem);
  if (!templates) return fail(problem);
  std::optional<Runtime> runtime = load_runtime_or_fail(options.runtime);
  if (!runtime) return kUsage;
  const Setting setting{std::move(*templates), std::move(*runtime)};
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  const std::string inputs = hash_inputs(options, *contents, setting);
  const std::optional<Manifest> manifest = read_manifest(options.out);
  if (!options.check) {
    remove_abandoned(options.out, [&](const std::string& name) {
      return name == kManifestName || (manifest && manifest->files.contains(name));
    });
  }
  if (manifest && manifest->inputs == inputs && is_intact(*manifest, options.out)) {
    summary.up_to_date = true;
    summary.unchanged = manifest->files.size();
    if (!options.check && !write_depfile(options, setting, problem)) return fail(problem);
    report(options, summary);
    return kFine;
  }
  DiagnosticSink sink(options.strict);
  const std::vector<Family> families = read_and_check(options, std::move(*contents), setting.runtime, sink);
  if (const std::string wrong = wrong_names(options, families, setting.runtime); !wrong.empty()) return fail(wrong);
  summary.findings = sink.all();
  if (!options.json) print_findings(options, sink);
  const RefusedOps refused = refused_ops(families, sink.all());
  if (options.strict ? sink.error_count() > 0 : refused.elsewhere > 0) {
    if (options.json) report(options, summary);
    return kFindings;
  }
  const Generated generated = render_all(options, families, setting, refused.ops);
  for (const std::string& each : generated.problems) note(each + ".");
  if (!generated.problems.empty()) return kFindings;
  summary.ops = generated.ops;
  summary.dropped = generated.dropped;
  if (!options.json) report_dropped(generated.dropped);
  const int code = options.check
                       ? check_generated(options, generated, summary)
                       : write_generated(options, sink.error_count() > 0 ? kUnfinished : inputs, generated, summary);
  if (code == kUsage) return code;
  if (!options.check && !write_depfile(options, setting, problem)) return fail(problem);
  report(options, summary);
  return sink.error_count() > 0 && !options.keep_going ? kFindings : code;
}

std::function<int()> add_generate(CLI::App& app) {
  const auto options = std::make_shared<GenerateOptions>();
  add_inputs(app, *options);
  add_imports(app, *options);
  add_format(app, *options, "findings and the summary are printed");
  app.add_option("--out", options->out, "Folder to write to")->required()->type_name("DIR");
  app.add_option("--templates", options->templates, "Folder whose files replace the built-in templates of their names")
      ->type_name("DIR");
  app.add_option("--runtime", options->runtime,
                 "JSON description of the runtime to write for, instead of the built-in one (docs/other_runtimes.md)")
      ->type_name("FILE");
  app.add_option("--umbrella", options->umbrella, "Name of the header that includes all others")
      ->type_name("NAME")
      ->capture_default_str()
      ->check(check_umbrella, "");
  app.add_option("--depfile", options->depfile, "Write what the output depends on, for make and ninja")
      ->type_name("FILE");
  app.add_option_function<std::vector<std::string>>(
         "--parts",
         [options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) read_parts(text, *options);
         },
         "Split that family into that many parts")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("FAMILY=COUNT");
  app.add_flag("--keep-going", options->keep_going,
               "Exit with 0 when ops with errors were left out and the others written");
  app.add_flag("--check", options->check,
               "Write nothing; print what is stale as a diff, and exit with 1 if anything is");
  app.add_option("-j,--jobs", options->jobs, "Threads that render; by default as many as the machine has")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--list-outputs", options->list_outputs, "Print the names of the files and write nothing");
  return [options] { return run_generate(*options); };
}

}  // namespace shardgen
