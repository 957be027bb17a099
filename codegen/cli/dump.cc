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
  std::vector<Family> families;
  for (size_t i = 0; i < contents->size(); ++i)
    families.push_back(read_family(options.files[i], std::move((*contents)[i]), sink));
  sink.sort(options.files);
  fmt::print(stderr, "{}", to_text(sink.all()));
  fmt::print("{}", dump_json(families));
  return sink.error_count() > 0 ? kFindings : kFine;
}

std::function<int()> add_dump(CLI::App& app) {
  const auto options = std::make_shared<InputOptions>();
  add_inputs(app, *options);
  return [options] { return run_dump(*options); };
}

}  // namespace shardgen
