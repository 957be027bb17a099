// Converts the model to JSON; docs/command_line.md describes the fields.
#include "emit/dump.h"

#include <nlohmann/json.hpp>

#include "model/print.h"

namespace shardgen {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string attr_typename(const Attr& attr) {
  if (attr.type == AttrType::unknown) return attr.unknown.text;
  std::string text(yaml_name(attr.type));
  if (attr.scalar_of) text += "(" + std::string(yaml_name(*attr.scalar_of)) + ")";
  return text;
}

OrderedJson names_or_null(const std::vector<Name>& names) {
  if (names.empty()) return nullptr;
  OrderedJson list = OrderedJson::array();
  for (const Name& name : names) list.push_back(name.text);
  return list;
}

OrderedJson text_or_null(const std::optional<Name>& name) {
  return name ? OrderedJson(name->text) : OrderedJson(nullptr);
}

OrderedJson inputs_json(const Op& op) {
  OrderedJson list = OrderedJson::array();
  for (const Input& input : op.signature.inputs) {
    const std::string& name = input.name.text;
    OrderedJson transform = OrderedJson::object();
    if (contains(op.data_transform.skip_transform, name)) transform["skip_transform"] = true;
    if (contains(op.data_transform.support_trans_dtype, name)) transform["support_trans_dtype"] = true;
    list.push_back({{"typename", input.list ? "Tensor[]" : "Tensor"},
                    {"name", name},
                    {"optional", contains(op.optional, name)},
                    {"no_need_buffer", contains(op.no_need_buffer, name)},
                    {"data_transform", std::move(transform)}});
  }
  return list;
}

OrderedJson attrs_json(const Op& op) {
  OrderedJson list = OrderedJson::array();
  for (const Attr& attr : op.signature.attrs) {
    OrderedJson json = {{"typename", attr_typename(attr)}, {"name", attr.name.text}};
    if (attr.default_value) json["default_value"] = attr.default_value->spelling;
    if (contains(op.support_tensor, attr.name.text)) json["support_tensor"] = true;
    list.push_back(std::move(json));
  }
  return list;
}

std::string output_typename(const Output& output) {
  return (output.unknown.text.empty() ? "Tensor" : output.unknown.text) + (output.list ? "[]" : "");
}

/// "out", or "out@StringTensor" as in the YAML.
std::string output_name(const Output& output) {
  return output.kind.empty() ? output.name.text : output.name.text + "@" + output.kind;
}

OrderedJson outputs_json(const Op& op) {
  OrderedJson list = OrderedJson::array();
  for (const Output& output : op.signature.outputs) {
    OrderedJson json = {{"typename", output_typename(output)}, {"name", output_name(output)}};
    if (!output.size.empty()) json["size"] = size_to_string(output.size);
    json["optional"] = contains(op.optional, output.name.text);
    json["intermediate"] = contains(op.intermediate, output.name.text);
    list.push_back(std::move(json));
  }
  return list;
}

/// The value of a constant as YAML would load it; a value that JSON cannot express is text.
OrderedJson literal_json(const Literal& literal) {
  if (const auto* flag = std::get_if<bool>(&literal.value)) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&literal.value)) return *integer;
  if (const auto* number = std::get_if<FloatValue>(&literal.value); number != nullptr && !number->single)
    return number->value;
  return literal.spelling;
}

std::string arg_text(const CallArg& arg) {
  const std::string prefix = arg.keyword.empty() ? "" : arg.keyword + "=";
  switch (arg.kind) {
    case CallArg::Kind::name: return prefix + arg.name.text;
    case CallArg::Kind::dtype_of: return prefix + arg.name.text + ".dtype()";
    case CallArg::Kind::literal: return prefix + arg.literal.spelling;
  }
  return "";
}

/// The arguments of infer_meta or a kernel.
OrderedJson params_json(const Op& op, const std::optional<std::vector<CallArg>>& params) {
  OrderedJson list = OrderedJson::array();
  if (params) {
    for (const CallArg& arg : *params)
      list.push_back(arg.kind == CallArg::Kind::literal ? literal_json(arg.literal) : OrderedJson(arg_text(arg)));
  } else {
    for (const ArgRef arg : op.signature.args) list.push_back(name_of(op.signature, arg).text);
  }
  return list;
}

