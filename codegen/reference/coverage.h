// How each op is placed on a mesh: by an axis expression, by a named rule, or by replicating every argument.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lower/runtime.h"
#include "lower/support.h"
#include "model/op.h"

namespace shardgen {

struct Coverage {
  enum class Kind {
    expression,  // its own axis expression
    derived,     // derived from its forward op's expression
    named,       // a rule that the runtime has
    unknown,     // a named rule that the runtime lacks: replicated until that rule is registered
    none,        // no rule: replicated
    no_tensors,  // nothing to place
    calls,       // it only calls other functions, which have placements of their own
  };
  const Op* op;
  Kind kind;
  std::string rule;
};

/// Every op that is generated, in the order of the files.
std::vector<Coverage> coverage_of(const Selection& selection, const Runtime& runtime);
/// True for ops whose calls replicate their arguments under FallbackPolicy::replicate, and throw
/// otherwise.
bool falls_back(Coverage::Kind kind);
/// A line per op and the counts of each kind.
std::string to_text(const std::vector<Coverage>& coverage);
nlohmann::ordered_json to_json(const std::vector<Coverage>& coverage);

}  // namespace shardgen
