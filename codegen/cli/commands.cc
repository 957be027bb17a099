// The table of subcommands. A new one gets a file with its options and its run function, and a line
// here.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <tuple>

#include "cli/check.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/coverage.h"
#include "cli/docs.h"
#include "cli/dump.h"
#include "cli/explain.h"
#include "cli/generate.h"
#include "cli/scaffold.h"
#include "cli/schema.h"
#include "diag/printable.h"

namespace shardgen {
namespace {

constexpr std::array<Command, 9> kCommands = {{
    {"generate", "Write C++ for the ops of YAML files",
     "shardgen generate ops_yaml/*.yaml --out generated\n"
     "shardgen generate ops_yaml/*.yaml --out generated --check | patch -p1 -d generated\n"
     "shardgen generate math.yaml --out out --strict --depfile out/math.d\n"
     "shardgen generate math.yaml --out out --runtime ours.json",
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
    {"explain", "Print what is known about an op: signature, aliasing, placement, gradient, steps",
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

void guard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  // Writing to a stream that is opened for reading fails, as writing to a closed stream does.
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF) std::ignore = open("/dev/null", O_RDONLY);
  }
}

void put(std::string_view text) {
  if (std::ferror(stdout) != 0) return;  // it has already been reported
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  fail(fmt::format("Cannot write to stdout: {}.", std::strerror(errno)));
}

void print_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

int output_code() { return std::ferror(stdout) != 0 || std::ferror(stderr) != 0 ? kUsage : kFine; }

void note(const std::string& message) { print_stderr(fmt::format("shardgen: {}\n", one_line(message))); }

int fail(const std::string& message) {
  note(message);
  return kUsage;
}

}  // namespace shardgen
