// The subcommand coverage.
#include "cli/coverage.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "check/check.h"
#include "diag/diagnostics.h"
#include "reference/coverage.h"

namespace shardgen {

int run_coverage(const CoverageOptions& options) {
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  const std::optional<Runtime> runtime = load_runtime_or_fail(options.runtime);
  if (!runtime) return kUsage;
  DiagnosticSink sink(options.strict);
  const std::vector<Family> families = read_and_check(options, std::move(*contents), *runtime, sink);
  print_stderr(to_text(sink.all()));
  const Selection selection = select_ops(families, *runtime, refused_ops(families, sink.all()).ops);
  const std::vector<Coverage> coverage = coverage_of(selection, *runtime);
  put(options.json ? dump(to_json(coverage)) : to_text(coverage));
  return sink.error_count() > 0 ? kFindings : kFine;
}

std::function<int()> add_coverage(CLI::App& app) {
  const auto options = std::make_shared<CoverageOptions>();
  add_inputs(app, *options);
  add_imports(app, *options);
  add_format(app, *options, "the report is printed");
  app.add_option("--runtime", options->runtime,
                 "JSON description of the runtime whose rules count, instead of the built-in one")
      ->type_name("FILE");
  return [options] { return run_coverage(*options); };
}

}  // namespace shardgen
