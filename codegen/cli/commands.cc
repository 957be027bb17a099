// The table of subcommands: a new one gets a file with its options and its run, and a line here.
#include <fmt/format.h>

#include <array>

#include "cli/check.h"
#include "cli/command.h"
#include "cli/dump.h"
#include "cli/generate.h"

namespace shardgen {
namespace {

constexpr std::array<Command, 3> kCommands = {{
    {"generate", "Write C++ for the ops of YAML files",
     "shardgen generate ops_yaml/*.yaml --out generated\n"
     "shardgen generate math.yaml --out out --strict --depfile out/math.d",
     add_generate},
    {"check", "Report what is wrong in YAML files",
     "shardgen check ops_yaml/*.yaml --strict\n"
     "shardgen check math.yaml --format json",
     add_check},
    {"dump", "Print every op as JSON", "shardgen dump ops_yaml/*.yaml > ops.json", add_dump},
}};

}  // namespace

std::span<const Command> commands() { return kCommands; }

int fail(const std::string& message) {
  fmt::print(stderr, "shardgen: {}\n", message);
  return kUsage;
}

}  // namespace shardgen
