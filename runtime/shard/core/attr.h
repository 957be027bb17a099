// Attributes of ops as values, which programs record, write to files and pass to calls again.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "shard/core/device.h"
#include "shard/core/dims.h"

namespace shard {

/// An attribute in the C++ type that the functions of its op take (docs/generated_code.md).
using Attr = std::variant<bool, int, int64_t, float, double, DType, Scalar, IntArray, std::string, std::vector<float>,
                          std::vector<double>, Device, std::optional<DType>, std::optional<Device>, std::vector<bool>,
                          std::vector<std::string>, std::vector<Scalar>>;

namespace detail {
template <class Values>
struct PointersTo;
template <class... T>
struct PointersTo<std::variant<T...>> {
  using type = std::variant<const T*...>;
};
}  // namespace detail

/// A pointer to an attribute of a call in progress.
using AttrRef = detail::PointersTo<Attr>::type;

inline std::vector<AttrRef> attr_refs(std::span<const Attr> attrs) {
  std::vector<AttrRef> refs;
  for (const Attr& attr : attrs) refs.push_back(std::visit([](const auto& value) { return AttrRef(&value); }, attr));
  return refs;
}

}  // namespace shard
