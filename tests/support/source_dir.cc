#include "support/source_dir.h"

#include <cstdlib>

namespace shard::test {

std::string source_dir() {
  const char* const moved = std::getenv("SHARD_SOURCE_DIR");
  return moved != nullptr ? moved : SHARD_SOURCE_DIR;
}

}  // namespace shard::test
