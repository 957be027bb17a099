// The subcommand docs.
#include "cli/docs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "emit/files.h"
#include "reference/docs.h"

namespace shardgen {

int run_docs(const DocsOptions& options) {
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  const std::vector<Family> families = read_and_check(options, std::move(*contents), own_runtime(), sink);
  print_findings(options, sink);
  const std::vector<OpFacts> all = collect_facts(families, sink.all(), own_runtime());
  std::vector<std::string> problems;
  const std::string page = reference_page(all, problems);
  for (const std::string& each : problems) note(fmt::format("template {}.", each));
  if (!problems.empty()) return kFindings;
  std::string problem;
  if (!write_files(options.out, {{"index.html", page}}, problem)) return fail(problem);
  note(fmt::format("{} ops in {}/index.html.", all.size(), options.out));
  return sink.error_count() > 0 ? kFindings : kFine;
}

std::function<int()> add_docs(CLI::App& app) {
  const auto options = std::make_shared<DocsOptions>();
  add_inputs(app, *options);
  add_imports(app, *options);
  add_format(app, *options, "findings are printed");
  app.add_option("--out", options->out, "Folder to write index.html to")->required()->type_name("DIR");
  return [options] { return run_docs(*options); };
}

}  // namespace shardgen
