// The subcommand scaffold.
#include "cli/scaffold.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "check/check.h"
#include "diag/suggest.h"
#include "emit/files.h"
#include "emit/generate.h"
#include "lower/identifiers.h"
#include "reference/missing.h"
#include "reference/scaffold.h"

namespace shardgen {
namespace {

/// Fails when the op is unknown or left out; the message says why.
int explain_absence(const std::vector<Family>& families, const Selection& selection, const std::string& name) {
  for (const Dropped& dropped : selection.dropped) {
    if (dropped.op->name.text != name) continue;
    note(fmt::format("Op '{}' is not generated: {}.", name, dropped.reason));
    return kFindings;
  }
  std::vector<std::string_view> known;
  for (const Family& family : families) {
    for (const Op& op : family.ops) known.push_back(op.name.text);
  }
  return fail(fmt::format("No op '{}' in these files{}", name, suggestion(name, known)));
}

/// True when none of the files exists, or all may be overwritten.
bool may_write(const ScaffoldOptions& options, const Scaffold& made) {
  bool free = true;
  for (const auto& [name, bytes] : made.files) {
    if (options.force || !std::filesystem::exists(options.out + "/" + name)) continue;
    fail(fmt::format("'{}/{}' exists already; --force overwrites it.", options.out, name));
    free = false;
  }
  return free;
}

int write(const ScaffoldOptions& options, const Scaffold& made) {
  std::string problem;
  if (!may_write(options, made)) return kUsage;
  if (!write_files(options.out, made.files, problem)) return fail(problem);
  nlohmann::ordered_json json = {{"files", nlohmann::ordered_json::array()}, {"next", made.next}};
  for (const auto& [name, bytes] : made.files) {
    json["files"].push_back(options.out + "/" + name);
    if (!options.json) put(fmt::format("{}/{}\n", options.out, name));
  }
  if (options.json) {
    put(dump(json));
  } else {
    for (size_t i = 0; i < made.next.size(); ++i) print_stderr(fmt::format("{}. {}\n", i + 1, made.next[i]));
  }
  return kFine;
}

}  // namespace

namespace {

/// Writes definitions of the functions that the runtime lacks for the ops of the files.
int write_missing(const ScaffoldOptions& options, const std::vector<Family>& families, const RefusedOps& refused,
                  const Runtime& runtime) {
  const Selection selection = select_ops(families, runtime, refused.ops);
  const std::vector<std::vector<Part>> parts = split_families(families, selection, {});
  MissingFunctions made = define_missing({selection, runtime, parts});
  for (const std::string& each : made.problems) note(fmt::format("template {}.", each));
  if (!made.problems.empty()) return kFindings;
  Scaffold scaffold;
  scaffold.files["missing.cc"] = std::move(made.file);
  scaffold.next = {fmt::format("Compile missing.cc with the generated sources: {} infer_meta functions and {} others "
                               "throw until they are written.",
                               made.infer_meta, made.external),
                   "Write the ones you need elsewhere, remove them from missing.cc, and register their kernels."};
  return write(options, scaffold);
}

/// True for a file of ops_yaml/ in a checkout of this project, whose kernels and tests have places
/// of their own.
bool is_of_library(const std::string& yaml) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(yaml, error).parent_path();
  return folder.filename() == "ops_yaml" &&
         std::filesystem::exists(folder.parent_path() / "runtime" / "shard" / "kernels" / "builtin.cc", error);
}

}  // namespace

int run_scaffold(const ScaffoldOptions& options) {
  const std::optional<Runtime> runtime = load_runtime_or_fail(options.runtime);
  if (!runtime) return kUsage;
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  const std::vector<Family> families = read_and_check(options, std::move(*contents), *runtime, sink);
  print_stderr(to_text(sink.all()));
  const RefusedOps refused = refused_ops(families, sink.all());
  // Ops with errors are not generated either, so nothing is missing for them.
  if (options.missing && (options.strict ? sink.error_count() : refused.elsewhere) == 0) {
    const int code = write_missing(options, families, refused, *runtime);
    return code == kFine && sink.error_count() > 0 && !options.keep_going ? kFindings : code;
  }
  if (sink.error_count() > 0) return kFindings;
  const Selection selection = select_ops(families, own_runtime());
  const Op* op = selection.find(options.op);
  if (op == nullptr) return explain_absence(families, selection, options.op);
  const Family& family = families[static_cast<size_t>(selection.family_of(options.op))];
  const int parts = count_parts(family.ops.size());
  const std::vector<std::vector<Part>> no_parts;
  const ScaffoldPlace place{part_name(family.name, part_of(*op, parts), parts), is_of_library(family.path)};
  const Scaffold made = scaffold({selection, own_runtime(), no_parts}, *op, place);
  for (const std::string& each : made.problems) note(fmt::format("template {}.", each));
  return made.problems.empty() ? write(options, made) : kFindings;
}

std::function<int()> add_scaffold(CLI::App& app) {
  const auto options = std::make_shared<ScaffoldOptions>();
  CLI::Option* op = app.add_option("op", options->op, "Name of the op")->type_name("OP");
  CLI::Option* missing = app.add_flag("--missing", options->missing,
                                      "Define all functions that the runtime lacks for the ops of the files");
  missing->excludes(op);
  app.add_option("--runtime", options->runtime,
                 "With --missing: JSON description of the runtime, instead of the built-in one")
      ->type_name("FILE")
      ->needs(missing);
  app.add_flag("--keep-going", options->keep_going, "With --missing: exit with 0 when ops with errors were left out")
      ->needs(missing);
  app.add_option("--yaml", options->files, "YAML files; the op is in one of them")->required()->type_name("FILE");
  app.add_option("--out", options->out, "Folder to write to")->required()->type_name("DIR");
  add_overlays(app, *options);
  add_imports(app, *options);
  app.add_flag("--force", options->force, "Overwrite existing files");
  app.add_flag("--strict", options->strict, "Treat warnings as errors");
  add_format(app, *options, "the result is printed");
  return [options] {
    if (options->op.empty() && !options->missing) return fail("scaffold needs the name of an op, or --missing.");
    return run_scaffold(*options);
  };
}

}  // namespace shardgen