OrderedJson dispatch_key_json(const DispatchKey& key) {
  if (key.candidates.empty()) return nullptr;
  OrderedJson candidates = OrderedJson::array(), flags = OrderedJson::array();
  for (const Candidate& candidate : key.candidates) {
    candidates.push_back(candidate.name.text);
    flags.push_back(candidate.to_complex);
  }
  return {{"ordered", key.ordered}, {"candidates", std::move(candidates)}, {"to_complex_flag", std::move(flags)}};
}

OrderedJson formats_json(const std::vector<TensorFormat>& formats, std::vector<Name>::const_iterator& unknown) {
  OrderedJson list = OrderedJson::array();
  for (const TensorFormat format : formats)
    list.push_back(format == TensorFormat::unknown ? (unknown++)->text : std::string(yaml_name(format)));
  return list;
}

OrderedJson kernel_json(const Op& op) {
  if (!op.kernel) return nullptr;
  const KernelSpec& kernel = *op.kernel;
  OrderedJson funcs = OrderedJson::array();
  OrderedJson dispatch = OrderedJson::object();
  for (const KernelFunc& func : kernel.funcs) {
    funcs.push_back(func.name.text);
    auto unknown = func.unknown.begin();
    OrderedJson inputs = formats_json(func.inputs, unknown);
    OrderedJson outputs = formats_json(func.outputs, unknown);
    dispatch[func.name.text] =
        func.has_formats ? OrderedJson::array({std::move(inputs), std::move(outputs)}) : OrderedJson(nullptr);
  }
  return {{"func", std::move(funcs)},
          {"param", params_json(op, kernel_params(op))},
          {"backend", dispatch_key_json(kernel.backend)},
          {"layout", dispatch_key_json(kernel.layout)},
          {"data_type", dispatch_key_json(kernel.data_type)},
          {"dispatch", std::move(dispatch)},
          {"force_backend", text_or_null(kernel.force_backend)}};
}

OrderedJson infer_meta_json(const Op& op) {
  if (!op.infer_meta || !has_body(op)) return nullptr;
  const InferMeta& meta = *op.infer_meta;
  OrderedJson json = {{"func", text_or_null(meta.func)}, {"param", params_json(op, infer_meta_params(op))}};
  if (meta.spmd_rule) json["spmd_rule"] = meta.spmd_rule->text;
  if (meta.local_shape) json["local_shape"] = meta.local_shape->text;
  if (meta.global_shape) json["global_shape"] = meta.global_shape->text;
  return json;
}

/// output -> input
OrderedJson aliases_json(const std::vector<AliasPair>& pairs) {
  if (pairs.empty()) return nullptr;
  OrderedJson json = OrderedJson::object();
  for (const AliasPair& pair : pairs) json[pair.output.text] = pair.input.text;
  return json;
}

OrderedJson call_json(const std::optional<Call>& call) {
  if (!call) return nullptr;
  std::string args;
  for (const CallArg& arg : call->args) args += (args.empty() ? "" : ", ") + arg_text(arg);
  return {{"func", call->function.text}, {"args", std::move(args)}};
}

OrderedJson forward_json(const Op& op) {
  if (!op.forward) return nullptr;
  const Signature& signature = op.forward->signature;
  OrderedJson inputs = OrderedJson::array(), attrs = OrderedJson::array(), outputs = OrderedJson::array();
  for (const Input& input : signature.inputs)
    inputs.push_back({{"name", input.name.text}, {"typename", input.list ? "Tensor[]" : "Tensor"}});
  for (const Attr& attr : signature.attrs)
    attrs.push_back({{"name", attr.name.text}, {"typename", attr_typename(attr)}});
  for (const Output& output : signature.outputs)
    outputs.push_back({{"name", output_name(output)}, {"typename", output_typename(output)}});
  return {{"name", op.forward->name.text},
          {"inputs", std::move(inputs)},
          {"attrs", std::move(attrs)},
          {"outputs", std::move(outputs)}};
}

