// The export of traces of single ranks, whose files can be put together. That of all ranks of a process is in core/trace.h.
#pragma once

#include "core/trace.h"

namespace shard {

/// The events of ranks with these numbers in the Chrome trace format. Times are those of the machine's steady clock, so that the files of
/// several processes of one machine fit together.
std::string chrome_trace(std::span<const std::vector<TraceEvent>> ranks, std::span<const int> ids);

}  // namespace shard
