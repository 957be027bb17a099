// How the contributions to a partial value combine. Listed once for specs, collectives and kernels.
#pragma once

#include <cstdint>
#include <string_view>

namespace shard {

enum class ReduceType : uint8_t { sum, max, min, prod, avg, any, all };

inline constexpr int kNumReduceTypes = 7;

/// "sum", "max", ...
const char* to_string(ReduceType type);
/// Throws invalid_argument.
ReduceType parse_reduce_type(std::string_view name);

}  // namespace shard
