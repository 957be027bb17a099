// Axis expressions, placement rules in one line: "b m k, k n -> b m n". They are parsed, printed
// and differentiated here, for the tool and the runtime. spmd/expression.cc applies them to a
// call's tensors. docs/rules.md has the grammar.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/reduce_type.h"

namespace shard {

/// A mark on dims of `...` that the attribute `attr` names. `at` is the byte offset of the mark in
/// the text.
struct AxisMark {
  enum class Kind {
    whole,     // !attr: they are never sharded
    combined,  // *attr: they may be sharded, because the kernel combines values over ranks itself
    reduce,    // attr:type: they are reduced
    // -attr: absent from the tensor; -attr?flag: present with size 1 when the bool attribute `flag`
    // is true
    removed,
    added,    // +attr: new dims
    permuted  // @attr: the dims in the order of the list attr
  };
  Kind kind = Kind::whole;
  std::string attr;
  bool onward = false;  // attr..: the dim that attr names and all dims after it
  std::optional<ReduceType> type;
  std::string flag;
  size_t at = 0;
  size_t flag_at = 0;

  /// True where the mark moves dims; other marks say how they may be sharded.
  bool moves() const { return kind == Kind::removed || kind == Kind::added || kind == Kind::permuted; }
};

/// One or, for `...`, any number of dims of a tensor.
struct Axis {
  enum class Kind { name, one, ellipsis };
  Kind kind = Kind::name;
  std::string name;                // of Kind::name
  bool whole = false;              // !name, !...: the dims are never sharded
  bool combined = false;           // *name, *...: the kernel combines values over ranks that shard the dims
  bool optional = false;           // name?: tensors with fewer dims do not have it
  std::optional<ReduceType> type;  // name:max; 1:sum
  std::vector<AxisMark> marks;     // of `...`, in braces
  size_t at = 0;
};

/// The dims of one tensor, or of each tensor of a list.
struct SHARD_API AxisTerm {
  bool list = false;  // in square brackets
  std::vector<Axis> axes;
  std::string transpose;  // ^flag: the last two axes are swapped when the bool attribute `flag` is true
  size_t at = 0;
  size_t transpose_at = 0;

  /// True for the term `1`: a tensor none of whose dims is sharded.
  bool is_one() const { return axes.size() == 1 && axes[0].kind == Axis::Kind::one; }
  /// The axis `...` of the term, or null.
  const Axis* ellipsis() const;
};

/// How an op commutes with a pending reduction of its arguments, and for which types.
struct Commutation {
  enum class Kind { linear, rearranging, monotone, multilinear };
  Kind kind = Kind::linear;
  std::vector<ReduceType> types;  // empty: the default types of the kind
  size_t at = 0;
};

/// In the order of the enum.
inline constexpr std::array<std::string_view, 4> kCommutationNames = {"linear", "rearranging", "monotone",
                                                                      "multilinear"};

SHARD_API std::optional<Commutation::Kind> find_commutation_kind(std::string_view name);
/// "monotone(max)"
SHARD_API std::string to_string(const Commutation& commutation);
/// The types, or the default types of the kind where there are none.
SHARD_API std::vector<ReduceType> reductions_of(const Commutation& commutation);
/// The same, as a bit mask.
SHARD_API unsigned type_bits(const Commutation& commutation);

struct AxisExpr {
  bool each = false;  // each: the terms are those of one entry of every list
  std::vector<AxisTerm> inputs;
  std::vector<AxisTerm> outputs;
  std::optional<Commutation> commutation;  // ~ linear
};

/// A problem of an expression: a sentence, and the byte offset to which it refers.
struct AxisProblem {
  size_t at = 0;
  std::string message;
};

/// True when a rule is an axis expression, that is, contains an arrow, and not the name of a C++
/// rule.
SHARD_API bool is_axis_expr(std::string_view rule);
/// Parses an expression. On invalid input returns nothing and sets `problem`.
SHARD_API std::optional<AxisExpr> parse_axis_expr(std::string_view text, AxisProblem& problem);
/// A contradiction within an expression, whatever the op: an axis of an output that no input has, a
/// type on an axis that is not reduced.
SHARD_API std::optional<AxisProblem> find_problem(const AxisExpr& expr);
/// The text in canonical spacing; it parses to an equal expression.
SHARD_API std::string to_string(const AxisExpr& expr);

/// True when each output is `...` and each input is `...` or `1`: every output element depends on
/// one element of each input.
SHARD_API bool is_elementwise(const AxisExpr& expr);

/// The names of an op's tensor arguments and outputs, in order.
struct SlotNames {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> shape_only = {};  // the inputs of which the op reads no elements
};

/// The expression of the op that computes gradients. Its arguments are inputs and outputs of the
/// forward op and `<output>_grad`; its outputs are `<input>_grad`. Nothing where a name is none of
/// these, or an output has dims that no argument has.
SHARD_API std::optional<AxisExpr> gradient_of(const AxisExpr& forward, const SlotNames& forward_slots,
                                              const SlotNames& backward_slots);

}  // namespace shard
