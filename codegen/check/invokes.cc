// Whether `invoke` leads to an op that exists, takes those arguments, and does not lead back.
#include <fmt/format.h>

#include <map>
#include <set>

#include "check/parts.h"
#include "diag/suggest.h"

namespace shardgen {
namespace {

using OpsByName = std::map<std::string_view, const Op*>;

/// The number of leading arguments that a caller must give.
size_t required_args(const Signature& signature) {
  size_t required = signature.args.size();
  while (required > 0) {
    const ArgRef last = signature.args[required - 1];
    if (last.tensor || !signature.attrs[last.index].default_value) break;
    --required;
  }
  return required;
}

void check_target(const Op& op, const OpsByName& ops, DiagnosticSink& sink) {
  const Name& name = op.invoke->function;
  const auto target = ops.find(name.text);
  if (target == ops.end()) {
    std::vector<std::string_view> known;
    for (const auto& [key, value] : ops) known.push_back(key);
    sink.warning(name.at, "unknown-invoke",
                 fmt::format("'{}' in 'invoke' is no op of these files{}", name.text, suggestion(name.text, known)));
    return;
  }
  if (!op.complete || !target->second->complete) return;
  const Signature& signature = target->second->signature;
  const size_t given = op.invoke->args.size();
  const size_t least = required_args(signature);
  if (given < least || given > signature.args.size()) {
    sink.error(name.at, "invoke-arity",
               fmt::format("'{}' takes {} arguments, but {} are given.", name.text,
                           least == signature.args.size() ? fmt::format("{}", least)
                                                          : fmt::format("{} to {}", least, signature.args.size()),
                           given),
               {{target->second->name.at, "The op that is invoked."}});
  }
  if (op.signature.outputs.size() != signature.outputs.size() && !op.is_backward) {
    sink.error(name.at, "invoke-arity",
               fmt::format("Op '{}' has {} outputs, but '{}' gives {}.", op.name.text, op.signature.outputs.size(),
                           name.text, signature.outputs.size()));
  }
}

void check_cycle(const Op& op, const OpsByName& ops, DiagnosticSink& sink) {
  std::set<const Op*> seen;
  for (const Op* at = &op; at->invoke;) {
    seen.insert(at);
    const auto next = ops.find(at->invoke->function.text);
    if (next == ops.end()) return;
    at = next->second;
    if (at == &op) {
      sink.error(op.invoke->function.at, "invoke-cycle",
                 fmt::format("Op '{}' invokes itself through '{}'.", op.name.text, op.invoke->function.text));
      return;
    }
    if (seen.contains(at)) return;
  }
}

}  // namespace

void check_invokes(const std::vector<Family>& families, DiagnosticSink& sink) {
  OpsByName ops;
  for (const Family& family : families) {
    for (const Op& op : family.ops) ops.emplace(op.name.text, &op);
  }
  for (const Family& family : families) {
    for (const Op& op : family.ops) {
      if (!op.invoke) continue;
      check_target(op, ops, sink);
      check_cycle(op, ops, sink);
    }
  }
}

}  // namespace shardgen
