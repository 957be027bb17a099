// The table of subcommands: a new one gets a file with its options and its run, and a line here.
#include <fmt/format.h>

#include <array>

#include "cli/check.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/docs.h"
#include "cli/coverage.h"
#include "cli/dump.h"
#include "cli/explain.h"
#include "cli/generate.h"
#include "cli/scaffold.h"
#include "cli/schema.h"

namespace shardgen {
namespace {

constexpr std::array<Command, 9> kCommands = {{
    {"generate", "Write C++ for the ops of YAML files",
     "shardgen generate ops_yaml/*.yaml --out generated\n"
     "shardgen generate ops_yaml/*.yaml --out generated --check | patch -p1 -d generated\n"
     "shardgen generate math.yaml --out out --strict --depfile out/math.d",
     add_generate},
    {"check", "Report what is wrong in YAML files",
     "shardgen check ops_yaml/*.yaml --strict\n"
     "shardgen check math.yaml --format json",
     add_check},
    {"coverage", "Print how each op is placed on a mesh: by an expression, a rule, or not",
     "shardgen coverage ops_yaml/*.yaml\n"
     "shardgen coverage ops.yaml --overlay rules.yaml --format json",
     add_coverage},
    {"dump", "Print every op as JSON", "shardgen dump ops_yaml/*.yaml > ops.json", add_dump},
    {"explain", "Tell what is known of an op: signature, aliasing, placement, gradient, steps",
     "shardgen explain add ops_yaml/*.yaml\n"
     "shardgen explain add_ ops_yaml/math.yaml --format json",
     add_explain},
    {"scaffold", "Write skeletons of what a new op needs: kernel, infer_meta, rule, test",
     "shardgen scaffold softplus --yaml ops_yaml/math.yaml --out new", add_scaffold},
    {"docs", "Write a reference of all ops as a page for browsers", "shardgen docs ops_yaml/*.yaml --out reference",
     add_docs},
    {"schema", "Print a JSON Schema of op YAML, for editors", "shardgen schema > docs/op_yaml.schema.json", add_schema},
    {"completion", "Print a completion script for a shell",
     "source <(shardgen completion bash)\n"
     "shardgen completion zsh > ~/.zfunc/_shardgen\n"
     "shardgen completion fish > ~/.config/fish/completions/shardgen.fish",
     add_completion},
}};

}  // namespace

std::span<const Command> commands() { return kCommands; }

int fail(const std::string& message) {
  fmt::print(stderr, "shardgen: {}\n", message);
  return kUsage;
}

}  // namespace shardgen
