// The wall time of a whole shardgen process over all YAML of this project: into an empty folder,
// with nothing to do, and, as the lower bound, doing nothing at all. Each repetition is one
// process; read the medians.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

extern char** environ;

namespace {

namespace fs = std::filesystem;

constexpr int kProcesses = 100;

/// A temporary folder that is removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "shardgen_bench_XXXXXX").string();
    path_ = ::mkdtemp(name.data()) == nullptr ? fs::path() : fs::path(name);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<std::string> generate_into(const fs::path& out) {
  std::vector<std::string> command{SHARDGEN_TOOL, "generate"};
  for (const fs::directory_entry& entry : fs::directory_iterator(SHARDGEN_YAML)) {
    if (entry.path().extension() == ".yaml") command.push_back(entry.path().string());
  }
  std::sort(command.begin() + 2, command.end());
  command.insert(command.end(), {"--out", out.string()});
  return command;
}

/// Runs a command without output; false when it fails. `used` gets the CPU seconds, user and
/// system.
bool run(const std::vector<std::string>& command, double* used = nullptr) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  ::posix_spawn_file_actions_init(&quiet);
  ::posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&quiet, 1, 2);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, arguments[0], &quiet, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&quiet);
  int status = 1;
  rusage usage{};
  if (failed != 0 || ::wait4(child, &status, 0, &usage) != child) return false;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  if (used != nullptr) *used = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return status == 0;
}

void time_process(benchmark::State& state, const std::vector<std::string>& command) {
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    double used = 0;
    const bool fine = run(command, &used);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    state.counters["cpu_ms"] = used * 1e3;
    if (!fine) return state.SkipWithError("shardgen failed");
  }
}

void generate_fresh(benchmark::State& state) {
  const Scratch scratch;  // a new one for each repetition
  time_process(state, generate_into(scratch.path() / "out"));
}

void generate_nothing_to_do(benchmark::State& state) {
  static const Scratch scratch;
  const std::vector<std::string> command = generate_into(scratch.path() / "out");
  if (!run(command)) return state.SkipWithError("shardgen failed");
  time_process(state, command);
}

void start_only(benchmark::State& state) { time_process(state, {SHARDGEN_TOOL, "--help"}); }

void one_process_each(benchmark::internal::Benchmark* bench) {
  bench->Iterations(1)->Repetitions(kProcesses)->ReportAggregatesOnly()->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(generate_fresh)->Name("shardgen/generate")->Apply(one_process_each);
BENCHMARK(generate_nothing_to_do)->Name("shardgen/nothing_to_do")->Apply(one_process_each);
BENCHMARK(start_only)->Name("shardgen/start_only")->Apply(one_process_each);

}  // namespace

BENCHMARK_MAIN();
