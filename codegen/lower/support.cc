// Chooses the ops that are generated.
#include "lower/support.h"

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

bool uses_lists_in_place(const Op& op) {
  const auto is_list = [&](const AliasPair& pair) {
    return op.signature.inputs[find_input(op.signature, pair.input.text)].list;
  };
  return std::any_of(op.inplace.begin(), op.inplace.end(), is_list) || std::any_of(op.view.begin(), op.view.end(), is_list);
}

bool has_unknown_default(const Op& op) {
  return std::any_of(op.signature.attrs.begin(), op.signature.attrs.end(),
                     [&](const Attr& attr) { return attr.default_value && !default_argument(op, attr); });
}

bool has_unknown_dtype(const Op& op) {
  if (!op.kernel) return false;
  return std::any_of(op.kernel->data_type.candidates.begin(), op.kernel->data_type.candidates.end(),
                     [](const Candidate& candidate) {
                       return candidate.to_complex || (candidate.constant && !data_type(*candidate.constant));
                     });
}

bool casts_lists(const Op& op) {
  return std::any_of(op.signature.inputs.begin(), op.signature.inputs.end(), [&](const Input& input) {
    return input.list && contains(op.data_transform.support_trans_dtype, input.name.text);
  });
}

/// Why an op cannot be generated whatever the others are, or "".
std::string reason_against(const Op& op) {
  if (op.is_backward) return "backward ops are checked only";
  const bool dense_outputs =
      std::all_of(op.signature.outputs.begin(), op.signature.outputs.end(), [](const Output& o) { return o.dense; });
  if (!dense_outputs) return "its outputs are not dense tensors";
  if (op.kernel && dense_kernel(op) == nullptr) return "none of its kernels takes dense tensors only";
  if (has_unknown_default(op)) return "a default value cannot be written for the runtime";
  if (has_unknown_dtype(op)) return "the runtime does not have its data types";
  if (uses_lists_in_place(op)) return "it writes a list of tensors in place";
  if (casts_lists(op)) return "it casts a list of tensors to the kernel's dtype";
  if (op.signature.inputs.empty() && op.kernel &&
      (op.kernel->data_type.candidates.empty() || op.kernel->backend.candidates.empty())) {
    return "nothing gives its dtype and device";
  }
  if (is_runtime_namespace(op.name.text)) return "its name is a namespace of the runtime";
  if (!op.kernel && !op.invoke && op.composite) return "it is only a composite";
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
  const int family = family_of(name);
  if (family < 0) return nullptr;
  const std::vector<const Op*>& members = ops[static_cast<size_t>(family)];
  return *std::find_if(members.begin(), members.end(), [&](const Op* op) { return op->name.text == name; });
}

int Selection::family_of(std::string_view name) const {
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const Op* op : ops[i]) {
      if (op->name.text == name) return static_cast<int>(i);
    }
  }
  return -1;
}

bool Selection::has_inplace_form(const Op& op) const {
  return !op.inplace.empty() && (is_inplace_only(op) || family_of(inplace_name(op)) < 0);
}

Selection select_ops(const std::vector<Family>& families) {
  Selection selection;
  std::set<std::string_view> taken;
  for (const Family& family : families) {
    std::vector<const Op*>& chosen = selection.ops.emplace_back();
    for (const Op& op : family.ops) {
      if (!taken.insert(op.name.text).second) {
        selection.dropped.push_back({&op, "another file defines it before"});
      } else if (std::string reason = reason_against(op); !reason.empty()) {
        selection.dropped.push_back({&op, std::move(reason)});
      } else {
        chosen.push_back(&op);
      }
    }
  }
  // An op that invokes a dropped one goes too, and so does what invokes it.
  for (bool changed = true; changed;) {
    changed = false;
    for (std::vector<const Op*>& chosen : selection.ops) {
      for (size_t i = 0; i < chosen.size(); ++i) {
        if (!chosen[i]->invoke) continue;
        const Op* target = selection.find(chosen[i]->invoke->function.text);
        if (target != nullptr && call_fits(*chosen[i], *chosen[i]->invoke, target->signature)) continue;
        selection.dropped.push_back({chosen[i], target == nullptr ? "the op that it invokes is not generated"
                                                                  : "the op that it invokes takes other arguments"});
        chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i--));
        changed = true;
      }
    }
  }
  return selection;
}

}  // namespace shardgen
