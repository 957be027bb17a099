// What a subcommand is: commands.cc has the table of all of them, and each has a file of its own beside this one.
#pragma once

#include <functional>
#include <span>
#include <string>

namespace CLI {
class App;
}

namespace shardgen {

inline constexpr const char* kToolVersion = "0.1.0";

enum ExitCode { kFine = 0, kFindings = 1, kUsage = 2 };

struct Command {
  const char* name;
  const char* summary;   // a sentence without its full stop
  const char* examples;  // command lines, a line each, for the end of its help
  /// Adds the command's options to its app, and returns what runs it after parsing.
  std::function<int()> (*add)(CLI::App& app);
};

/// Every subcommand, in the order of the help.
std::span<const Command> commands();

/// Prints the message as one of the tool and returns kUsage.
int fail(const std::string& message);

}  // namespace shardgen
