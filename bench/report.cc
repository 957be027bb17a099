// Prints the table of bench/run.sh: bench_report FOLDER reads dispatch.json, codegen.json, codegen_memory.json and
// instructions.txt from it. A file or a row that is missing shows as "-"; no figure ever makes it fail.
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace {

using Json = nlohmann::json;
using Figure = std::optional<double>;

/// A row of the table: what was measured, its unit, and the source of its figures.
struct Line {
  const char* label;
  const char* unit;
  const char* file;
  const char* benchmark;
  const char* field;  // a counter, or "real_time"
  double target;      // 0 where there is none
  const char* peer;
  const char* counted;         // the name in instructions.txt
  const char* over = "";       // the benchmark whose time is subtracted, and
  const char* peer_over = "";  // that of the peer
};

constexpr Line kLines[] = {
    {"dense add, 4 floats", "ns", "dispatch.json", "shard/add", "real_time", 150, "peer/add", "add"},
    {"dense add_ in place", "ns", "dispatch.json", "shard/add_", "real_time", 0, "peer/add_", "add_"},
    {"dense reshape view", "ns", "dispatch.json", "shard/view", "real_time", 80, "peer/view", "view"},
    {"dense matmul 4x4", "ns", "dispatch.json", "shard/matmul_4x4", "real_time", 0, "peer/matmul_4x4", "matmul_4x4"},
    {"multiply, 4 floats", "ns", "dispatch.json", "shard/multiply", "real_time", 0, "peer/multiply", "multiply"},
    {"  recording it", "ns", "dispatch.json", "shard/multiply_recorded", "real_time", 200, "peer/multiply_recorded", "",
     "shard/multiply", "peer/multiply"},
    {"mul, sum, backward", "ns", "dispatch.json", "shard/mul_sum_backward", "real_time", 1500, "peer/mul_sum_backward",
     "mul_sum_backward"},
    {"dist add, 1 rank", "ns", "dispatch.json", "shard/dist_add/ranks:1", "real_time", 0, "", "dist_add"},
    {"  over the dense call", "ns", "dispatch.json", "shard/dist_add/ranks:1", "over_dense_ns", 300, "", ""},
    {"  the same, wall clock", "ns", "dispatch.json", "shard/dist_add/ranks:1", "wall_over_dense_ns", 300, "", ""},
    {"dist add, 2 ranks", "ns", "dispatch.json", "shard/dist_add/ranks:2", "real_time", 0, "", ""},
    {"  over the dense call", "ns", "dispatch.json", "shard/dist_add/ranks:2", "over_dense_ns", 300, "", ""},
    {"  the same, wall clock", "ns", "dispatch.json", "shard/dist_add/ranks:2", "wall_over_dense_ns", 300, "", ""},
    {"dist view, 1 rank", "ns", "dispatch.json", "shard/dist_view/ranks:1", "real_time", 0, "", "dist_view"},
    {"dist view, 2 ranks", "ns", "dispatch.json", "shard/dist_view/ranks:2", "real_time", 0, "", ""},
    {"generate all YAML, disk", "ms", "codegen.json", "shardgen/generate", "real_time", 30, "", ""},
    {"  computing time", "ms", "codegen.json", "shardgen/generate", "cpu_ms", 0, "", ""},
    {"generate all YAML, memory", "ms", "codegen_memory.json", "shardgen/generate", "real_time", 30, "", ""},
    {"generate, nothing to do", "ms", "codegen.json", "shardgen/nothing_to_do", "real_time", 5, "", ""},
    {"  process start alone", "ms", "codegen.json", "shardgen/start_only", "real_time", 0, "", ""},
};

/// The medians of a file of Google Benchmark, by the name of the benchmark without "/iterations:..." and the like.
class Medians {
 public:
  explicit Medians(const std::string& path) {
    std::ifstream file(path);
    const Json all = Json::parse(file, nullptr, false);
    if (!all.is_object()) return;
    for (const Json& each : all.value("benchmarks", Json::array())) {
      if (each.value("aggregate_name", "") != "median") continue;
      std::string name = each.value("run_name", "");
      for (const char* tail : {"/iterations:", "/repeats:", "/manual_time"}) name = name.substr(0, name.find(tail));
      rows_[name] = each;
    }
  }
  /// The figure minus the figure of `over`, unless that is empty.
  Figure get(const std::string& name, const char* field, const std::string& over) const {
    const Figure all = get(name, field), part = over.empty() ? Figure(0) : get(over, field);
    return all && part ? Figure(*all - *part) : Figure();
  }

 private:
  Figure get(const std::string& name, const char* field) const {
    const auto row = rows_.find(name);
    if (row == rows_.end() || !row->second.contains(field)) return {};
    return row->second.at(field).get<double>();
  }

  std::map<std::string, Json> rows_;
};

std::map<std::string, double> read_counts(const std::string& path) {
  std::map<std::string, double> counts;
  std::ifstream file(path);
  std::string name;
  double value = 0;
  while (file >> name >> value) counts[name] = value;
  return counts;
}

std::string text(Figure value, const char* format) { return value ? fmt::format(fmt::runtime(format), *value) : "-"; }
Figure ratio(Figure a, Figure b) { return a && b && *b != 0 ? Figure(*a / *b) : Figure(); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: bench_report FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  std::map<std::string, Medians> files;
  for (const char* name : {"dispatch.json", "codegen.json", "codegen_memory.json"})
    files.emplace(name, Medians(folder + "/" + name));
  const std::map<std::string, double> counts = read_counts(folder + "/instructions.txt");
  fmt::print("{:<26} {:>10} {:>9} {:>8} {:>10} {:>11} {:>13}\n", "median of", "measured", "target", "/target", "peer",
             "peer/ours", "instructions");
  for (const Line& line : kLines) {
    const Medians& medians = files.at(line.file);
    const Figure measured = medians.get(line.benchmark, line.field, line.over);
    const Figure target = line.target != 0 ? Figure(line.target) : Figure();
    const Figure peer = medians.get(line.peer, "real_time", line.peer_over);
    const auto counted = counts.find(line.counted);
    fmt::print("{:<26} {:>7} {:<2} {:>9} {:>8} {:>10} {:>11} {:>13}\n", line.label, text(measured, "{:.1f}"), line.unit,
               text(target, "{:.0f}"), text(ratio(measured, target), "{:.2f}"), text(peer, "{:.0f}"),
               text(ratio(peer, measured), "{:.1f}x"),
               text(counted == counts.end() ? Figure() : Figure(counted->second), "{:.0f}"));
  }
  return 0;
}
