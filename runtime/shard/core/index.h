// What Tensor::index takes for each dim: positions, slices, new dims and the ellipsis, as in Python.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <variant>

#include "shard/core/call_site.h"

namespace shard {

/// start:stop:step. Negative positions count from the end of the dim; positions outside it are
/// clamped. Without `start` and `stop` the slice covers the whole dim, backwards for a negative step.
struct Slice {
  explicit Slice(std::optional<int64_t> start = std::nullopt, std::optional<int64_t> stop = std::nullopt,
                 int64_t step = 1)
      : start(start), stop(stop), step(step) {}

  std::optional<int64_t> start, stop;
  int64_t step;
};

struct NewAxis {};
/// Inserts a dim of size 1.
inline constexpr NewAxis kNewAxis;

struct Ellipsis {};
/// Stands for as many whole dims as the other indices leave.
inline constexpr Ellipsis kEllipsis;

/// One index, and the line of the program with it.
class Index {
 public:
  template <std::integral T>
  Index(T position, CallSite site = CallSite::here())  // NOLINT: literals convert
      : value(static_cast<int64_t>(position)), site(site) {}
  Index(const Slice& slice, CallSite site = CallSite::here()) : value(slice), site(site) {}  // NOLINT
  Index(NewAxis, CallSite site = CallSite::here()) : value(NewAxis()), site(site) {}         // NOLINT
  Index(Ellipsis, CallSite site = CallSite::here()) : value(Ellipsis()), site(site) {}       // NOLINT

  std::variant<int64_t, Slice, NewAxis, Ellipsis> value;
  CallSite site;
};

}  // namespace shard
