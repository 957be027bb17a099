// The YAML files of a command: the options that name them, and reading and checking them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "diag/diagnostics.h"
#include "lower/runtime.h"
#include "model/op.h"

namespace shardgen {

struct InputOptions {
  std::vector<std::string> files;
  std::vector<std::string>
      imports;  // files whose ops are in a library that is linked: those of `files` may invoke them
  std::vector<std::string> overlays;  // files that add to ops of `files`
  bool strict = false;
  bool json = false;
};

/// Adds the files, --overlay and --strict.
void add_inputs(CLI::App& app, InputOptions& options);
/// Adds --overlay.
void add_overlays(CLI::App& app, InputOptions& options);
/// Adds --import.
void add_imports(CLI::App& app, InputOptions& options);
/// Adds --format, which says how `what` is printed.
void add_format(CLI::App& app, InputOptions& options, const std::string& what);

/// Every file, imports first, overlays last: where an op is defined twice, the finding is at the user's own.
std::vector<std::string> all_files(const InputOptions& options);
/// The bytes of all_files(), or nothing after a message.
std::optional<std::vector<std::string>> read_all(const InputOptions& options);
/// Reads what read_all() gave, overlays applied, without checks.
std::vector<Family> read_families(const InputOptions& options, std::vector<std::string> contents, DiagnosticSink& sink);
/// Reads and checks what read_all() gave, for code that is written for `runtime`. All findings go to the sink, in the order of the files.
std::vector<Family> read_and_check(const InputOptions& options, std::vector<std::string> contents,
                                   const Runtime& runtime, DiagnosticSink& sink);
/// The runtime that the JSON file at `path` describes, or the built-in one; nothing after a message.
std::optional<Runtime> load_runtime_or_fail(const std::string& path);
/// Prints findings: text to stderr; JSON to stdout, because it is the result that was asked for.
void print_findings(const InputOptions& options, const DiagnosticSink& sink);

}  // namespace shardgen
