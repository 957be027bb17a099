// Draws programs as SVG with Graphviz's program `dot`.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "shard/core/error.h"
#include "shard/program/io/dot.h"

namespace shard::program {
namespace {

struct Closer {
  void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, Closer>;

/// A temporary file without a name. Never on descriptors 0 to 2, which may be free if the program
/// has closed its own: the child uses these.
File temporary() {
  const File file(std::tmpfile());
  const int high = file ? fcntl(fileno(file.get()), F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;
  File moved(high < 0 ? nullptr : fdopen(high, "w+b"));
  if (!moved) fail(ErrorCode::invalid_argument, "[to_svg] cannot make a temporary file: {}", std::strerror(errno));
  return moved;
}

std::string read_all(FILE* file) {
  std::rewind(file);
  std::string text;
  char buffer[1 << 14];
  while (const size_t size = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, size);
  return text;
}

/// Runs `dot -Tsvg` on these files and returns its status in the form of waitpid().
int run_dot(FILE* in, FILE* out, FILE* errors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(in), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(errors), STDERR_FILENO);
  char program[] = "dot", format[] = "-Tsvg";
  char* const arguments[] = {program, format, nullptr};
  pid_t child = 0;
  const int problem = posix_spawnp(&child, program, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (problem == ENOENT) {
    fail(ErrorCode::invalid_argument,
         "[to_svg] programs are drawn by Graphviz, whose program 'dot' is not in PATH; install it (Debian package "
         "graphviz), or write to_dot() to a file and draw that elsewhere with 'dot -Tsvg'");
  }
  if (problem != 0) fail(ErrorCode::invalid_argument, "[to_svg] cannot start 'dot': {}", std::strerror(problem));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(ErrorCode::invalid_argument, "[to_svg] cannot wait for 'dot': {}", std::strerror(errno));
  }
  return status;
}

}  // namespace

std::string to_svg(const Program& program) {
  const std::string graph = to_dot(program);
  const File in = temporary(), out = temporary(), errors = temporary();
  if (std::fwrite(graph.data(), 1, graph.size(), in.get()) != graph.size() || std::fflush(in.get()) != 0)
    fail(ErrorCode::invalid_argument, "[to_svg] cannot write a temporary file: {}", std::strerror(errno));
  std::rewind(in.get());
  const int status = run_dot(in.get(), out.get(), errors.get());
  std::string svg = read_all(out.get());
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || svg.empty())
    fail(ErrorCode::invalid_argument, "[to_svg] 'dot' could not draw the program: {}", read_all(errors.get()));
  return svg;
}

}  // namespace shard::program
