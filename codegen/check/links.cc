// Checks that `backward` and `forward` refer to each other, and that a backward op's arguments and
// outputs match its forward op. A contradiction to another op is a warning: PaddlePaddle's files
// contain some, and each op alone is still valid.
#include <fmt/format.h>

#include <algorithm>

#include "check/cycles.h"
#include "check/parts.h"
#include "diag/suggest.h"
#include "model/call.h"

namespace shardgen {
namespace {

constexpr std::string_view kGrad = "_grad";

std::string_view kind_of(bool list) { return list ? "Tensor[]" : "Tensor"; }

/// The ops that a name can refer to. Several files may define one; a link is valid when it fits any
/// of them.
using Candidates = std::vector<const Op*>;

const Candidates& candidates(const OpsByName& ops, const Name& name) {
  static const Candidates none;
  const auto found = ops.find(name.text);
  return found == ops.end() ? none : found->second;
}

template <class Fits>
bool any_of(const Candidates& ops, Fits fits) {
  return std::any_of(ops.begin(), ops.end(), [&](const Op* op) { return fits(*op); });
}

/// All ops by name, with suggestions for unknown names.
struct Linked {
  OpsByName ops;
  Suggester forward, backward;

  explicit Linked(const std::vector<Family>& families)
      : ops(group_by_name(families)), forward(names(false)), backward(names(true)) {}

