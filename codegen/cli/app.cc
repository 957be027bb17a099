// Builds the command line from the table of subcommands.
#include "cli/app.h"

namespace shardgen {

std::unique_ptr<CLI::App> make_app(std::function<int()>& run) {
  auto app = std::make_unique<CLI::App>("Generates a distributed tensor library from op YAML.", "shardgen");
  app->require_subcommand(1);
  app->set_version_flag("--version", kToolVersion, "Print the version and exit");
  app->footer(
      "Each command has --help with examples. The exit code is 0 when all is fine (also with warnings), 1 for "
      "findings, 2 when\n"
      "the command line is wrong or a file cannot be read or written.");
  for (const Command& command : commands()) {
    CLI::App* sub = app->add_subcommand(command.name, command.summary);
    sub->footer(std::string("Examples:\n  ") + CLI::detail::find_and_replace(command.examples, "\n", "\n  "));
    sub->final_callback([&run, chosen = command.add(*sub)] { run = chosen; });
  }
  return app;
}

}  // namespace shardgen
