// A subcommand: commands.cc has the table of all of them, and each has a file of its own beside
// this one.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

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
  /// Adds the command's options to its app, and returns the function that runs it after parsing.
  std::function<int()> (*add)(CLI::App& app);
};

/// Every subcommand, in the order of the help.
std::span<const Command> commands();

/// Called before anything is written. Opens closed standard streams, so that no file gets their
/// descriptors, and makes a closed pipe an error of the write instead of a signal.
void guard_streams();
/// Writes to stdout at once. On failure a message says so, and output_code() is not 0: a result is
/// never lost silently.
void put(std::string_view text);
/// Writes to stderr.
void print_stderr(std::string_view text);
/// 0, or kUsage if a write to stdout or stderr failed.
int output_code();
/// Prints a message of the tool, in one line.
void note(const std::string& message);
/// The same; returns kUsage.
int fail(const std::string& message);

}  // namespace shardgen
