// The subcommand schema.
#include "cli/schema.h"

#include <fmt/format.h>

#include "reference/schema.h"

namespace shardgen {

std::function<int()> add_schema(CLI::App&) {
  return [] {
    fmt::print("{}", op_schema());
    return kFine;
  };
}

}  // namespace shardgen
