// How the contributions to a partial value are combined: the one list for specs, collectives,
// kernels, rules and the tool.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shard {

enum class ReduceType : uint8_t { sum, max, min, prod, avg, any, all };

inline constexpr int kNumReduceTypes = 7;
/// In the order of the enum.
inline constexpr std::array<const char*, kNumReduceTypes> kReduceTypeNames = {"sum", "max", "min", "prod",
                                                                              "avg", "any", "all"};

/// "sum", "max", ...
constexpr const char* to_string(ReduceType type) { return kReduceTypeNames[static_cast<size_t>(type)]; }
/// The type of that name, or nothing.
constexpr std::optional<ReduceType> find_reduce_type(std::string_view name) {
  for (size_t i = 0; i < kReduceTypeNames.size(); ++i) {
    if (name == kReduceTypeNames[i]) return static_cast<ReduceType>(i);
  }
  return std::nullopt;
}
/// As find_reduce_type(), but throws invalid_argument for an unknown name.
ReduceType parse_reduce_type(std::string_view name);

}  // namespace shard
