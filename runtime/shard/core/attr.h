// Attributes of ops as values, which programs record, write to files and pass to calls again.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "shard/core/device.h"
#include "shard/core/dims.h"
#include "shard/core/export.h"

namespace shard {

/// The types that an attribute can have.
using AttrVariant =
    std::variant<bool, int, int64_t, float, double, DType, Scalar, IntArray, std::string, std::vector<float>,
                 std::vector<double>, Device, std::optional<DType>, std::optional<Device>, std::vector<bool>,
                 std::vector<std::string>, std::vector<Scalar>>;

/// An attribute in the C++ type that the functions of its op take (docs/generated_code.md). Its members are
/// compiled once: those of the variant cost each source that includes this header a second.
class SHARD_API Attr : public AttrVariant {
 public:
  using AttrVariant::AttrVariant;
  Attr();
  Attr(const Attr& other);
  Attr(Attr&& other) noexcept;
  Attr& operator=(const Attr& other);
  Attr& operator=(Attr&& other) noexcept;
  ~Attr();
};

namespace detail {
template <class Values>
struct PointersTo;
template <class... T>
struct PointersTo<std::variant<T...>> {
  using type = std::variant<const T*...>;
};
}  // namespace detail

/// A pointer to an attribute of a call in progress.
using AttrRef = detail::PointersTo<AttrVariant>::type;

SHARD_API std::vector<AttrRef> attr_refs(std::span<const Attr> attrs);

}  // namespace shard
