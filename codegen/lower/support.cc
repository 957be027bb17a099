// Selects the ops that are generated.
#include "lower/support.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lower/identifiers.h"
#include "lower/spelling.h"
#include "model/call.h"

namespace shardgen {
namespace {

bool all_dense(const std::vector<TensorFormat>& formats) {
  return std::all_of(formats.begin(), formats.end(), [](TensorFormat format) { return format == TensorFormat::dense; });
}

bool views_lists(const Op& op) {
  return std::any_of(op.view.begin(), op.view.end(), [&](const AliasPair& pair) {
    return op.signature.inputs[find_input(op.signature, pair.input.text)].list;
  });
}

/// A dtype that the op names and the runtime lacks, or "".
std::string missing_dtype(const Op& op, const Runtime& runtime) {
  const auto lacks = [&](DataType type) { return !runtime.dtypes.contains(yaml_name(type)); };
  for (const Attr& attr : op.signature.attrs) {
    const auto* type = attr.default_value ? std::get_if<DataType>(&attr.default_value->value) : nullptr;
    if (type != nullptr && !may_be_open(op, attr) && lacks(*type)) return std::string(yaml_name(*type));
  }
  if (!op.kernel) return "";
  for (const Candidate& candidate : op.kernel->data_type.candidates) {
    if (candidate.constant && lacks(*candidate.constant)) return std::string(yaml_name(*candidate.constant));
  }
  return "";
}

/// Why an op cannot be generated regardless of the others, or "".
std::string reason_against(const Op& op, const Runtime& runtime) {
  if (op.signature.outputs.empty()) return "it has no outputs";
  const bool dense_outputs =
      std::all_of(op.signature.outputs.begin(), op.signature.outputs.end(), [](const Output& o) { return o.dense; });
  if (!dense_outputs) return "its outputs are not dense tensors";
  if (op.kernel && dense_kernel(op) == nullptr) return "none of its kernels takes dense tensors only";
  if (const std::string dtype = missing_dtype(op, runtime); !dtype.empty()) return describe_missing("dtype::" + dtype);
  if (runtime.namespaces.contains(cpp_name(op))) return "its name is that of a namespace of the runtime";
  if (views_lists(op)) return "its views are of lists of tensors";
  if (op.signature.inputs.empty() && op.kernel &&
      (op.kernel->data_type.candidates.empty() || op.kernel->backend.candidates.empty())) {
    return "nothing determines its dtype and device";
  }
  if (has_body(op) && (!op.infer_meta || !op.infer_meta->func)) return "it has no 'infer_meta.func'";
  return "";
}

}  // namespace

const KernelFunc* dense_kernel(const Op& op) {
  for (const KernelFunc& func : op.kernel->funcs) {
    if (all_dense(func.inputs) && all_dense(func.outputs)) return &func;
  }
  return nullptr;
}

const Op* Selection::find(std::string_view name) const {
  const auto found = places.find(name);
  return found == places.end() ? nullptr : found->second.op;
}

int Selection::family_of(std::string_view name) const {
  const auto found = places.find(name);
  return found == places.end() ? -1 : found->second.family;
}

const Op* Selection::end_of(const Op& op) const {
  if (has_body(op)) return &op;
  const auto found = ends.find(&op);
  return found == ends.end() ? nullptr : found->second;
}

void Selection::find_ends() {
  for (const std::vector<const Op*>& family : ops) {
    for (const Op* start : family) {
      std::vector<const Op*> way;
      const Op* at = start;
      // An op on the path to another is entered at once, so that a cycle ends.
      while (at != nullptr && !has_body(*at) && ends.emplace(at, nullptr).second) {
        way.push_back(at);
        at = at->invoke ? find(at->invoke->function.text) : nullptr;
      }
      const Op* end = at == nullptr ? nullptr : end_of(*at);
      for (; !way.empty(); way.pop_back()) {
        const Op& op = *way.back();
        if (at != nullptr && op.signature.inputs.empty() != at->signature.inputs.empty()) end = nullptr;
        ends[&op] = end;
        at = &op;
      }
    }
  }
}

bool Selection::has_inplace_form(const Op& op) const {
  return !op.inplace.empty() && (is_inplace_only(op) || family_of(inplace_name(op)) < 0);
}

namespace {

/// An op that invokes a dropped op is dropped too, and so are ops that invoke it.
void drop_invokers(const std::vector<Family>& families, const std::set<std::string_view>& all, Selection& selection) {
  std::unordered_map<std::string_view, std::vector<const Op*>> invokers;
  std::vector<const Op*> queue;
  for (const std::vector<const Op*>& chosen : selection.ops) {
    for (const Op* op : chosen) {
      // A name that is not an op is a C++ function that the user defines.
      if (!op->invoke || !all.contains(op->invoke->function.text)) continue;
      invokers[op->invoke->function.text].push_back(op);
      queue.push_back(op);
    }
  }
  std::set<const Op*> gone;
  for (size_t i = 0; i < queue.size(); ++i) {
    const Op& op = *queue[i];
    ++selection.invokes_seen;
    const Op* target = selection.find(op.invoke->function.text);
    if (gone.contains(&op) || (target != nullptr && call_fits(op, *op.invoke, target->signature))) continue;
    if (!families[static_cast<size_t>(selection.family_of(op.name.text))].imported) {
      selection.dropped.push_back({&op, target == nullptr ? "the op that it invokes is not generated"
                                                          : "the op that it invokes takes other arguments"});
    }
    gone.insert(&op);
    selection.places.erase(op.name.text);
    const std::vector<const Op*>& callers = invokers[op.name.text];
    queue.insert(queue.end(), callers.begin(), callers.end());
  }
  for (std::vector<const Op*>& chosen : selection.ops)
    std::erase_if(chosen, [&](const Op* op) { return gone.contains(op); });
}

}  // namespace

Selection select_ops(const std::vector<Family>& families, const Runtime& runtime, const std::set<const Op*>& refused,
                     const std::map<const Op*, std::string>& lacking) {
  Selection selection;
  std::set<std::string_view> all;
  for (const Family& family : families) {
    const size_t chosen_in = selection.ops.size();
    std::vector<const Op*>& chosen = selection.ops.emplace_back();
    for (const Op& op : family.ops) {
      const bool first = all.insert(op.name.text).second;
      const auto lacks = lacking.find(&op);
      const std::string reason = !first                   ? "another file defines it before"
                                 : refused.contains(&op)  ? "it has an error"
                                 : lacks != lacking.end() ? lacks->second
                                                          : reason_against(op, runtime);
      if (!reason.empty()) {
        if (!family.imported) selection.dropped.push_back({&op, reason});
      } else {
        selection.places[op.name.text] = {&op, static_cast<int>(chosen_in)};
        chosen.push_back(&op);
      }
    }
  }
  drop_invokers(families, all, selection);
  selection.find_ends();
  for (const std::vector<const Op*>& family : selection.ops) {
    for (const Op* op : family) {
      if (is_overload(*op)) selection.overloaded.insert(op->invoke->function.text);
    }
  }
  return selection;
}

}  // namespace shardgen
