// Brute-force verification of placement rules: every op case on every layout of its arguments along
// one mesh axis, compared with one rank. The program shard_verify_rules runs it on the ops of this
// library; a project with ops of its own calls verify_rules_main() with its own cases
// (docs/rules.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/testing/call_check.h"

namespace shard::testing {

/// The verdict about a rule for one choice of layouts.
enum class Verdict {
  correct,
  wrong,    // another result than on one rank, ranks that disagree, or an input that changed
  missing,  // refused: no rule, or an error that one rank does not have
  // bytes were sent, although the op on the local shards in their given layouts yields the right
  // result
  suboptimal
};
SHARD_API const char* to_string(Verdict verdict);

struct RuleCheckOptions {
  std::string op = {};       // only this op; all where empty
  std::string name = {};     // only the case of this name
  std::string dtype = {};    // only this dtype, "float32"
  std::string layouts = {};  // only these, "[a] ; [-] sum(a)"
  std::vector<int> ranks = {2, 3};
  uint64_t seed = 1;
  int trials = 3;              // random sizes and values for each choice of layouts
  size_t most_layouts = 1000;  // of a case; where it has more, this many are drawn
};

/// A choice of layouts for which the rule is not correct, or whose gap is accepted for a reason.
struct RuleFinding {
  Verdict verdict;
  std::string op;
  std::string layouts;
  std::string detail;
  std::string command;        // one line that reproduces it alone
  std::string accepted = {};  // the reason, where accepted_by_rules() has one
};

/// The number of choices of layouts for each verdict; a choice is counted once, whatever the number
/// of trials.
struct RuleCounts {
  int correct = 0, wrong = 0, missing = 0, suboptimal = 0;
  int accepted = 0;  // missing or suboptimal, with a reason
};

struct SHARD_API RuleReport {
  std::map<std::string, RuleCounts> ops;
  std::vector<RuleFinding> findings;
  RuleCounts total() const;
};

/// Tries every case on all choices of layouts: each argument replicated, sharded on each dim, or
/// pending with each reduce type. Sizes are uneven, and local shards may be empty. A choice is
/// wrong if one trial is.
SHARD_API RuleReport check_rules(const OpCases& cases, const std::vector<Accepted>& accepted,
                                 const RuleCheckOptions& options);

/// The accepted gap of an op that sends bytes, or refuses, for a case of that dtype in these
/// layouts; null where there is none.
SHARD_API const Accepted* find_accepted(const std::vector<Accepted>& accepted, Accepted::What what, std::string_view op,
                                        DType dtype, const Layouts& layouts);

/// The counts as a table, followed by the choices that are not correct.
SHARD_API std::string to_text(const RuleReport& report);
SHARD_API std::string to_json(const RuleReport& report);

/// The main function: reads the command line, prints the report. Returns 0, 1 where a rule is
/// wrong, 2 for a wrong command line.
SHARD_API int verify_rules_main(int argc, const char* const* argv, const OpCases& cases,
                                const std::vector<Accepted>& accepted);

}  // namespace shard::testing
