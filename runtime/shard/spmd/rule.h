// Placement rules: from the layouts of the inputs of an op to the layouts in which it computes. The
// rule of a new op goes into rules_*.cc and is registered by name; ops whose rule is an axis
// expression need none.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/op_def.h"
#include "shard/dist/spec.h"

namespace shard::spmd {

/// A tensor argument: its global meta and layout; spec is null for an absent optional one.
struct TensorArg {
  Meta meta;
  const DistSpec* spec = nullptr;
};

using AttrValue = std::variant<bool, int64_t, double, DType, Scalar, std::string, IntArray, std::vector<double>>;

struct Notation;  // notation.h
class LayoutSolver;

/// The inputs of a rule.
struct SHARD_API RuleArgs {
  const OpDef& op;
  const ProcessMesh* mesh;
  std::span<const TensorArg> tensors;  // flat
  std::span<const SlotRange> slots;    // for each input of the op
  std::span<const AttrValue> attrs;    // for each attribute of the op
  std::span<const Meta> outputs;       // global, flat
  std::span<const SlotRange> output_slots;
  std::vector<bool> pinned = {};  // per flat tensor: it is written in place, so its layout should stay; may be shorter
  std::span<const DistSpec* const> wanted = {};  // per flat output in infer_reverse(), else empty
  const LayoutSolver* solver = nullptr;  // assigns mesh axes to letters; null: the solver of calls, which counts bytes

  /// The attribute of that name. Throws internal when the op has none.
  const AttrValue& attr(std::string_view name) const;
  bool has_attr(std::string_view name) const {
    return std::find(op.attrs.begin(), op.attrs.end(), name) != op.attrs.end();
  }
  int64_t integer(std::string_view name) const;
  bool flag(std::string_view name) const;
  IntArray integers(std::string_view name) const;
};

/// True where the output of `slot` is absent because the optional argument that it belongs to is
/// absent: the argument that is written in place, or whose gradient it is.
SHARD_API bool is_absent_output(const RuleArgs& args, size_t slot);

/// The result of a rule: a layout per flat input and output.
struct RuleResult {
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
  AxisList reduce_axes;   // the kernel combines or fetches values over these axes itself
  bool relayout = false;  // input 0 is resharded to the layout and shape of output 0, and no kernel runs
  // for each flat output, or empty: it is absent, because the optional argument that it belongs to
  // is absent
  std::vector<bool> absent = {};
  bool fetches = false;  // the kernel fetches elements of arguments over some of reduce_axes
};

/// Decides the layouts of a call from its notation, in place of the solver of calls: for experiments with other policies, and to compare
/// with libraries that decide otherwise. With args.wanted set, in reverse.
class SHARD_API LayoutSolver {
 public:
  virtual ~LayoutSolver() = default;
  virtual RuleResult solve(const RuleArgs& args, const Notation& notation) const = 0;
};

using Rule = RuleResult (*)(const RuleArgs&);
using Guard = bool (*)(const RuleArgs&);

/// Adds a rule, or a predicate for `shard: {partial_guard: ...}`. A later one of the same name
/// replaces an earlier one.
SHARD_API void register_rule(std::string_view name, Rule rule);
/// Registers a name for an axis expression, for YAML that names its rules.
SHARD_API void register_rule(std::string_view name, std::string_view expression);
SHARD_API void register_guard(std::string_view name, Guard guard);
/// The names of all registered rules, sorted.
SHARD_API std::vector<std::string> rule_names();

/// Infers the layouts of a call from the op's named rule or axis expression. Throws no_rule, naming
/// FallbackPolicy::replicate, where it has neither.
SHARD_API RuleResult infer(const RuleArgs& args);
/// The reverse: from the layouts that the flat outputs should get (null: any), the layouts in which
/// the op has to compute, and the layouts that the outputs then get. An axis that no output shards
/// is not used by any input. Pending reductions are neither required of inputs nor given to
/// outputs, except for those that the op itself makes. The specs of args.tensors are ignored,
/// except that null means absent.
SHARD_API RuleResult infer_reverse(const RuleArgs& args, std::span<const DistSpec* const> wanted);
/// The fallback: all inputs and outputs are replicated.
SHARD_API RuleResult infer_replicated(const RuleArgs& args);
/// True where the op has a rule or an expression.
SHARD_API bool has_rule(const OpDef& op);

/// How an op commutes with pending reductions in this call, and a bit for each type.
struct Commuting {
  Commutes how = Commutes::no;
  unsigned types = 0;
};
/// From the op's table, else from the commutation in its expression; none where its guard forbids
/// it.
SHARD_API Commuting commuting(const RuleArgs& args);

}  // namespace shard::spmd
