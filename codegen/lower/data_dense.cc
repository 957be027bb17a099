// Template data of the dense layer: the steps of each plan, as the values that
// templates/dense.cc.mustache shows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <set>

#include "lower/data_common.h"
#include "lower/identifiers.h"
#include "lower/masks.h"

namespace shardgen {
namespace {

constexpr std::array kStepNames = {"infer_meta", "compute",     "device",      "kernel",       "cast",
                                   "cast_list",  "guard",       "allocate",    "allocate_if",  "allocate_list",
                                   "target",     "target_list", "reinterpret", "written_view", "reader",
                                   "readers",    "draw",        "run",         "rebind"};

/// The type of an output's meta.
std::string meta_type(const Op& op, const Output& output) {
  return has_dynamic_shape(op, output) ? rt("call::DynamicMeta") : shardgen::meta_type(output);
}

/// The variables that infer_meta fills, by type.
Json meta_locals(const Op& op, const Texts& names) {
  Json metas = Json::array();
  const auto declare = [&](auto&& is_one) {
    Texts locals;
    std::string type;
    for (size_t i = 0; i < names.size(); ++i) {
      const Output& output = op.signature.outputs[i];
      if (!is_one(output)) continue;
      locals.push_back(names[i]);
      type = meta_type(op, output);
    }
    if (!locals.empty()) metas.push_back({{"type", type}, {"locals", join(locals)}});
  };
  declare([&](const Output& each) { return !each.list && !has_dynamic_shape(op, each); });
  declare([&](const Output& each) { return has_dynamic_shape(op, each); });
  declare([](const Output& each) { return each.list; });
  return metas;
}

/// One function's worth of names: what each argument and output is called at the current step.
class DenseFunction {
 public:
  DenseFunction(const Op& op, const DensePlan& plan, bool dist)
      : op_(op), plan_(plan), dist_(dist), scope_(op), ctx_(scope_.local("ctx")) {
    for (const Input& input : op.signature.inputs) inputs_.push_back(input.name.text);
    for (const Output& output : op.signature.outputs) {
      metas_.push_back(scope_.local(output.name.text + (output.list ? "_metas" : "_meta")));
      outputs_.push_back(scope_.local(output.name.text));
    }
  }

  Json steps() {
    Json array = Json::array();
    const auto push = [&](const auto& step) {
      Json json;
      for (const char* name : kStepNames) json[name] = false;
      json["phase"] = false;
      add(step, json);
      array.push_back(std::move(json));
    };
    if (const std::optional<ComputeStep> compute = compute_step(op_, plan_)) {
      push(std::get<InferMetaStep>(plan_.steps.front()));
      push(*compute);
    } else if (const std::optional<OutputStep> view = lone_view(plan_)) {
      push(std::get<InferMetaStep>(plan_.steps.front()));
      view_ = fmt::format("{}({}, {}, {})", rt("call::reinterpret"), ctx_, input(view->input).name.text,
                          metas_[view->output]);
    } else {
      explicit_ = true;
      for (const Step& step : plan_.steps) std::visit(push, step);
    }
    return array;
  }

  const std::string& ctx() const { return ctx_; }
  /// The context and, with a dist layer, the metas of the outputs.
  Texts first_parameters() const {
    Texts params = {"const " + rt("OpContext") + "& " + ctx_};
    for (size_t i = 0; dist_ && i < metas_.size(); ++i) {
      const Output& each = output(static_cast<int>(i));
      params.push_back((each.list ? rt("span", rt("Meta")) : "const " + meta_type(op_, each) + "&") + " " + metas_[i]);
    }
    return params;
  }
  bool is_explicit() const { return explicit_; }

  /// The value that the function returns if no step returns it, or "".
  std::string result() const {
    if (!explicit_) return view_;
    Texts texts;
    const bool several = plan_.returns.size() > 1;
    for (const int output : plan_.returns)
      texts.push_back(several ? "std::move(" + outputs_[output] + ")" : outputs_[output]);
    return return_value(texts);
  }

