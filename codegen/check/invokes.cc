// Checks that `invoke` refers to an op that exists and accepts those arguments, and that there are
// no cycles.
#include <fmt/format.h>

#include <algorithm>

#include "check/cycles.h"
#include "check/parts.h"
#include "diag/suggest.h"
#include "model/call.h"

namespace shardgen {
namespace {

void check_argument(const Op& op, const CallArg& arg, const Op& target, ArgRef parameter, DiagnosticSink& sink) {
  const bool literal = arg.kind == CallArg::Kind::literal;
  if (literal && std::holds_alternative<Opaque>(arg.literal.value)) return;  // check/references.cc reports it
  if (literal && !parameter.tensor) {
    check_constant(target.signature.attrs[parameter.index], arg.literal, arg.name.at, "Constant", sink);
  } else if ((literal || !type_of(op, arg).empty()) && !fits_parameter(op, arg, target.signature, parameter)) {
    const std::string_view wanted = kind_of(target.signature, parameter);
    sink.error(arg.name.at, "invoke-type",
               fmt::format("Argument '{}' of '{}' is of type {}, but {} is passed.",
                           name_of(target.signature, parameter).text, target.name.text, wanted,
                           literal ? fmt::format("the constant {}", arg.literal.spelling)
                                   : fmt::format("'{}' of type {}", arg.name.text, type_of(op, arg))),
               {{target.name.at, "The op that is invoked."}});
  }
}

void check_arity(const Op& op, const Op& target, DiagnosticSink& sink) {
  const Name& name = op.invoke->function;
  const Signature& signature = target.signature;
  const size_t given = op.invoke->args.size();
  const size_t least = required_args(signature);
  if (given < least || given > signature.args.size()) {
    sink.error(name.at, "invoke-arity",
               fmt::format("'{}' takes {} arguments, but {} are passed.", name.text,
                           least == signature.args.size() ? fmt::format("{}", least)
                                                          : fmt::format("{} to {}", least, signature.args.size()),
                           given),
               {{target.name.at, "The op that is invoked."}});
  }
  if (op.signature.outputs.size() != signature.outputs.size() && !op.is_backward) {
    sink.error(name.at, "invoke-arity",
               fmt::format("Op '{}' has {} outputs, but '{}' returns {}.", op.name.text, op.signature.outputs.size(),
                           name.text, signature.outputs.size()),
               {{target.name.at, "The op that is invoked."}});
  }
}

/// `beside`: the file of the op defines one of the target's name. The functions of an overload stand beside those of the op that it invokes, in one file, and Python calls it where arguments of that
/// one are missing.
void check_overload(const Op& op, const Op& target, bool beside, DiagnosticSink& sink) {
  const bool refers = is_overload(target);
  const std::string problem =
      refers             ? fmt::format("invokes '{}', which is an overload itself: invoke '{}'", target.name.text,
                                       target.invoke->function.text)
      : !is_overload(op) ? ""
      : !beside ? fmt::format("is an overload of '{}', which is in another file: move it there", target.name.text)
      : required_args(op.signature) >= required_args(target.signature)
          ? fmt::format("is an overload of '{}', but requires as many arguments, so that calls would not choose it",
                        target.name.text)
          : "";
  if (!problem.empty())
    sink.error(op.name.at, "overload", fmt::format("Op '{}' {}.", op.name.text, problem),
               {{target.name.at, "The op that is invoked."}});
}

void check_target(const Op& op, const OpsByName& ops, Suggester& suggest, DiagnosticSink& sink) {
  const Name& name = op.invoke->function;
  const auto found = ops.find(name.text);
  if (found == ops.end()) {
    sink.warning(name.at, "unknown-invoke",
                 fmt::format("'{}' in 'invoke' is not an op of these files{}", name.text, suggest(name.text)));
    if (is_overload(op))
      sink.error(
          op.name.at, "overload",
          fmt::format("Op '{}' is an overload of '{}', which is not an op of these files.", op.name.text, name.text));
    return;
  }
  const auto fits = [&](const Op* each) { return call_fits(op, *op.invoke, each->signature); };
  const auto fitting = std::find_if(found->second.begin(), found->second.end(), fits);
  const Op& target = fitting == found->second.end() ? *found->second.front() : **fitting;
  if (!op.complete || !target.complete) return;
  if (&target != found->second.front()) {
    sink.warning(
        name.at, "invoke-type",
        fmt::format("This call matches the second definition of '{}' only, but the first one counts.", name.text),
        {{found->second.front()->name.at, "The first definition."}, {target.name.at, "The one that it matches."}});
  }
  check_arity(op, target, sink);
  const auto in_this_file = [&](const Op* each) { return each->name.at.file == op.name.at.file; };
  check_overload(op, target, std::any_of(found->second.begin(), found->second.end(), in_this_file), sink);
  const size_t given = std::min(op.invoke->args.size(), target.signature.args.size());
  for (size_t i = 0; i < given; ++i) check_argument(op, op.invoke->args[i], target, target.signature.args[i], sink);
}

}  // namespace

void check_invokes(const std::vector<Family>& families, DiagnosticSink& sink) {
  const OpsByName ops = group_by_name(families);
  const auto next = [&](const Op& op) -> const Op* {
    const auto found = op.invoke ? ops.find(op.invoke->function.text) : ops.end();
    return found == ops.end() ? nullptr : found->second.front();
  };
  Suggester suggest(names_of(ops));
  for (const Family& family : families) {
    for (const Op& op : family.ops) {
      if (op.invoke) check_target(op, ops, suggest, sink);
    }
  }
  for (const std::vector<const Op*>& cycle : find_cycles(families, next)) {
    std::vector<Note> notes;
    for (size_t i = 1; i < cycle.size(); ++i) {
      notes.push_back({cycle[i]->invoke->function.at,
                       fmt::format("Op '{}' invokes '{}'.", cycle[i]->name.text, cycle[i]->invoke->function.text)});
    }
    const Name& function = cycle.front()->invoke->function;
    const bool itself = cycle.size() == 1;
    sink.error(function.at, "invoke-cycle",
               fmt::format("Op '{}' invokes itself{}.", cycle.front()->name.text,
                           itself ? "" : " through '" + function.text + "'"),
               std::move(notes));
  }
}

}  // namespace shardgen
