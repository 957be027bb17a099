// Signatures of functions that users of the generated code define.
#include "lower/functions.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "lower/data_common.h"

namespace shardgen {
namespace {

std::string meta_param(const Op& op, const Passed& passed) {
  if (!passed.arg) return constant_type(passed.constant);
  if (passed.dtype_of) return rt("DType");
  if (!passed.arg->tensor) return attr_type(op, op.signature.attrs[passed.arg->index]);
  const Input& input = op.signature.inputs[passed.arg->index];
  return meta_input_type(input, contains(op.optional, input.name.text));
}

std::string external_param(const Op& op, const CallArg& arg) {
  switch (arg.kind) {
    case CallArg::Kind::literal: return constant_type(arg.literal);
    case CallArg::Kind::dtype_of: return rt("DType");
    case CallArg::Kind::name: break;
  }
  const ArgRef ref = *find_arg(op.signature, arg.name.text);
  return ref.tensor ? input_type(op.signature.inputs[ref.index], Role::api, false)
                    : attr_type(op, op.signature.attrs[ref.index]);
}

/// Splits "sparse::AddInferMeta" into "sparse" and "AddInferMeta".
void split_name(const std::string& qualified, FunctionDecl& function) {
  const size_t at = qualified.rfind("::");
  function.nested = at == std::string::npos ? "" : qualified.substr(0, at);
  function.name = at == std::string::npos ? qualified : qualified.substr(at + 2);
}

}  // namespace

std::string FunctionDecl::signature() const {
  return fmt::format("{}{}{}({})", nested, nested.empty() ? "" : "::", name, join(params));
}

FunctionDecl infer_meta_function(const Op& op) {
  FunctionDecl function;
  function.space = "namespace_meta";
  split_name(op.infer_meta->func->text, function);
  function.returns = "void";
  function.params = {"const " + rt("OpContext") + "&"};
  for (const Passed& each : resolve_params(op, infer_meta_params(op))) function.params.push_back(meta_param(op, each));
  for (const Output& output : op.signature.outputs) function.params.push_back(meta_type(output) + "&");
  function.ops = {&op};
  return function;
}

const Call* external_call(const LowerContext& context, const Op& op) {
  if (op.kernel) return nullptr;
  if (op.invoke) return context.selection.find(op.invoke->function.text) == nullptr ? &*op.invoke : nullptr;
  return op.composite ? &*op.composite : nullptr;
}

const Call* recorded_composite(const LowerContext& context, const Op& op) {
  return context.runtime.autograd && op.kernel && op.composite && op.extension.record_composite.value_or(false)
             ? &*op.composite
             : nullptr;
}

bool takes_mask(const LowerContext& context, const Op& op) {
  return context.runtime.autograd && op.is_backward && !op.invoke && op.signature.outputs.size() > 1 &&
         external_call(context, op) != nullptr;
}

FunctionDecl external_function(const LowerContext& context, const Op& op, const Call& call) {
  FunctionDecl function;
  function.space = "namespace_external";
  function.name = call.function.text;
  function.returns = return_type(op, Form::functional, true);
  for (const CallArg* arg : passed_in(op, call)) function.params.push_back(external_param(op, *arg));
  if (takes_mask(context, op)) function.params.push_back(rt("GradMask"));
  function.ops = {&op};
  return function;
}

std::vector<FunctionDecl> missing_functions(const LowerContext& context, const Part& part) {
  std::vector<FunctionDecl> missing;
  std::map<std::string, size_t> places;
  const auto add = [&](FunctionDecl function) {
    const auto [place, added] = places.emplace(function.space + function.signature(), missing.size());
    if (added) missing.push_back(std::move(function));
    else missing[place->second].ops.push_back(function.ops.front());
  };
  for (const Op* op : part.ops) {
    if (const Call* call = external_call(context, *op)) {
      add(external_function(context, *op, *call));
    } else if (has_body(*op)) {
      FunctionDecl function = infer_meta_function(*op);
      if (!context.runtime.infer_meta.contains(spell_symbols(context.runtime, function.signature())))
        add(std::move(function));
      if (const Call* call = recorded_composite(context, *op)) add(external_function(context, *op, *call));
    }
  }
  return missing;
}

Json declarations_data(const std::vector<FunctionDecl>& functions) {
  std::map<std::string, Json> spaces;
  for (const FunctionDecl& function : functions) {
    const std::string name = rt(function.space) + (function.nested.empty() ? "" : "::" + function.nested);
    Json& space = spaces.try_emplace(name, Json{{"space", name}, {kOps, Json::array()}}).first->second;
    Json ops = Json::array();
    for (const Op* op : function.ops) ops.push_back(op->name.text);
    space[kOps].insert(space[kOps].end(), ops.begin(), ops.end());
    space["declared"].push_back({{"returns", function.returns},
                                 {"name", function.name},
                                 {"params", join(function.params)},
                                 {kOps, std::move(ops)}});
  }
  Json data = Json::array();
  for (auto& [name, space] : spaces) data.push_back(std::move(space));
  return data;
}

}  // namespace shardgen
