// Completion scripts for shells. They are made from a description of the command line, which
// cli/completion.cc derives from the parser itself.
#pragma once

#include <string>
#include <vector>

namespace shardgen {

/// The value of an option, or a positional.
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
  std::vector<CompletionValue> positionals;  // the last may be repeated
};

/// `root` has the tool's name and the options before a subcommand.
std::string bash_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands);
std::string zsh_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands);
std::string fish_completion(const CompletionCommand& root, const std::vector<CompletionCommand>& commands);

}  // namespace shardgen
