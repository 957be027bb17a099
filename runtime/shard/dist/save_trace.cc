#include "shard/dist/save_trace.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shard/core/error.h"
#include "shard/core/trace_export.h"
#include "shard/dist/world.h"

namespace shard {
namespace {

void write(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) fail(ErrorCode::invalid_argument, "[save_trace] cannot write '{}': {}", path, std::strerror(errno));
}

/// "traces/step.rank3.json" for "traces/step.json".
std::string path_of_rank(const std::string& path, int rank) {
  std::filesystem::path file(path);
  return file.replace_filename(fmt::format("{}.rank{}{}", file.stem().string(), rank, file.extension().string()))
      .string();
}

}  // namespace

std::vector<std::string> save_trace(const World& world, const std::string& path) {
  std::vector<std::vector<TraceEvent>> events;
  for (const int rank : world.local_ranks()) events.push_back(world.rank(rank).trace.events());
  if (static_cast<int>(events.size()) == world.size()) {
    write(path, chrome_trace(events));
    return {path};
  }
  std::vector<std::string> paths;
  for (size_t i = 0; i < events.size(); ++i) {
    const int rank = world.local_ranks()[i];
    paths.push_back(path_of_rank(path, rank));
    write(paths.back(), chrome_trace(std::span(&events[i], 1), std::span(&rank, 1)));
  }
  return paths;
}

}  // namespace shard
