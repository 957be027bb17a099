// Files of traces: one if a process runs all ranks, else one for each rank.
#include "shard/dist/save_trace.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "shard/core/error.h"
#include "shard/dist/world.h"

namespace save_trace_test {

using namespace shard;

namespace {

std::string slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TraceEvent event() {
  TraceEvent e;
  e.name = "relu";
  e.begin_ns = 5000;
  e.end_ns = 6000;
  return e;
}

}  // namespace

TEST_CASE(
    "the traces of ranks that are threads of one process stand in one file, those of other ranks in files with their "
    "numbers") {
  const std::string folder = (std::filesystem::temp_directory_path() / "shard_save_trace").string();
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto threads = World::local(2);
  threads->rank(1).trace.record(event());
  CHECK(save_trace(*threads, folder + "/a.json") == std::vector<std::string>{folder + "/a.json"});
  const std::string both = slurp(folder + "/a.json");
  CHECK_THAT(both, Catch::Contains("\"rank 0\"") && Catch::Contains("\"rank 1\"") &&
                       Catch::Contains("\"pid\": 1, \"tid\": 0") && Catch::Contains("\"ts\": 0.000"));

  // A process that runs one rank of several, as each does under mpirun.
  const auto one = World::dry(4, 2);
  one->rank(2).trace.record(event());
  CHECK(save_trace(*one, folder + "/a.json") == std::vector<std::string>{folder + "/a.rank2.json"});
  const std::string alone = slurp(folder + "/a.rank2.json");
  CHECK_THAT(alone, Catch::Contains("\"rank 2\"") && Catch::Contains("\"pid\": 2") && !Catch::Contains("\"rank 0\""));
  CHECK_THAT(alone, Catch::Contains(
                        "\"ts\": 5.000"));  // of the machine's clock, so that files of several processes can be merged
  CHECK(slurp(folder + "/a.json") == both);
  CHECK(save_trace(*one, folder + "/plain") == std::vector<std::string>{folder + "/plain.rank2"});
  CHECK_THROWS_WITH(save_trace(*threads, folder + "/missing/a.json"),
                    Catch::Contains("[save_trace] cannot write") && Catch::Contains("missing/a.json"));
  std::filesystem::remove_all(folder);
}

}  // namespace save_trace_test
