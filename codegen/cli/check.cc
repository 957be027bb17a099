// The subcommand check.
#include "cli/check.h"

#include <CLI/CLI.hpp>

namespace shardgen {

int run_check(const CheckOptions& options) {
  const std::optional<Runtime> runtime = load_runtime_or_fail(options.runtime);
  if (!runtime) return kUsage;
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  read_and_check(options, std::move(*contents), *runtime, sink);
  print_findings(options, sink);
  return sink.error_count() > 0 ? kFindings : kFine;
}

std::function<int()> add_check(CLI::App& app) {
  const auto options = std::make_shared<CheckOptions>();
  add_inputs(app, *options);
  add_imports(app, *options);
  add_format(app, *options, "findings are printed");
  app.add_option("--runtime", options->runtime,
                 "JSON description of the runtime whose names count, instead of the built-in one")
      ->type_name("FILE");
  return [options] { return run_check(*options); };
}

}  // namespace shardgen
