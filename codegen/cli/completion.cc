// The subcommand completion: describes the app of which it is a part.
#include "cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "reference/completion.h"

namespace shardgen {
namespace {

/// Derived from the name of the type: "DIR", "FILE", "TEXT:{text,json}".
CompletionValue value_of(const CLI::Option& option) {
  using Kind = CompletionValue::Kind;
  if (option.get_expected_max() == 0) return {Kind::none, {}};
  const std::string type = option.get_type_name();
  if (type.find("DIR") != std::string::npos) return {Kind::folder, {}};
  if (type.find("FILE") != std::string::npos) return {Kind::file, {}};
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {Kind::other, {}};
  return {Kind::choice, CLI::detail::split(type.substr(open + 1, close - open - 1), ',')};
}

CompletionCommand describe(const CLI::App& app) {
  CompletionCommand command{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    if (names.empty()) command.positionals.push_back(value_of(*option));
    else command.options.push_back({names, option->get_description(), value_of(*option)});
  }
  return command;
}

int print_completion(const CLI::App& root, const std::string& shell) {
  std::vector<CompletionCommand> commands;
  for (const CLI::App* app : root.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(describe(*app));
  const auto write = shell == "bash" ? bash_completion : shell == "zsh" ? zsh_completion : fish_completion;
  put(write(describe(root), commands));
  return kFine;
}

}  // namespace

std::function<int()> add_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell, &app] { return print_completion(*app.get_parent(), *shell); };
}

}  // namespace shardgen
