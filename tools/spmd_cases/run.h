// Runs a case: binds its arguments, calls the rule, and compares the results.
#pragma once

#include <string>
#include <vector>

#include "case.h"

namespace spmd_cases {

/// The layout of one tensor in an answer: for each dim the mesh axes that shard it, and the axes on
/// which it is pending.
struct Placed {
  std::vector<std::vector<int>> axes;
  std::vector<int64_t> partial;
};

/// One side of an answer: a list of tensors per slot, with a single tensor for a slot that is not a
/// list.
struct AnswerSide {
  std::vector<std::vector<Placed>> slots;
  std::vector<bool> lists;  // for each slot, whether it is a list
  size_t intermediate = 0;  // the number of last slots that the count of a case may leave out
};

struct Answer {
  bool error = false;
  std::string message;  // why the rule refused the call
  AnswerSide inputs;
  AnswerSide outputs;
};

struct UnknownRule : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The answer of the rule; arguments that do not fit it count as a refusal. Throws UnknownRule for
/// a name that is not in the table.
Answer answer(const Case& c, bool compat);

/// The differences between the answer and the expectations, one sentence each. Empty if the case
/// passes.
std::vector<std::string> differences(const Case& c, const Answer& answer);

/// The text of a layout: "[0, -1] partial [1]". A dim that several axes shard is "0+1".
std::string to_text(const Placed& placed);

}  // namespace spmd_cases
