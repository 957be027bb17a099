// Chooses the ops that are generated.
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

/// The dtype that the op names and the runtime does not have, or "".
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

/// Why an op cannot be generated whatever the others are, or "".
std::string reason_against(const Op& op, const Runtime& runtime) {
  const bool dense_outputs =
      std::all_of(op.signature.outputs.begin(), op.signature.outputs.end(), [](const Output& o) { return o.dense; });
  if (!dense_outputs) return "its outputs are not dense tensors";
  if (op.kernel && dense_kernel(op) == nullptr) return "none of its kernels takes dense tensors only";
  if (const std::string dtype = missing_dtype(op, runtime); !dtype.empty())
    return fmt::format("the runtime does not have the dtype {}", dtype);
  if (views_lists(op)) return "its views are of lists of tensors";
  if (op.signature.inputs.empty() && op.kernel &&
      (op.kernel->data_type.candidates.empty() || op.kernel->backend.candidates.empty())) {
    return "nothing gives its dtype and device";
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

Selection select_ops(const std::vector<Family>& families, const Runtime& runtime, const std::set<const Op*>& refused) {
  Selection selection;
  std::set<std::string_view> all;
  for (const Family& family : families) {
    std::vector<const Op*>& chosen = selection.ops.emplace_back();
    for (const Op& op : family.ops) {
      const bool first = all.insert(op.name.text).second;
      const std::string reason = !first                  ? "another file defines it before"
                                 : refused.contains(&op) ? "it has an error"
                                                         : reason_against(op, runtime);
      if (!reason.empty()) {
        if (!family.imported) selection.dropped.push_back({&op, reason});
      } else {
        chosen.push_back(&op);
      }
    }
  }
  // An op that invokes a dropped one goes too, and so does what invokes it.
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t family = 0; family < families.size(); ++family) {
      std::vector<const Op*>& chosen = selection.ops[family];
      for (size_t i = 0; i < chosen.size(); ++i) {
        // What is no op at all is a C++ function that the user defines.
        const Op& op = *chosen[i];
        if (!op.invoke || !all.contains(op.invoke->function.text)) continue;
        const Op* target = selection.find(op.invoke->function.text);
        if (target != nullptr && call_fits(op, *op.invoke, target->signature)) continue;
        if (!families[family].imported) {
          selection.dropped.push_back({&op, target == nullptr ? "the op that it invokes is not generated"
                                                              : "the op that it invokes takes other arguments"});
        }
        chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i--));
        changed = true;
      }
    }
  }
  return selection;
}

}  // namespace shardgen