 private:
  /// Numbered comments are only for functions whose steps are written out.
  void phase(Json& json, const std::string& text) {
    if (explicit_) json["phase"] = fmt::format("{}. {}", ++phases_, text);
  }
  const Input& input(int index) const { return op_.signature.inputs[index]; }
  const Output& output(int index) const { return op_.signature.outputs[index]; }
  bool written(int index) const { return is_written_input(op_, index, plan_.form); }
  bool optional(int index) const { return contains(op_.optional, input(index).name.text); }

  /// The dtype of an argument; of a list, that of its first tensor.
  std::string dtype_of(int index) const {
    return rt(!input(index).list ? "dtype_of"
              : written(index)   ? "dtype_of_targets"
                                 : "dtype_of_list",
              input(index).name.text);
  }

  std::string meta_arg(const Passed& passed) const {
    if (!passed.arg) return passed_constant(passed);
    const ArgRef arg = *passed.arg;
    if (!arg.tensor) return op_.signature.attrs[arg.index].name.text;
    const std::string& name = input(arg.index).name.text;
    if (passed.dtype_of) return dtype_of(arg.index);
    if (input(arg.index).list) return fmt::format("{}({})", rt("call::metas"), name);
    return optional(arg.index) ? fmt::format("{}({})", rt("call::meta_or_null"), name) : rt("meta_of", name);
  }

  /// Only without a dist layer: with one, metas are arguments, since on a mesh they come from the plan of the call.
  void add(const InferMetaStep& step, Json& json) {
    if (dist_) return;
    phase(json, "infer meta");
    Texts args = {ctx_};
    for (const Passed& each : step.args) args.push_back(meta_arg(each));
    args.insert(args.end(), metas_.begin(), metas_.end());
    json["infer_meta"] = {{"metas", meta_locals(op_, metas_)}, {"func", step.func}, {"args", join(args)}};
  }

  /// One name unchanged, several as a tuple of references.
  static std::string tied(const Texts& names) {
    return names.size() == 1 ? names[0] : rt("tie") + "(" + join(names) + ")";
  }

  std::string device_value(const DeviceStep& step) const {
    Texts tensors = {ctx_};
    for (const Input& each : op_.signature.inputs) tensors.push_back(each.name.text);
    std::string value = step.tensors ? rt("call::common_device") + "(" + join(tensors) + ")" : "";
    for (auto attr = step.attrs.rbegin(); attr != step.attrs.rend(); ++attr) {
      const Attr& each = op_.signature.attrs[*attr];
      value = may_be_open(op_, each) && !value.empty() ? fmt::format("{0} ? *{0} : {1}", each.name.text, value)
                                                       : each.name.text;
    }
    return value;
  }

  void add(const DeviceStep& step, Json& json) {
    phase(json, "choose the kernel");
    device_ = scope_.local("device");
    json["device"] = {{"local", device_}, {"value", device_value(step)}};
  }

  /// The remainder of a function whose outputs are all new, or all written in place.
  void add(const ComputeStep& step, Json& json) {
    const std::string kernels = rt("kernels", step.kernel.table);
    dtype_ = dtype_value(step.kernel.dtypes);
    Json dtype_local = false;
    if (!step.casts.empty()) {
      const std::string local = scope_.local("kernel_dtype");
      dtype_local = {{"name", local}, {"value", dtype_}};
      dtype_ = local;
    }
    Json casts = Json::array();
    for (const CastStep& cast : step.casts) {
      const std::string local = scope_.local(input(cast.input).name.text + "_cast");
      casts.push_back({{"list", input(cast.input).list},
                       {"local", local},
                       {"ctx", ctx_},
                       {"value", inputs_[cast.input]},
                       {"dtype", dtype_}});
      inputs_[cast.input] = local;
    }
    Texts args;
    if (step.in_place) args.push_back(rt("ops") + "::" + cpp_name(op_));
    args.insert(args.end(), {kernels, dtype_});
    if (step.in_place) {
      Texts targets;
      for (const OutputStep& output : step.outputs) targets.push_back(input(output.input).name.text);
      args.push_back(tied(targets));
    }
    args.push_back(tied(metas_));
    for (const Passed& each : step.kernel.args) args.push_back(compute_arg(each));
    if (is_random(op_)) args.push_back(rt("call::drawn_key"));
    Json compute = {{"dtype_local", std::move(dtype_local)},
                    {"casts", std::move(casts)},
                    {"fresh", false},
                    {"fresh_on", false},
                    {"targets", false}};
    const bool own_device = !step.in_place && (!step.device.attrs.empty() || !gets_all_tensors(op_, step.kernel));
    Json call = {{"ctx", ctx_}, {"args", join(args)}};
    if (own_device) call["device"] = device_value(step.device);
    compute[step.in_place ? "targets" : own_device ? "fresh_on" : "fresh"] = std::move(call);
    json["compute"] = std::move(compute);
  }

