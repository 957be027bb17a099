#include "core/reduce_type.h"

#include "core/error.h"

namespace shard {

ReduceType parse_reduce_type(std::string_view name) {
  for (int i = 0; i < kNumReduceTypes; ++i) {
    if (name == kReduceTypeNames[static_cast<size_t>(i)]) return static_cast<ReduceType>(i);
  }
  fail(ErrorCode::invalid_argument, "'{}' is no reduce type; choose sum, max, min, prod, avg, any or all", name);
}

}  // namespace shard
