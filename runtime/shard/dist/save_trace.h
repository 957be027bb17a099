// Writes the traces of a world's ranks to files.
#pragma once

#include <string>
#include <vector>

#include "shard/core/export.h"

namespace shard {

class World;

/// Writes the trace rings of this process's ranks in the Chrome trace format. If this process runs
/// all ranks, they are written to `path`. Otherwise (for example under mpirun) there is a file for
/// each of its ranks with the number in its name: "step.json" becomes "step.rank3.json". Returns
/// the paths. Throws invalid_argument for a file that cannot be written.
SHARD_API std::vector<std::string> save_trace(const World& world, const std::string& path);

}  // namespace shard
