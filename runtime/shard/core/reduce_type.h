// How the contributions to a partial value are combined: one table for specs, collectives, kernels,
// rules and the tool. docs/architecture.md says how to add one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "shard/core/export.h"

namespace shard {

/// What a reduction makes of contributions, as far as layouts and plans ask: `sum` and `mean` are linear, a `mean` is divided by the
/// number of contributions and has no identity, `logical` ones make 0 or 1 of numbers, the `other` ones are nothing of that.
enum class ReduceKind : uint8_t { sum, mean, logical, other };

/// One row per reduce type: its name, its kind.
#define SHARD_REDUCE_TYPES(ROW) \
  ROW(sum, sum)                 \
  ROW(max, other)               \
  ROW(min, other)               \
  ROW(prod, other)              \
  ROW(avg, mean)                \
  ROW(any, logical)             \
  ROW(all, logical)

enum class ReduceType : uint8_t {
#define SHARD_ROW(name, ...) name,
  SHARD_REDUCE_TYPES(SHARD_ROW)
#undef SHARD_ROW
};

/// In the order of the enum.
inline constexpr std::array kReduceTypeNames = {
#define SHARD_ROW(name, ...) #name,
    SHARD_REDUCE_TYPES(SHARD_ROW)
#undef SHARD_ROW
};
inline constexpr int kNumReduceTypes = static_cast<int>(kReduceTypeNames.size());

/// "sum", "max", ...
constexpr const char* to_string(ReduceType type) { return kReduceTypeNames[static_cast<size_t>(type)]; }

constexpr ReduceKind kind_of(ReduceType type) {
  constexpr ReduceKind kinds[] = {
#define SHARD_ROW(name, kind) ReduceKind::kind,
      SHARD_REDUCE_TYPES(SHARD_ROW)
#undef SHARD_ROW
  };
  return kinds[static_cast<size_t>(type)];
}
/// True for sum and avg: they can be done in either order, and 16-bit contributions to them are held in float32.
constexpr bool is_linear(ReduceType type) {
  return kind_of(type) == ReduceKind::sum || kind_of(type) == ReduceKind::mean;
}
/// True for avg: every rank contributes the value itself, and integers are cut off.
constexpr bool is_mean(ReduceType type) { return kind_of(type) == ReduceKind::mean; }
/// True for any and all.
constexpr bool is_logical(ReduceType type) { return kind_of(type) == ReduceKind::logical; }

/// The type of that name, or nothing.
constexpr std::optional<ReduceType> find_reduce_type(std::string_view name) {
  for (size_t i = 0; i < kReduceTypeNames.size(); ++i) {
    if (name == kReduceTypeNames[i]) return static_cast<ReduceType>(i);
  }
  return std::nullopt;
}
/// As find_reduce_type(), but throws invalid_argument for an unknown name.
SHARD_API ReduceType parse_reduce_type(std::string_view name);

}  // namespace shard
