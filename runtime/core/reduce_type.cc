#include "core/reduce_type.h"

#include "core/error.h"

namespace shard {
namespace {
constexpr const char* kNames[kNumReduceTypes] = {"sum", "max", "min", "prod", "avg", "any", "all"};
}

const char* to_string(ReduceType type) { return kNames[static_cast<int>(type)]; }

ReduceType parse_reduce_type(std::string_view name) {
  for (int i = 0; i < kNumReduceTypes; ++i) {
    if (name == kNames[i]) return static_cast<ReduceType>(i);
  }
  fail(ErrorCode::invalid_argument, "'{}' is no reduce type; choose sum, max, min, prod, avg, any or all", name);
}

}  // namespace shard
