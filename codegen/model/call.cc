// Compares calls with signatures.
#include "model/call.h"

namespace shardgen {
namespace {

std::string_view tensor_kind(bool list) { return list ? "Tensor[]" : "Tensor"; }

/// True when C++ converts a value of one type to the other.
bool converts(AttrType from, AttrType to) {
  const auto is_number = [](AttrType type) {
    return type == AttrType::int32 || type == AttrType::int64 || type == AttrType::float32 ||
           type == AttrType::float64 || type == AttrType::boolean;
  };
  const auto is_ints = [](AttrType type) {
    return type == AttrType::int_array || type == AttrType::int32_list || type == AttrType::int64_list;
  };
  return from == to || (is_number(from) && (is_number(to) || to == AttrType::scalar)) || (is_ints(from) && is_ints(to));
}

}  // namespace

std::string_view kind_of(const Signature& signature, ArgRef arg) {
  return arg.tensor ? tensor_kind(signature.inputs[arg.index].list) : yaml_name(signature.attrs[arg.index].type);
}

std::string_view type_of(const Op& op, const CallArg& arg) {
  if (arg.kind == CallArg::Kind::dtype_of) return yaml_name(AttrType::dtype);
  if (const std::optional<ArgRef> ref = find_arg(op.signature, arg.name.text)) return kind_of(op.signature, *ref);
  // A backward op may pass its outputs to a function that writes them.
  const int output = find_output(op.signature, arg.name.text);
  return output < 0 ? "" : tensor_kind(op.signature.outputs[output].list);
}

size_t required_args(const Signature& signature) {
  size_t required = signature.args.size();
  while (required > 0) {
    const ArgRef last = signature.args[required - 1];
    if (last.tensor || !signature.attrs[last.index].default_value) break;
    --required;
  }
  return required;
}

bool fits_parameter(const Op& op, const CallArg& arg, const Signature& target, ArgRef parameter) {
  if (arg.kind == CallArg::Kind::literal) return !parameter.tensor;
  if (parameter.tensor) return type_of(op, arg) == kind_of(target, parameter);
  const AttrType wanted = target.attrs[parameter.index].type;
  if (arg.kind == CallArg::Kind::dtype_of) return wanted == AttrType::dtype;
  const std::optional<ArgRef> ref = find_arg(op.signature, arg.name.text);
  return ref && !ref->tensor && converts(op.signature.attrs[ref->index].type, wanted);
}

bool call_fits(const Op& op, const Call& call, const Signature& target) {
  if (call.args.size() < required_args(target) || call.args.size() > target.args.size()) return false;
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (!fits_parameter(op, call.args[i], target, target.args[i])) return false;
  }
  return true;
}

}  // namespace shardgen
