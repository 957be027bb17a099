// Reads the YAML files of a command.
#include "cli/inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "check/check.h"
#include "read/read_file.h"

namespace shardgen {

void add_inputs(CLI::App& app, InputOptions& options) {
  app.add_option("files", options.files, "Op YAML files")->required()->type_name("FILE");
  app.add_flag("--strict", options.strict, "Take warnings as errors");
}

void add_imports(CLI::App& app, InputOptions& options) {
  app.add_option("--import", options.imports, "Op YAML file of a library that is linked: its ops may be invoked")
      ->expected(1)
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

std::vector<Family> read_and_check(const InputOptions& options, std::vector<std::string> contents, DiagnosticSink& sink) {
  const std::vector<std::string> files = all_files(options);
  std::vector<Family> families;
  for (size_t i = 0; i < contents.size(); ++i) {
    families.push_back(read_family(files[i], std::move(contents[i]), sink));
    families.back().imported = i < options.imports.size();
  }
  check_families(families, sink);
  sink.sort(files);
  return families;
}

void print_findings(const InputOptions& options, const DiagnosticSink& sink) {
  if (options.json) {
    fmt::print("{}", to_json(sink.all()));
  } else {
    fmt::print(stderr, "{}", to_text(sink.all()));
  }
}

}  // namespace shardgen
