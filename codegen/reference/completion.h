// Completion scripts for shells. They are written from a description of the command line, which cli/completion.cc takes from
// the parser itself.
#pragma once

#include <string>
#include <vector>

namespace shardgen {

/// What follows an option, or stands by itself.
struct CompletionValue {
  enum class Kind { none, file, folder, choice, other };
  Kind kind = Kind::none;
  std::vector<std::string> choices;
};

struct CompletionOption {
  std::vector<std::string> names;  // "-j", "--jobs"
  std::string about;
  CompletionValue value;
};

struct CompletionCommand {
  std::string name;
  std::string about;
  std::vector<CompletionOption> options;
  std::vector<CompletionValue> positionals;  // the last may come again
};

/// `root` has the tool's name and the options that stand before a subcommand.
std::string bash_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands);
std::string zsh_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands);
std::string fish_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands);

}  // namespace shardgen
