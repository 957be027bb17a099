// The subcommand dump.
#include "cli/dump.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "emit/dump.h"
#include "read/read_file.h"

namespace shardgen {

int run_dump(const InputOptions& options) {
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  const std::vector<Family> families = read_families(options, std::move(*contents), sink);
  sink.sort(all_files(options));
  print_stderr(to_text(sink.all()));
  put(dump_json(families));
  return sink.error_count() > 0 ? kFindings : kFine;
}

std::function<int()> add_dump(CLI::App& app) {
  const auto options = std::make_shared<InputOptions>();
  add_inputs(app, *options);
  return [options] { return run_dump(*options); };
}

}  // namespace shardgen
