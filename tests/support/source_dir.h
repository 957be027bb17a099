// Where the checkout is, for tests that read its files.
#pragma once

#include <string>

namespace shard::test {

/// The absolute path of the project's top folder, without a slash at the end: where it was at build time, or what the environment variable
/// SHARD_SOURCE_DIR says.
std::string source_dir();

}  // namespace shard::test