  /// The first dtype that is present.
  std::string dtype_value(const std::vector<DTypeSource>& sources) const {
    std::string value;
    for (auto source = sources.rbegin(); source != sources.rend(); ++source) {
      std::string own, condition;
      switch (source->kind) {
        case DTypeSource::Kind::input: {
          const std::string& name = input(source->index).name.text;
          const bool list = input(source->index).list;
          own = dtype_of(source->index);
          if (optional(source->index)) condition = rt(list ? "not_empty" : "defined", name);
          break;
        }
        case DTypeSource::Kind::attr: {
          const Attr& attr = op_.signature.attrs[source->index];
          own = may_be_open(op_, attr) ? "*" + attr.name.text : attr.name.text;
          if (may_be_open(op_, attr)) condition = attr.name.text;
          break;
        }
        case DTypeSource::Kind::constant: own = data_type(source->constant); break;
      }
      if (source->to_complex) own = fmt::format("{}({}, {})", rt("call::complex_dtype"), ctx_, own);
      value = condition.empty() || value.empty() ? own : fmt::format("{} ? {} : {}", condition, own, value);
    }
    return value;
  }

  bool casts() const {
    for (const Step& step : plan_.steps) {
      if (std::holds_alternative<CastStep>(step)) return true;
    }
    return false;
  }

  void add(const KernelStep& step, Json& json) {
    params_ = step.args;
    Texts types = {"const " + rt("OpContext") + "&"};
    for (const Passed& each : step.args) types.push_back(passed_type(each));
    if (is_random(op_)) types.push_back(rt("RandomKey"));
    for (const Output& each : op_.signature.outputs) types.push_back(output_type(each, Role::kernel));
    kernel_ = scope_.local("kernel");
    dtype_ = dtype_value(step.dtypes);
    Json dtype_local = false;
    if (casts()) {
      // A local variable, because the casts need it too.
      const std::string local = scope_.local("kernel_dtype");
      dtype_local = {{"name", local}, {"value", dtype_}};
      dtype_ = local;
    }
    json["kernel"] = {{"table", step.table},      {"kernels", scope_.local("kernels")},
                      {"signature", join(types)}, {"alias", scope_.local("Kernel")},
                      {"local", kernel_},         {"device", device_},
                      {"dtype", dtype_},          {"dtype_local", std::move(dtype_local)}};
  }

  void add(const CastStep& step, Json& json) {
    const std::string local = scope_.local(input(step.input).name.text + "_cast");
    json[input(step.input).list ? "cast_list" : "cast"] = {
        {"local", local}, {"value", inputs_[step.input]}, {"dtype", dtype_}};
    inputs_[step.input] = local;
  }

  void add(const GuardStep&, Json& json) {
    phase(json, "the targets, and arguments that do not overlap them");
    guard_ = scope_.local("write");
    json["guard"] = {{"local", guard_}, {"op", cpp_name(op_)}};
  }

