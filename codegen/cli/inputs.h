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
  std::vector<std::string> imports;   // files whose ops are in a linked library: those of `files` may invoke them
  std::vector<std::string> overlays;  // overlays for ops of `files`
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

/// Every file, imports first, overlays last: where an op is defined twice, the finding is at the
/// user's own.
std::vector<std::string> all_files(const InputOptions& options);
/// The bytes of all_files(), or nothing, after printing a message.
std::optional<std::vector<std::string>> read_all(const InputOptions& options);
/// Parses the bytes of read_all() and applies overlays, without checks.
std::vector<Family> read_families(const InputOptions& options, std::vector<std::string> contents, DiagnosticSink& sink);
/// Parses and checks the bytes of read_all(), for code that is generated for `runtime`. All
/// findings go to the sink, in the order of the files.
std::vector<Family> read_and_check(const InputOptions& options, std::vector<std::string> contents,
                                   const Runtime& runtime, DiagnosticSink& sink);
/// The runtime that the JSON file at `path` describes, or the built-in one. Nothing, after printing
/// a message, when it cannot be used.
std::optional<Runtime> load_runtime_or_fail(const std::string& path);
/// Prints findings: text to stderr; JSON to stdout, because it is the requested result.
void print_findings(const InputOptions& options, const DiagnosticSink& sink);

}  // namespace shardgen
