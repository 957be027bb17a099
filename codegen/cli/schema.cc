// The subcommand schema.
#include "cli/schema.h"

#include <fmt/format.h>

#include "reference/schema.h"

namespace shardgen {

std::function<int()> add_schema(CLI::App&) {
  return [] {
    put(op_schema());
    return kFine;
  };
}

}  // namespace shardgen