  static const char* step_name(OutputStep::Source source, bool list) {
    switch (source) {
      case OutputStep::Source::allocate: return list ? "allocate_list" : "allocate";
      case OutputStep::Source::allocate_if: return list ? "allocate_list" : "allocate_if";
      case OutputStep::Source::target: return list ? "target_list" : "target";
      case OutputStep::Source::reinterpret: return "reinterpret";
      case OutputStep::Source::written_view: return "written_view";
    }
    return "";
  }

  /// When an output is made that may be absent.
  std::string condition_of(const OutputStep& step) const {
    Texts terms;
    if (step.if_wanted)
      terms.push_back(
          fmt::format("{}({})[{}]", rt("GradMask"), op_.signature.attrs[mask_of(op_)].name.text, step.output));
    if (step.input >= 0) terms.push_back(rt("defined", input(step.input).name.text));
    return fmt::format("{}", fmt::join(terms, " && "));
  }

  void add(const OutputStep& step, Json& json) {
    if (!made_output_ && guard_.empty())
      phase(json, step.source == OutputStep::Source::reinterpret ? "share the buffer" : "allocate");
    made_output_ = true;
    const std::string& meta = metas_[step.output];
    if (step.source == OutputStep::Source::written_view) {
      const std::string& name = input(step.input).name.text;
      json["written_view"] = {{"local", outputs_[step.output]}, {"guard", guard_}, {"input", name}, {"meta", meta}};
      return;
    }
    Json value = {{"local", outputs_[step.output]}, {"meta", meta}};
    const bool unconditional = step.source == OutputStep::Source::allocate_if && output(step.output).list;
    if (step.source == OutputStep::Source::allocate_if && !unconditional) value["condition"] = condition_of(step);
    else if (step.input >= 0 && !unconditional) value["input"] = input(step.input).name.text;
    if (step.source == OutputStep::Source::allocate || step.source == OutputStep::Source::allocate_if)
      value["device"] = device_;
    if (step.source == OutputStep::Source::target) value["guard"] = guard_;
    json[step_name(step.source, output(step.output).list)] = std::move(value);
  }

  void add(const ReaderStep& step, Json& json) {
    const std::string local = scope_.local(input(step.input).name.text + "_safe");
    json[input(step.input).list ? "readers" : "reader"] = {
        {"local", local}, {"guard", guard_}, {"input", inputs_[step.input]}};
    inputs_[step.input] = local;
  }

  void add(const DrawStep&, Json& json) {
    key_ = scope_.local("key");
    json["draw"] = {{"local", key_}};
  }

  void add(const RunStep& step, Json& json) {
    phase(json, step.guarded ? "run, then bump versions" : "run");
    Texts args = {kernel_, ctx_};
    for (const Passed& each : params_) args.push_back(kernel_arg(each));
    if (!key_.empty()) args.push_back(key_);
    args.insert(args.end(), outputs_.begin(), outputs_.end());
    json["run"] = {{"function", step.guarded ? guard_ + ".run" : rt("call::run")}, {"args", join(args)}};
  }

  std::string passed_type(const Passed& passed) const {
    if (!passed.arg) return constant_type(passed.constant);
    if (passed.dtype_of) return rt("DType");
    return passed.arg->tensor ? input_type(input(passed.arg->index), Role::kernel, false)
                              : attr_type(op_, op_.signature.attrs[passed.arg->index]);
  }

  std::string kernel_arg(const Passed& passed) const {
    if (!passed.arg) return passed_constant(passed);
    const ArgRef arg = *passed.arg;
    if (!arg.tensor) return op_.signature.attrs[arg.index].name.text;
    if (passed.dtype_of) return dtype_of(arg.index);
    const bool targets = input(arg.index).list && written(arg.index);
    return targets ? fmt::format("{}({})", rt("call::values"), inputs_[arg.index]) : inputs_[arg.index];
  }

  /// The same for compute(), which takes targets directly.
  std::string compute_arg(const Passed& passed) const {
    const bool tensor = passed.arg && passed.arg->tensor && !passed.dtype_of;
    return tensor ? inputs_[passed.arg->index] : kernel_arg(passed);
  }

