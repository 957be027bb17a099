// Lookups in the model.
#include "model/op.h"

#include <algorithm>

namespace shardgen {
namespace {

template <class T>
int index_of(const std::vector<T>& items, std::string_view name) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].name.text == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

int find_input(const Signature& signature, std::string_view name) { return index_of(signature.inputs, name); }
int find_attr(const Signature& signature, std::string_view name) { return index_of(signature.attrs, name); }
int find_output(const Signature& signature, std::string_view name) { return index_of(signature.outputs, name); }

std::optional<ArgRef> find_arg(const Signature& signature, std::string_view name) {
  if (const int input = find_input(signature, name); input >= 0) return ArgRef{true, input};
  if (const int attr = find_attr(signature, name); attr >= 0) return ArgRef{false, attr};
  return std::nullopt;
}

const std::optional<std::vector<CallArg>>& kernel_params(const Op& op) {
  static const std::optional<std::vector<CallArg>> all;
  return op.kernel ? op.kernel->param : all;
}

const std::optional<std::vector<CallArg>>& infer_meta_params(const Op& op) {
  return op.infer_meta && op.infer_meta->param ? op.infer_meta->param : kernel_params(op);
}

bool is_overload(const Op& op) { return op.invoke && op.extension.overload.value_or(false); }

bool has_body(const Op& op) { return op.kernel || (!op.invoke && !op.composite); }

const Name& name_of(const Signature& signature, ArgRef arg) {
  return arg.tensor ? signature.inputs[arg.index].name : signature.attrs[arg.index].name;
}

bool contains(const std::vector<Name>& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(), [&](const Name& item) { return item.text == name; });
}

}  // namespace shardgen
