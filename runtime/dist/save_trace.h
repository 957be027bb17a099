// Writing the traces of a world's ranks to files.
#pragma once

#include <string>
#include <vector>

namespace shard {

class World;

/// Writes what the trace rings of this process's ranks hold, in the Chrome trace format: to `path` where this process runs all ranks, else (as
/// under mpirun) to a file for each of its ranks with the number in its name, "step.json" as "step.rank3.json". Returns the paths.
/// Throws invalid_argument for a file that cannot be written.
std::vector<std::string> save_trace(const World& world, const std::string& path);

}  // namespace shard