 private:
  std::vector<std::string_view> names(bool is_backward) const {
    std::vector<std::string_view> names;
    for (const auto& [text, each] : ops) {
      if (any_of(each, [&](const Op& op) { return op.is_backward == is_backward; })) names.push_back(text);
    }
    return names;
  }
};

void check_backward_key(const Op& op, Linked& linked, DiagnosticSink& sink) {
  const Name& name = *op.backward;
  const Candidates& found = candidates(linked.ops, name);
  if (!any_of(found, [](const Op& each) { return each.is_backward; })) {
    sink.warning(
        name.at, "unknown-backward",
        fmt::format("'{}' in 'backward' is not a backward op of these files{}", name.text, linked.backward(name.text)));
    return;
  }
  if (any_of(found, [&](const Op& each) {
        return each.is_backward && (!each.forward || each.forward->name.text == op.name.text);
      }))
    return;
  const Op& other = **std::find_if(found.begin(), found.end(), [](const Op* each) { return each->is_backward; });
  sink.warning(name.at, "backward-of-another",
               fmt::format("Op '{}' names '{}' as its backward op, but that op has 'forward : {}'.", op.name.text,
                           name.text, other.forward->name.text),
               {{other.forward->name.at, "Its forward op."}});
}

/// A position where a declared signature and the op's own differ.
struct Difference {
  Location at;
  std::string message;
};

std::optional<Difference> compare_args(const Forward& forward, const Op& op) {
  const Signature& declared = forward.signature;
  if (declared.args.size() != op.signature.args.size()) {
    return Difference{forward.name.at, fmt::format("'forward' declares '{}' with {} arguments, but that op has {}.",
                                                   op.name.text, declared.args.size(), op.signature.args.size())};
  }
  for (size_t i = 0; i < declared.args.size(); ++i) {
    const Name& name = name_of(declared, declared.args[i]);
    const std::string_view kind = kind_of(declared, declared.args[i]);
    const std::string_view own = kind_of(op.signature, op.signature.args[i]);
    if (kind != own) {
      return Difference{
          name.at, fmt::format("'forward' declares argument '{}' of '{}' with type {}, but it is of type {} there.",
                               name.text, op.name.text, kind, own)};
    }
    const Name& own_name = name_of(op.signature, op.signature.args[i]);
    if (op.is_backward || name.text == own_name.text) continue;
    return Difference{name.at, fmt::format("'forward' names an argument of '{}' '{}', but it is '{}' there.",
                                           op.name.text, name.text, own_name.text)};
  }
  return std::nullopt;
}

std::optional<Difference> compare_outputs(const Forward& forward, const Op& op) {
  const std::vector<Output>& declared = forward.signature.outputs;
  const std::vector<Output>& own = op.signature.outputs;
  if (declared.size() != own.size()) {
    return Difference{forward.name.at, fmt::format("'forward' declares '{}' with {} outputs, but that op has {}.",
                                                   op.name.text, declared.size(), own.size())};
  }
  for (size_t i = 0; i < declared.size(); ++i) {
    const Name& name = declared[i].name;
    if (declared[i].list != own[i].list) {
      return Difference{name.at,
                        fmt::format("'forward' declares output '{}' of '{}' with type {}, but it is of type {} there.",
                                    name.text, op.name.text, kind_of(declared[i].list), kind_of(own[i].list))};
    }
    const bool renamed = declared[i].named && own[i].named && name.text != own[i].name.text;
    if (op.is_backward || !renamed) continue;
    return Difference{name.at, fmt::format("'forward' names an output of '{}' '{}', but it is '{}' there.",
                                           op.name.text, name.text, own[i].name.text)};
  }
  return std::nullopt;
}

/// Higher derivatives may use other names for the outputs and arguments of their forward op, which
/// is a backward op itself: PaddlePaddle writes `grad_out` where that op has `out_grad`. Numbers
/// and kinds must agree.
std::optional<Difference> compare(const Forward& forward, const Op& op) {
  if (!op.complete) return std::nullopt;
  std::optional<Difference> difference = compare_args(forward, op);
  return difference ? difference : compare_outputs(forward, op);
}

void check_forward_key(const Op& op, Linked& linked, DiagnosticSink& sink) {
  const OpsByName& ops = linked.ops;
  const Name& name = op.forward->name;
  const Candidates& found = candidates(ops, name);
  if (found.empty()) {
    sink.warning(name.at, "unknown-forward",
                 fmt::format("'{}' in 'forward' is not an op of these files{}", name.text, linked.forward(name.text)));
    return;
  }
  if (!any_of(found, [&](const Op& each) { return !compare(*op.forward, each); })) {
    const Difference difference = *compare(*op.forward, *found.front());
    sink.warning(difference.at, "forward-differs", difference.message, {{found.front()->name.at, "The forward op."}});
  }
  if (any_of(found, [&](const Op& each) { return each.backward && each.backward->text == op.name.text; })) return;
  const Op& forward = *found.front();
  // An invalid link is reported at its own position.
  if (forward.backward && !any_of(candidates(ops, *forward.backward), [](const Op& each) { return each.is_backward; }))
    return;
  const Location at = forward.backward ? forward.backward->at : forward.name.at;
  sink.warning(
      op.name.at, "unlinked-backward",
      fmt::format("Op '{}' does not name '{}' as its backward op: write 'backward : {}' there, or remove this op.",
                  forward.name.text, op.name.text, op.name.text),
      {{at, forward.backward ? "Its backward op is another." : "The forward op has no key 'backward'."}});
}

/// Tensors that autograd can pass to a backward op: its forward op's arguments and outputs, and
/// gradients of these outputs.
struct Given {
  std::string_view name;
  bool list = false;
  bool gradient = false;
};

std::vector<Given> given_tensors(const Signature& forward) {
  std::vector<Given> tensors;
  for (const Input& input : forward.inputs) tensors.push_back({input.name.text, input.list, false});
  for (const Output& output : forward.outputs) tensors.push_back({output.name.text, output.list, false});
  for (const Output& output : forward.outputs) tensors.push_back({output.name.text, output.list, true});
  return tensors;
}

bool is_called(const Given& given, std::string_view name) {
  if (!given.gradient) return name == given.name;
  return name.size() == given.name.size() + kGrad.size() && name.starts_with(given.name) && name.ends_with(kGrad);
}

void check_tensor(const Op& op, const Input& input, const std::vector<Given>& tensors, DiagnosticSink& sink) {
  const std::string& name = input.name.text;
  std::vector<std::string> words;
  for (const Given& each : tensors) {
    if (is_called(each, name)) {
      if (each.list == input.list) return;
      sink.warning(input.name.at, "bad-backward",
                   fmt::format("'{}' is of type {} here, but of type {} in forward op '{}'.", name, kind_of(input.list),
                               kind_of(each.list), op.forward->name.text),
                   {{op.forward->name.at, "The forward op."}});
      return;
    }
    words.push_back(std::string(each.name) + (each.gradient ? std::string(kGrad) : ""));
  }
  sink.warning(input.name.at, "bad-backward",
               fmt::format("'{}' is not an argument or output of forward op '{}', nor the gradient of an output{}",
                           name, op.forward->name.text, suggestion(name, {words.begin(), words.end()})),
               {{op.forward->name.at, "The forward op."}});
}

void check_attr(const Op& op, const Attr& attr, DiagnosticSink& sink) {
  const Signature& forward = op.forward->signature;
  const int index = find_attr(forward, attr.name.text);
  if (index >= 0) {
    if (forward.attrs[index].type == attr.type) return;
    sink.warning(attr.name.at, "bad-backward",
                 fmt::format("'{}' is of type {} here, but of type {} in 'forward'.", attr.name.text,
                             yaml_name(attr.type), yaml_name(forward.attrs[index].type)),
                 {{forward.attrs[index].name.at, "The argument of the forward op."}});
    return;
  }
  // With a default value it is a constant for the kernel.
  if (attr.default_value) return;
  std::vector<std::string_view> known;
  for (const Attr& each : forward.attrs) known.push_back(each.name.text);
  sink.warning(attr.name.at, "bad-backward",
               fmt::format("'{}' is not an argument of forward op '{}' and has no default value{}", attr.name.text,
                           op.forward->name.text, suggestion(attr.name.text, known)),
               {{op.forward->name.at, "The forward op."}});
}

/// An output is the gradient of an argument, and is named after it. Intermediate outputs are for
/// the kernel alone.
void check_gradient(const Op& op, const Output& output, DiagnosticSink& sink) {
  if (contains(op.intermediate, output.name.text)) return;
  std::vector<std::string> words;
  for (const Input& input : op.forward->signature.inputs) {
    words.push_back(input.name.text + std::string(kGrad));
    const bool alone = !output.named && op.signature.outputs.size() == 1 && op.forward->signature.inputs.size() == 1;
    if (words.back() != output.name.text && !alone) continue;
    if (input.list == output.list) return;
    sink.warning(output.name.at, "bad-backward",
                 fmt::format("'{}' is of type {}, but the argument that it is the gradient of is of type {}.",
                             output.name.text, kind_of(output.list), kind_of(input.list)),
                 {{input.name.at, "The argument of the forward op."}});
    return;
  }
  sink.warning(
      output.name.at, "bad-backward",
      fmt::format("Output '{}' is not the gradient of a tensor argument of forward op '{}': such outputs are called "
                  "'ARGUMENT_grad'{}",
                  output.name.text, op.forward->name.text, suggestion(output.name.text, {words.begin(), words.end()})),
      {{op.forward->name.at, "The forward op."}});
}

void check_backward_op(const Op& op, DiagnosticSink& sink) {
  const std::vector<Given> tensors = given_tensors(op.forward->signature);
  for (const Input& input : op.signature.inputs) check_tensor(op, input, tensors, sink);
  for (const Attr& attr : op.signature.attrs) check_attr(op, attr, sink);
  for (const Output& output : op.signature.outputs) check_gradient(op, output, sink);
}

void check_cycles(const std::vector<Family>& families, const OpsByName& ops, DiagnosticSink& sink) {
  const auto next = [&](const Op& op) -> const Op* {
    if (!op.backward) return nullptr;
    const Candidates& found = candidates(ops, *op.backward);
    return found.empty() ? nullptr : found.front();
  };
  for (const std::vector<const Op*>& cycle : find_cycles(families, next)) {
    std::vector<Note> notes;
    for (size_t i = 1; i < cycle.size(); ++i)
      notes.push_back({cycle[i]->backward->at, fmt::format("Backward of '{}'.", cycle[i]->name.text)});
    sink.error(cycle.front()->backward->at, "backward-cycle",
               fmt::format("Backward ops of '{}' lead back to it: the last derivative has no key 'backward'.",
                           cycle.front()->name.text),
               std::move(notes));
  }
}

}  // namespace

void check_links(const std::vector<Family>& families, DiagnosticSink& sink) {
  Linked linked(families);
  bool any_forward = false, any_backward = false;
  for (const Family& family : families) {
    for (const Op& op : family.ops) (op.is_backward ? any_backward : any_forward) = true;
  }
  for (const Family& family : families) {
    for (const Op& op : family.ops) {
      // A file may be checked without the file that it refers to.
      if (op.backward && any_backward) check_backward_key(op, linked, sink);
      if (!op.is_backward || !op.forward) continue;
      if (any_forward || !candidates(linked.ops, op.forward->name).empty()) check_forward_key(op, linked, sink);
      if (op.complete) check_backward_op(op, sink);
    }
  }
  check_cycles(families, linked.ops, sink);
}

}  // namespace shardgen
