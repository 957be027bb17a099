// The facts about an op that generated code passes to the runtime: names, aliases, placement rule.
// One OpDef per op.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string_view>

#include "shard/core/dtype.h"

namespace shard {

/// A tensor argument or output.
struct SlotDef {
  enum class Kind { single, optional, list };
  std::string_view name;
  Kind kind = Kind::single;
  bool masked =
      false;  // an output that is absent where the op's last attribute, the int64_t of a GradMask, leaves it out
};

/// The first tensor and the number of tensors of a slot, in the flat numbering. A list has any
/// number, any other slot one.
struct SlotRange {
  size_t first = 0;
  size_t count = 1;
  bool operator==(const SlotRange&) const = default;
};

/// A string literal as a template argument.
template <size_t N>
struct FixedString {
  char text[N];
  consteval FixedString(const char (&literal)[N]) { std::copy_n(literal, N, text); }
  constexpr std::string_view view() const { return {text, N - 1}; }
};

/// "x" is a tensor, "x?" an optional one, "x[]" a list. A "!" after that marks a masked output.
consteval SlotDef slot_def(std::string_view text) {
  if (text.ends_with('!')) {
    SlotDef slot = slot_def(text.substr(0, text.size() - 1));
    slot.masked = true;
    return slot;
  }
  if (text.ends_with("[]")) return {text.substr(0, text.size() - 2), SlotDef::Kind::list};
  if (text.ends_with('?')) return {text.substr(0, text.size() - 1), SlotDef::Kind::optional};
  return {text};
}

/// Arrays for OpDefs: slots<"x", "mask?">, names<"axis">, aliases<view_alias(0, 0)>.
template <FixedString... texts>
inline constexpr SlotDef slots[] = {slot_def(texts.view())...};
template <FixedString... texts>
inline constexpr std::string_view names[] = {texts.view()...};

/// `output` shares the buffer of `input`.
struct AliasDef {
  enum class Kind {
    view,          // the op only reinterprets the bytes
    written_view,  // the kernel writes the shared buffer
    inplace        // only in the in-place form: output is input
  };
  int output;
  int input;
  Kind kind;
};

consteval AliasDef view_alias(int output, int input) { return {output, input, AliasDef::Kind::view}; }
consteval AliasDef written_alias(int output, int input) { return {output, input, AliasDef::Kind::written_view}; }
consteval AliasDef inplace_alias(int output, int input) { return {output, input, AliasDef::Kind::inplace}; }
template <AliasDef... defs>
inline constexpr AliasDef aliases[] = {defs...};

/// A place where the dtype of a kernel may come from.
struct DTypeSource {
  enum class Kind { input, attr, constant };
  Kind kind;
  int index;  // of the input slot (a list: its first tensor) or of the attribute
  DType constant;
  bool to_complex = false;  // the complex dtype whose parts have that one
};

consteval DTypeSource complex_of(DTypeSource source) {
  source.to_complex = true;
  return source;
}
consteval DTypeSource input_dtype(int slot) { return {DTypeSource::Kind::input, slot, DType::float32}; }
consteval DTypeSource attr_dtype(int attr) { return {DTypeSource::Kind::attr, attr, DType::float32}; }
consteval DTypeSource constant_dtype(DType dtype) { return {DTypeSource::Kind::constant, 0, dtype}; }
template <DTypeSource... sources>
inline constexpr DTypeSource dtype_sources[] = {sources...};

inline constexpr double kNoNeutral = std::numeric_limits<double>::quiet_NaN();

/// How the op commutes with a pending reduction of its arguments (statement 14 of docs/semantics.md).
enum class Commutes {
  no,
  jointly,      // all tensor arguments partial on the same axes, with the same type
  multilinear,  // at most one argument partial
};

/// All text lives as long as the library; `name`, `inplace_name` and `kernel` are null-terminated.
struct OpDef {
  std::string_view name;
  std::string_view inplace_name = {};  // of the in-place form, "relu_"; empty if there is none
  std::string_view location = {};      // "math.yaml"
  std::span<const SlotDef> inputs = {};
  std::span<const std::string_view> attrs = {};  // in the order of the op's args
  std::span<const SlotDef> outputs = {};
  std::span<const AliasDef> aliases = {};
  // the name of a registered rule, or an axis expression (it contains "->"); empty: none
  std::string_view rule = {};
  Commutes commutes = Commutes::no;
  unsigned commute_types = 0;           // bit per ReduceType
  std::string_view commute_guard = {};  // a registered predicate that must hold too; empty: always
  bool elementwise = false;             // kernels may run with an output that is exactly an input
  // each result element depends only on the elements at the same position: kernels may run on
  // blocks
  bool pointwise = false;
  bool exact = false;        // each element is the correctly rounded result, whatever its position
  bool rearranging = false;  // the elements are those of the first input, moved or repeated
  bool identity = false;     // where shape and dtype stay the same, it copies its first input
  /// For each argument of a binary op, the value with which the result is the other argument; NaN:
  /// there is none.
  std::array<double, 2> neutral = {kNoNeutral, kNoNeutral};
  std::string_view kernel = {};                     // empty: the op only reinterprets its input
  std::span<const DTypeSource> kernel_dtypes = {};  // the kernel is looked up by the first one that is given
  bool random = false;                              // each call draws from the generator
  unsigned no_need_buffer = 0;                      // bit per input slot of which only shape and dtype are read
  unsigned dynamic_outputs = 0;  // bit per output whose number of rows comes from data (statement 15)
  int local_shape = -1;  // the attribute that shards get as the local shape of output `local_shape_output`; -1: none
  int local_shape_output = 0;
};

}  // namespace shard
