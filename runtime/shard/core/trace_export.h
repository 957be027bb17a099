// Exports traces of single ranks, whose files can be merged. core/trace.h has the export for all
// ranks of a process.
#pragma once

#include "shard/core/trace.h"

namespace shard {

/// The events of ranks with these numbers in the Chrome trace format. Times are those of the
/// machine's steady clock, so that the files of several processes of one machine can be merged.
std::string chrome_trace(std::span<const std::vector<TraceEvent>> ranks, std::span<const int> ids);

}  // namespace shard
