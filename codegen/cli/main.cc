// Builds the command line from the table of subcommands and runs the one that was asked for.
#include <CLI/CLI.hpp>

#include "cli/command.h"

int main(int argc, char** argv) {
  CLI::App app{"Generates a distributed tensor library from op YAML.", "shardgen"};
  app.require_subcommand(1);
  app.set_version_flag("--version", shardgen::kToolVersion);
  std::function<int()> run;
  for (const shardgen::Command& command : shardgen::commands()) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->footer(std::string("Examples:\n") + command.examples);
    sub->final_callback([&run, chosen = command.add(*sub)] { run = chosen; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? shardgen::kFine : shardgen::kUsage;
  }
  return run();
}