  void add(const RebindStep& step, Json& json) {
    if (!made_output_) phase(json, "share the buffer");
    made_output_ = true;
    json["rebind"] = {{"input", input(step.input).name.text}, {"meta", metas_[step.output]}};
  }

  const Op& op_;
  const DensePlan& plan_;
  bool dist_;
  Scope scope_;
  std::string ctx_;
  Texts inputs_, metas_, outputs_;
  std::vector<Passed> params_;
  std::string device_, kernel_, dtype_, guard_, key_;
  std::string view_;
  bool explicit_ = false;
  int phases_ = 0;
  bool made_output_ = false;
};

std::string dense_returns(const Op& op, const DensePlan& plan) {
  Texts types;
  for (const int output : plan.returns) types.push_back(output_type(op.signature.outputs[output], Role::dense));
  return tuple_of(types);
}

/// The arguments that some step of the plan reads, by name.
std::set<std::string> used_arguments(const Op& op, const DensePlan& plan, bool dist) {
  std::set<std::string> used;
  const std::optional<ComputeStep> compute = compute_step(op, plan);
  // compute() gets the device from them
  const bool by_arguments = compute && gets_all_tensors(op, compute->kernel);
  const auto use = [&](ArgRef arg) { used.insert(name_of(op.signature, arg).text); };
  const auto use_all = [&](const std::vector<Passed>& args) {
    for (const Passed& each : args) {
      if (each.arg) use(*each.arg);
    }
  };
  for (const Step& step : plan.steps) {
    if (const auto* meta = std::get_if<InferMetaStep>(&step)) {
      if (!dist) use_all(meta->args);
    } else if (const auto* device = std::get_if<DeviceStep>(&step)) {
      for (const int attr : device->attrs) use({false, attr});
      const bool all = device->tensors && (!by_arguments || !device->attrs.empty());
      for (int i = 0; all && i < static_cast<int>(op.signature.inputs.size()); ++i) use({true, i});
    } else if (const auto* kernel = std::get_if<KernelStep>(&step)) {
      use_all(kernel->args);
      for (const DTypeSource& source : kernel->dtypes) {
        if (source.kind != DTypeSource::Kind::constant) use({source.kind == DTypeSource::Kind::input, source.index});
      }
    } else if (const auto* output = std::get_if<OutputStep>(&step)) {
      if (output->input >= 0) use({true, output->input});
      if (output->if_wanted) use({false, mask_of(op)});
    } else if (const auto* rebind = std::get_if<RebindStep>(&step)) {
      use({true, rebind->input});
    }
  }
  return used;
}

/// The parameters of a definition, after `first`: unused ones have no name, so that compilers do not warn.
std::string definition_parameters(const Op& op, Texts params, const std::set<std::string>& used, Texts first) {
  for (size_t i = 0; i < params.size(); ++i) {
    const std::string& name = name_of(op.signature, op.signature.args[i]).text;
    if (!used.contains(name)) params[i].replace(params[i].size() - name.size(), name.size(), "/*" + name + "*/");
  }
  first.insert(first.end(), params.begin(), params.end());
  return parameter_list(op, first);
}

/// The function that infers the metas of an op's outputs from those of its inputs and its
/// attributes: what it is called, takes and returns.
struct InferFunction {
  std::string ctx;
  Texts metas;  // locals
  Texts types;  // of the metas
  Texts params;

