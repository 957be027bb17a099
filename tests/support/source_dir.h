// Where the checkout is, for tests that read its files.
#pragma once

#include <string>

namespace shard::test {

/// The absolute path of the project's top folder, without a slash at the end.
std::string source_dir();

}  // namespace shard::test
