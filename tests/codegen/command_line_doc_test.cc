// docs/command_line.md against what --help prints.
#include <catch2/catch.hpp>

#include <regex>
#include <set>

#include "codegen/helpers.h"
#include "codegen/tool.h"

namespace command_line_doc_test {

using namespace shardgen::testing;

namespace {

std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) found.insert((*at)[1]);
  return found;
}

/// The table under "## Options": command -> its options.
std::map<std::string, std::set<std::string>> documented(const std::string& page) {
  std::map<std::string, std::set<std::string>> commands;
  const size_t begin = page.find("\n## Options\n");
  REQUIRE(begin != std::string::npos);
  const std::string section = page.substr(begin, page.find("\n## ", begin + 1) - begin);
  const std::regex row("\n\\| `([a-z]+)` \\|([^\n]*)");
  for (std::sregex_iterator at(section.begin(), section.end(), row), end; at != end; ++at)
    commands[(*at)[1]] = matches((*at)[2], "`(--?[a-z-]+)");
  return commands;
}

}  // namespace

TEST_CASE("docs/command_line.md has every command of --help with every option, and no other", "[codegen]") {
  const std::string page = slurp(source_path("docs/command_line.md"));
  const std::string help = run_tool("--help").out;
  const std::set<std::string> commands = matches(help.substr(help.find("Subcommands:")), "\n  ([a-z]+)  ");
  CHECK(commands.size() == 9);
  const auto table = documented(page);
  for (const std::string& command : commands) {
    INFO(command);
    CHECK(page.find("\n## " + command + "\n") != std::string::npos);
    std::set<std::string> options = matches(run_tool(command + " --help").out, "\n  (?:-[a-z],)?(--[a-z-]+)");
    options.erase("--help");
    REQUIRE(table.count(command) == 1);
    CHECK(table.at(command) == options);
  }
  for (const auto& [command, options] : table) CHECK(commands.count(command) == 1);
  // Words in code elsewhere on the page that look like options are options of some command.
  std::set<std::string> all = {"--help", "--version", "--build"};
  for (const auto& [command, options] : table) all.insert(options.begin(), options.end());
  for (const std::string& option : matches(page, "[ `(](--[a-z]+[a-z-]*)")) {
    INFO(option);
    CHECK(all.count(option) == 1);
  }
}

}  // namespace command_line_doc_test
