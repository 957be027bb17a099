// The only file of the tests that knows the paths of the tool and the compiler.
#include "codegen/tool.h"

#include <sys/wait.h>

#include <cstdlib>

#include "codegen/helpers.h"

namespace shardgen::testing {

Ran run_shell(const std::string& command) {
  const TempFolder folder;
  const std::string out = folder.path("out"), err = folder.path("err");
  const int status = std::system(("{ " + command + "\n} >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(out), slurp(err)};
}

Ran run_tool(const std::string& arguments) { return run_shell(tool_path() + " " + arguments); }
std::string tool_path() { return SHARDGEN_TOOL; }
std::string compiler_path() { return SHARDGEN_COMPILER; }

}  // namespace shardgen::testing
