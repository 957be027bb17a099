// Compares one call on the ranks of a world with the same call on one rank, for many layouts at
// once. op_cases.h has the calls; rule_check.h tries all layouts, tests/call/property_test.cc
// random ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/dist/world.h"
#include "shard/testing/shards.h"

namespace shard::testing {

/// A layout per input of a call.
using Layouts = std::vector<const DistSpec*>;
/// "[a, -] ; [-, -] sum(a)"
SHARD_API std::string to_string(const Layouts& layouts);

/// The outcome of a distributed call.
struct Outcome {
  enum class Kind {
    right,
    wrong,    // outputs, or inputs that must not change, differ from those of one rank, or ranks disagree
    refused,  // every rank threw the same Error before the call had written anything
    invalid   // the call throws on one rank too
  };
  Kind kind = Kind::right;
  std::string text;                           // what is wrong, or the error
  ErrorCode code = ErrorCode::internal;       // where it was refused
  int64_t bytes = 0;                          // sent by all ranks together during the call
  std::vector<const DistSpec*> outputs = {};  // the layouts of the outputs
};

/// Values of the inputs of a call for a choice of layouts; the same seed draws the same values.
/// `gentle` as in split_value().
struct SHARD_API DrawnCall {
  DrawnCall(const CaseCall& call, const Layouts& layouts, uint64_t seed, bool gentle);
  /// The same call on one rank: all outputs. Throws what the op throws.
  Tensors expected(const CaseCall& call) const;

  std::vector<DenseTensor> values;               // for each input
  std::vector<std::vector<DenseTensor>> shards;  // for each input and process of the mesh
};

/// Makes calls on `ranks` in-process ranks. Not thread safe.
class CallChecker {
 public:
  explicit CallChecker(int ranks) : ranks_(ranks) {}

  /// Calls `call` once for each of `layouts`, which are on one mesh, and returns the outcomes.
  /// `ulps` is the tolerance of the case. A rank that throws alone makes its world fail and counts
  /// as wrong; the next layouts get a new world.
  std::vector<Outcome> check(const CaseCall& call, const std::vector<Layouts>& layouts, double ulps, uint64_t seed,
                             const Policies& policies = {});

 private:
  int ranks_;
  std::unique_ptr<World> world_;
};

}  // namespace shard::testing
