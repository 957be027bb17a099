// Rules of ops that send messages along the edges of a graph.
#include <string>

#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// Rows are whole, because an edge may join any two. Sums over sharded edges are pending; of other reductions the parts
/// cannot be combined, because a row where no message arrives is 0.
RuleResult send(const RuleArgs& args, const char* sum, const char* other) {
  const bool adds_up = std::get<std::string>(args.attr("reduce_op")) == "SUM";
  return infer_by_expression(args, adds_up ? sum : other);
}

}  // namespace

void register_graph_rules() {
  register_rule("SendURecvInferSpmd",
                [](const RuleArgs& args) { return send(args, "1 ..., e, e -> 1 ..., 1", "1 ..., 1, 1 -> 1 ..., 1"); });
  register_rule("SendUERecvInferSpmd", [](const RuleArgs& args) {
    return send(args, "1 ..., e ..., e, e -> 1 ..., 1", "1 ..., 1 ..., 1, 1 -> 1 ..., 1");
  });
}

}  // namespace shard::spmd