  explicit InferFunction(const Op& op) {
    Scope scope(op);
    ctx = scope.local("ctx");
    for (const Output& output : op.signature.outputs) {
      metas.push_back(scope.local(output.name.text + (output.list ? "_metas" : "_meta")));
      types.push_back(meta_type(op, output));
    }
    for (const ArgRef arg : op.signature.args) {
      const std::string& name = name_of(op.signature, arg).text;
      params.push_back((arg.tensor ? meta_input_type(op.signature.inputs[arg.index], contains(op.optional, name))
                                   : attr_type(op, op.signature.attrs[arg.index])) +
                       " " + name);
    }
  }
  Texts first_parameters() const { return {"const " + rt("OpContext") + "& " + ctx}; }
};

Json infer_definition(const Op& op) {
  const DensePlan plan = plan_dense(op, is_inplace_only(op) ? Form::inplace : Form::functional);
  const auto& step = std::get<InferMetaStep>(plan.steps.front());
  const InferFunction function(op);
  Texts args = {function.ctx};
  std::set<std::string> used;
  for (const Passed& passed : step.args) {
    if (!passed.arg) {
      args.push_back(passed_constant(passed));
      continue;
    }
    std::string name = name_of(op.signature, *passed.arg).text;
    used.insert(name);
    if (passed.dtype_of) {
      const Input& input = op.signature.inputs[passed.arg->index];
      name = rt(input.list                    ? "dtype_of_metas"
                : contains(op.optional, name) ? "dtype_of_optional_meta"
                                              : "dtype_of_meta",
                name);
    }
    args.push_back(std::move(name));
  }
  args.insert(args.end(), function.metas.begin(), function.metas.end());
  return {{"returns", tuple_of(function.types)},
          {"name", cpp_name(op)},
          {"params", definition_parameters(op, function.params, used, function.first_parameters())},
          {"metas", meta_locals(op, function.metas)},
          {"func", step.func},
          {"args", join(args)},
          {"result", return_value(function.metas)}};
}

Json definition(const LowerContext& context, const Op& op, Form form) {
  const DensePlan plan = plan_dense(op, form);
  DenseFunction function(op, plan, context.runtime.dist);
  Json data = {{"returns", dense_returns(op, plan)},
               {"name", function_name(op, form)},
               {"steps", function.steps()},
               {"result", false}};
  data["params"] = definition_parameters(op, parameters(op, Role::dense, form, false),
                                         used_arguments(op, plan, context.runtime.dist), function.first_parameters());
  if (std::string text = function.result(); !plan.returns.empty() && !text.empty()) data["result"] = std::move(text);
  // Steps that are written out name the context one by one.
  if (function.is_explicit()) data["ctx"] = function.ctx();
  return data;
}

/// A declaration with these parameters.
Json declaration(const Op& op, const std::string& name, const std::string& returns, Texts params, const Texts& more) {
  params.insert(params.end(), more.begin(), more.end());
  return {{"returns", returns}, {"name", name}, {"declared", parameter_list(op, params)}};
}

Json infer_declaration(const Op& op) {
  const InferFunction function(op);
  return declaration(op, cpp_name(op), tuple_of(function.types), function.first_parameters(), function.params);
}

Json declaration(const LowerContext& context, const Op& op, Form form) {
  const DensePlan plan = plan_dense(op, form);
  return declaration(op, function_name(op, form), dense_returns(op, plan),
                     DenseFunction(op, plan, context.runtime.dist).first_parameters(),
                     parameters(op, Role::dense, form, false));
}

/// The data of the header or the source, with what the functions make of each op.
Json file_data(const LowerContext& context, const Part& part, Json (*function)(const LowerContext&, const Op&, Form),
               Json (*infer)(const Op&)) {
  Json data = {{"source", part.source}, {"infer", false}};
  data["functions"] = items_of(own_ops(part), [&](const Op& op, Json& functions) {
    for (const Form form : forms_of(context, op)) functions.push_back(function(context, op, form));
  });
  if (!context.runtime.dist) return data;
  data["infer"] = {
      {"infers", items_of(own_ops(part), [&](const Op& op, Json& infers) { infers.push_back(infer(op)); })}};
  return data;
}

}  // namespace

Json dense_header_data(const LowerContext& context, const Part& part) {
  return file_data(context, part, declaration, infer_declaration);
}

Json dense_source_data(const LowerContext& context, const Part& part) {
  Json data = file_data(context, part, definition, infer_definition);
  data["name"] = part.name;
  return data;
}

}  // namespace shardgen
