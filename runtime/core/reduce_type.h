// How the contributions to a partial value combine. Listed once for specs, collectives, kernels, rules and the tool.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shard {

enum class ReduceType : uint8_t { sum, max, min, prod, avg, any, all };

inline constexpr int kNumReduceTypes = 7;
/// In the order of the enum.
inline constexpr std::array<const char*, kNumReduceTypes> kReduceTypeNames = {"sum", "max", "min", "prod", "avg", "any", "all"};

/// "sum", "max", ...
constexpr const char* to_string(ReduceType type) { return kReduceTypeNames[static_cast<size_t>(type)]; }
/// Throws invalid_argument.
ReduceType parse_reduce_type(std::string_view name);

}  // namespace shard