OrderedJson data_transform_json(const DataTransform& transform) {
  if (transform.skip_transform.empty() && transform.support_trans_dtype.empty()) return nullptr;
  OrderedJson json = OrderedJson::object();
  if (!transform.skip_transform.empty()) json["skip_transform"] = names_or_null(transform.skip_transform);
  if (!transform.support_trans_dtype.empty())
    json["support_trans_dtype"] = names_or_null(transform.support_trans_dtype);
  return json;
}

std::string partial_text(const Partial& partial) {
  std::string types;
  for (const ReduceKind kind : partial.types) types += (types.empty() ? "" : ", ") + std::string(yaml_name(kind));
  return std::string(yaml_name(partial.kind)) + (types.empty() ? "" : "(" + types + ")");
}

OrderedJson save_if_json(const std::vector<SaveIf>& all) {
  OrderedJson json = OrderedJson::object();
  for (const SaveIf& one : all) json[one.arg.text] = condition_text(one.condition);
  return json;
}

OrderedJson traits_json(const std::vector<Trait>& traits) {
  OrderedJson json = OrderedJson::array();
  for (const TraitInfo& each : kTraits) {
    if (std::find(traits.begin(), traits.end(), each.trait) != traits.end()) json.push_back(each.name);
  }
  return json;
}

OrderedJson neutral_json(const std::vector<Neutral>& all) {
  OrderedJson json = OrderedJson::object();
  for (const Neutral& one : all) json[one.arg.text] = one.value;
  return json;
}

/// The keys that shardgen adds, if there are any.
OrderedJson extension_json(const Extension& extension) {
  OrderedJson json = OrderedJson::object();
  if (extension.partial) json["partial"] = partial_text(*extension.partial);
  if (extension.partial_guard) json["partial_guard"] = extension.partial_guard->text;
  if (extension.view_writes) json["view_writes"] = names_or_null(*extension.view_writes);
  if (extension.dynamic_shape) json["dynamic_shape"] = names_or_null(*extension.dynamic_shape);
  if (extension.random) json["random"] = *extension.random;
  if (extension.elementwise) json["elementwise"] = *extension.elementwise;
  if (extension.traits) json["traits"] = traits_json(*extension.traits);
  if (extension.neutral) json["neutral"] = neutral_json(*extension.neutral);
  if (extension.no_gradient) json["no_gradient"] = *extension.no_gradient;
  if (extension.record_composite) json["record_composite"] = *extension.record_composite;
  if (extension.optional_outputs) json["optional_outputs"] = *extension.optional_outputs;
  if (extension.overload) json["overload"] = *extension.overload;
  if (extension.save_if) json["save_if"] = save_if_json(*extension.save_if);
  if (extension.doc) json["doc"] = *extension.doc;
  return json.empty() ? OrderedJson(nullptr) : json;
}

OrderedJson op_json(const Op& op) {
  return {{"name", op.name.text},
          {"location", {{"file", op.name.at.file}, {"line", op.name.at.line}, {"column", op.name.at.column}}},
          {"is_backward", op.is_backward},
          {"inputs", inputs_json(op)},
          {"attrs", attrs_json(op)},
          {"outputs", outputs_json(op)},
          {"no_need_buffer", names_or_null(op.no_need_buffer)},
          {"data_transform", data_transform_json(op.data_transform)},
          {"infer_meta", infer_meta_json(op)},
          {"kernel", kernel_json(op)},
          {"inplace", has_body(op) ? aliases_json(op.inplace) : OrderedJson(nullptr)},
          {"view", has_body(op) ? aliases_json(op.view) : OrderedJson(nullptr)},
          {"invoke", call_json(op.invoke)},
          {"composite", call_json(op.composite)},
          {"backward", text_or_null(op.backward)},
          {"forward", forward_json(op)},
          {"interfaces", names_or_null(op.interfaces)},
          {"traits", names_or_null(op.traits)},
          {"shard", extension_json(op.extension)}};
}

}  // namespace

std::string dump_json(const std::vector<Family>& families) {
  OrderedJson ops = OrderedJson::array();
  for (const Family& family : families) {
    for (const Op& op : family.ops) ops.push_back(op_json(op));
  }
  return ops.dump(1) + "\n";
}

}  // namespace shardgen
