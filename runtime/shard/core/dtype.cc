#include "shard/core/dtype.h"

#include <string>

namespace shard {

DType parse_dtype(std::string_view name) {
  std::string names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (name == to_string(dtype) || name == short_name(dtype)) return dtype;
    names += i == 0 ? "" : i + 1 < kNumDTypes ? ", " : " or ";
    names += to_string(dtype);
  }
  fail(ErrorCode::invalid_argument, "'{}' is not a dtype; choose {}", name, names);
}

}  // namespace shard
