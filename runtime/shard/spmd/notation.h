// The solver behind most rules: dims are named by letters, and each mesh axis is assigned to a
// letter by cost.
#pragma once

#include <algorithm>
#include <vector>

#include "shard/core/axis_expr.h"
#include "shard/core/export.h"
#include "shard/spmd/rule.h"

namespace shard::spmd {

/// A letter: an index of the op that dims of several tensors have in common.
struct Letter {
  enum class Role : uint8_t {
    map,         // each index is computed independently: may be sharded
    reduce,      // reduced; where it is sharded, outputs without it are partial
    collective,  // as map, but the kernel combines a few values over the axes that shard it
    combined,    // as collective, but the kernel combines values for each line along it
    whole        // must not be sharded
  };
  Role role = Role::map;
  ReduceType type = ReduceType::sum;  // for reduce
  int64_t size = 1;
  int64_t gathered = 0;  // for combined: bytes that the kernel gathers of each line from each rank; 0: it reduces 16
};

inline constexpr int kNoLetter = -1;  // a dim that is never sharded, such as a broadcast dim of size 1

/// The kernel fetches elements of an input from other ranks where a letter of it is sharded, as windows that reach into
/// the shards of neighbours need them. The dims of a letter with fetches may have different sizes.
struct Fetch {
  size_t input = 0;  // flat
  int letter = kNoLetter;
  /// For each mesh axis: what a rank receives if that axis shards the letter, as a part of the input.
  std::vector<double> part;
};

/// The letter of each dim of each flat input and output.
struct Notation {
  std::vector<Letter> letters;
  std::vector<std::vector<int>> inputs;
  std::vector<std::vector<int>> outputs;
  /// For each output, or empty: it does not depend on letters that other outputs keep, so it is not
  /// pending where those are sharded.
  std::vector<bool> uniform;
  std::vector<Fetch> fetches;

  bool has(size_t output, int letter) const {
    return std::find(outputs[output].begin(), outputs[output].end(), letter) != outputs[output].end();
  }
  int add(Letter letter) {
    letters.push_back(letter);
    return static_cast<int>(letters.size()) - 1;
  }
};

/// Layouts for the call. Each mesh axis, independently, is assigned to the letter, to the pending
/// reduction, or to nothing, whichever sends the fewest bytes; ties go to the first of that order.
/// Where args.wanted is set, this is solve_reverse(). Where args.solver is set, that decides instead.
SHARD_API RuleResult solve(const RuleArgs& args, const Notation& notation);

/// Layouts for the call from the layouts that its outputs should get (null: any). Each mesh axis is
/// assigned to the letter that it shards in the first output with that axis. Letters that no output
/// has get no axis, and a pending output requires nothing. The arguments' specs are ignored, except
/// that null means absent.
SHARD_API RuleResult solve_reverse(const RuleArgs& args, const Notation& notation,
                                   std::span<const DistSpec* const> outputs);

/// The expression, parsed once per text and kept for the lifetime of the process. Throws layout,
/// with the column, where it is invalid.
SHARD_API const AxisExpr& parsed(const RuleArgs& args, std::string_view expression);

/// The layouts of a call by an axis expression such as "b m k, k n -> b m n"; see docs/rules.md. Throws layout where
/// tensors do not fit.
SHARD_API RuleResult infer_by_expression(const RuleArgs& args, std::string_view expression);

/// The notation of an axis expression; of one that begins with "each:", for the tensors of one entry of the lists.
SHARD_API Notation from_expression(const RuleArgs& args, const AxisExpr& expr, std::string_view text);

/// Adds a new letter for each dim of a tensor of shape `dims`, and returns them.
SHARD_API std::vector<int> fresh_letters(Notation& notation, const Dims& dims, Letter::Role role = Letter::Role::map);

}  // namespace shard::spmd
