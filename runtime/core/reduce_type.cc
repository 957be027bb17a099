#include "core/reduce_type.h"

#include "core/error.h"

namespace shard {

ReduceType parse_reduce_type(std::string_view name) {
  if (const auto type = find_reduce_type(name)) return *type;
  fail(ErrorCode::invalid_argument, "'{}' is no reduce type; choose sum, max, min, prod, avg, any or all", name);
}

}  // namespace shard
