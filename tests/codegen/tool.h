// Runs the built tool as a user does, and other programs that tests need.
#pragma once

#include <string>

namespace shardgen::testing {

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

/// Runs a shell command.
Ran run_shell(const std::string& command);
/// Runs shardgen with these arguments, quoted for the shell where they need it.
Ran run_tool(const std::string& arguments);
/// The path of the tool, and of the compiler that the tests are built with.
std::string tool_path();
std::string compiler_path();

}  // namespace shardgen::testing
