// Rules of ops of detection.
#include <string>

#include "shard/meta/vision.h"
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// Each target box is encoded against all prior boxes, but decoded against one: that of its row or of its column.
RuleResult box_coder(const RuleArgs& args) {
  const char* expression = "m 1, m 1, n 1 -> n m 1";
  if (!meta::encodes(args.op.name, std::get<std::string>(args.attr("code_type"))))
    expression = args.integer("axis") == 0 ? "m 1, m 1, n m 1 -> n m 1" : "n 1, n 1, n m 1 -> n m 1";
  return infer_by_expression(args, expression);
}

}  // namespace

void register_vision_rules() { register_rule("BoxCoderInferSpmd", box_coder); }

}  // namespace shard::spmd
