// Parses the command line and runs the chosen subcommand.
#include <fmt/format.h>

#include <sstream>

#include "cli/app.h"
#include "diag/suggest.h"

namespace {

/// CLI11 only says that a subcommand is required.
bool is_unknown_command(const std::string& word, std::vector<std::string_view>& known) {
  for (const shardgen::Command& command : shardgen::commands()) known.push_back(command.name);
  return !word.empty() && word[0] != '-' && std::find(known.begin(), known.end(), word) == known.end();
}

}  // namespace

int main(int argc, char** argv) {
  shardgen::guard_streams();
  std::vector<std::string_view> known;
  if (argc > 1 && is_unknown_command(argv[1], known))
    return shardgen::fail(fmt::format("Unknown command '{}'{}", argv[1], shardgen::suggestion(argv[1], known)));
  std::function<int()> run;
  const std::unique_ptr<CLI::App> app = shardgen::make_app(run);
  int code = shardgen::kFine;
  try {
    app->parse(argc, argv);
    code = run();
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, problems;
    code = app->exit(error, out, problems) == 0 ? shardgen::kFine : shardgen::kUsage;
    if (!out.str().empty()) shardgen::put(out.str());
    shardgen::print_stderr(problems.str());
  }
  const int written = shardgen::output_code();
  return written != shardgen::kFine ? written : code;
}
