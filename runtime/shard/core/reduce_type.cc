#include "shard/core/reduce_type.h"

#include <string>

#include "shard/core/error.h"

namespace shard {

ReduceType parse_reduce_type(std::string_view name) {
  if (const auto type = find_reduce_type(name)) return *type;
  std::string names;
  for (int i = 0; i < kNumReduceTypes; ++i) {
    names += i == 0 ? "" : i + 1 < kNumReduceTypes ? ", " : " or ";
    names += to_string(static_cast<ReduceType>(i));
  }
  fail(ErrorCode::invalid_argument, "'{}' is not a reduce type; choose {}", name, names);
}

}  // namespace shard
