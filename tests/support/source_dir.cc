#include "support/source_dir.h"

namespace shard::test {

std::string source_dir() { return SHARD_SOURCE_DIR; }

}  // namespace shard::test
