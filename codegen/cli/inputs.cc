// Reads the YAML files of a command.
#include "cli/inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <thread>

#include "check/check.h"
#include "lower/description.h"
#include "lower/masks.h"
#include "read/overlay.h"
#include "read/read_file.h"

namespace shardgen {

void add_inputs(CLI::App& app, InputOptions& options) {
  app.add_option("files", options.files, "Op YAML files")->required()->type_name("FILE");
  add_overlays(app, options);
  app.add_flag("--strict", options.strict, "Treat warnings as errors");
}

void add_overlays(CLI::App& app, InputOptions& options) {
  app.add_option("--overlay", options.overlays,
                 "YAML file that adds placement rules and 'shard:' blocks to ops of FILE")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("FILE");
}

void add_imports(CLI::App& app, InputOptions& options) {
  app.add_option("--import", options.imports, "Op YAML file of a library that is linked: its ops may be invoked")
      ->allow_extra_args(false)
      ->take_all()
      ->type_name("FILE");
}

void add_format(CLI::App& app, InputOptions& options, const std::string& what) {
  app.add_option_function<std::string>(
         "--format", [&options](const std::string& format) { options.json = format == "json"; }, "How " + what)
      ->check(CLI::IsMember({"text", "json"}));
}

std::vector<std::string> all_files(const InputOptions& options) {
  std::vector<std::string> files = options.imports;
  files.insert(files.end(), options.files.begin(), options.files.end());
  files.insert(files.end(), options.overlays.begin(), options.overlays.end());
  return files;
}

std::optional<std::vector<std::string>> read_all(const InputOptions& options) {
  std::vector<std::string> contents;
  DiagnosticSink sink;
  for (const std::string& path : all_files(options)) contents.push_back(read_input(path, sink).value_or(""));
  if (sink.error_count() == 0) return contents;
  print_findings(options, sink);
  return std::nullopt;
}

std::vector<Family> read_families(const InputOptions& options, std::vector<std::string> contents,
                                  DiagnosticSink& sink) {
  const std::vector<std::string> files = all_files(options);
  const size_t first_overlay = files.size() - options.overlays.size();
  std::vector<Family> families(first_overlay);
  std::vector<DiagnosticSink> sinks(first_overlay, sink.fresh());
  {
    // Parsing YAML takes most of the time of reading, and files are independent.
    std::atomic<size_t> next = 0;
    const auto read = [&] {
      for (size_t i = next++; i < first_overlay; i = next++) {
        families[i] = read_family(files[i], std::move(contents[i]), sinks[i]);
        families[i].imported = i < options.imports.size();
      }
    };
    std::vector<std::jthread> readers;
    const size_t threads = std::min<size_t>(first_overlay, std::max(1u, std::thread::hardware_concurrency()));
    for (size_t i = 0; i < threads; ++i) readers.emplace_back(read);
  }
  for (const DiagnosticSink& each : sinks) sink.append(each);
  for (size_t i = first_overlay; i < files.size(); ++i) apply_overlay(files[i], std::move(contents[i]), families, sink);
  return families;
}

std::vector<Family> read_and_check(const InputOptions& options, std::vector<std::string> contents,
                                   const Runtime& runtime, DiagnosticSink& sink) {
  std::vector<Family> families = read_families(options, std::move(contents), sink);
  check_families(families, runtime, sink);
  if (takes_masks(runtime)) add_masks(families);
  sink.sort(all_files(options));
  return families;
}

std::optional<Runtime> load_runtime_or_fail(const std::string& path) {
  std::vector<std::string> problems;
  std::optional<Runtime> runtime = load_runtime(path, problems);
  for (const std::string& each : problems) fail(fmt::format("runtime '{}': {}", path, each));
  return runtime;
}

void print_findings(const InputOptions& options, const DiagnosticSink& sink) {
  if (options.json) {
    put(to_json(sink.all()));
  } else {
    print_stderr(to_text(sink.all()));
  }
}

}  // namespace shardgen
