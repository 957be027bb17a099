// The subcommand check.
#include "cli/check.h"

#include <CLI/CLI.hpp>

namespace shardgen {

int run_check(const InputOptions& options) {
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  read_and_check(options, std::move(*contents), sink);
  print_findings(options, sink);
  return sink.error_count() > 0 ? kFindings : kFine;
}

std::function<int()> add_check(CLI::App& app) {
  const auto options = std::make_shared<InputOptions>();
  add_inputs(app, *options);
  add_imports(app, *options);
  add_format(app, *options, "findings are printed");
  return [options] { return run_check(*options); };
}

}  // namespace shardgen
