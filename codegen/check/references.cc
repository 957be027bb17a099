// Checks that names in lists, parameters and expressions refer to something in the op.
#include <fmt/format.h>

#include "check/parts.h"
#include "diag/suggest.h"
#include "lower/plan.h"

namespace shardgen {
namespace {

/// The names that a key may refer to.
struct Known {
  std::string_view what;  // completes "'x' is ..."
  std::vector<std::string_view> names;
};

Known inputs_of(const Op& op) {
  Known known{"not a tensor argument", {}};
  for (const Input& input : op.signature.inputs) known.names.push_back(input.name.text);
  return known;
}

Known outputs_of(const Op& op) {
  Known known{"not an output", {}};
  for (const Output& output : op.signature.outputs) known.names.push_back(output.name.text);
  return known;
}

Known args_of(const Op& op) {
  Known known{"not an argument", {}};
  for (const ArgRef arg : op.signature.args) known.names.push_back(name_of(op.signature, arg).text);
  return known;
}

Known tensors_of(const Op& op) {
  Known known = inputs_of(op);
  const Known outputs = outputs_of(op);
  known.what = "neither a tensor argument nor an output";
  known.names.insert(known.names.end(), outputs.names.begin(), outputs.names.end());
  return known;
}

void check_name_in(const Op& op, const Name& name, std::string_view key, const Known& known, DiagnosticSink& sink) {
  for (const std::string_view candidate : known.names) {
    if (candidate == name.text) return;
  }
  sink.error(name.at, "unknown-name",
             fmt::format("'{}' in '{}' is {} of op '{}'{}", name.text, key, known.what, op.name.text,
                         suggestion(name.text, known.names)));
}

void check_list(const Op& op, const std::vector<Name>& names, std::string_view key, const Known& known,
                DiagnosticSink& sink) {
  for (size_t i = 0; i < names.size(); ++i) {
    check_name_in(op, names[i], key, known, sink);
    for (size_t k = 0; k < i; ++k) {
      if (names[k].text != names[i].text) continue;
      sink.warning(names[i].at, "duplicate-name", fmt::format("'{}' is listed in '{}' twice.", names[i].text, key),
                   {{names[k].at, "First named here."}});
      break;
    }
  }
}

/// Checks the arguments of a function that the op calls; `outputs`: outputs may be passed too.
void check_passed(const Op& op, const std::vector<CallArg>& args, std::string_view key, bool outputs,
                  DiagnosticSink& sink) {
  for (const CallArg& arg : args) {
    const bool is_output = outputs && find_output(op.signature, arg.name.text) >= 0;
    if (arg.kind == CallArg::Kind::name && !is_output) check_name_in(op, arg.name, key, args_of(op), sink);
    if (arg.kind == CallArg::Kind::dtype_of) check_name_in(op, arg.name, key, inputs_of(op), sink);
    if (const auto* opaque = std::get_if<Opaque>(&arg.literal.value); opaque != nullptr)
      sink.error(opaque->at, opaque->code, opaque->problem);
    if (arg.kind == CallArg::Kind::literal)
      check_texts(arg.literal, arg.name.at, fmt::format("A constant in '{}'", key), sink);
  }
}

/// True for the types that are an IntArray in C++.
bool is_int_array(AttrType type) {
  return type == AttrType::int_array || type == AttrType::int32_list || type == AttrType::int64_list;
}

void check_infer_meta_refs(const Op& op, DiagnosticSink& sink) {
  const InferMeta& meta = *op.infer_meta;
  if (meta.param) check_passed(op, *meta.param, "infer_meta.param", false, sink);
  if (meta.local_shape) {
    const int attr = find_attr(op.signature, meta.local_shape->text);
    if (attr < 0) { check_name_in(op, *meta.local_shape, "local_shape", args_of(op), sink); }
    if (attr < 0 ? find_input(op.signature, meta.local_shape->text) >= 0
                 : !is_int_array(op.signature.attrs[attr].type)) {
      sink.error(meta.local_shape->at, "bad-local-shape",
                 fmt::format("'{}' in 'local_shape' must be an IntArray argument.", meta.local_shape->text));
    }
  }
  if (meta.global_shape) check_name_in(op, *meta.global_shape, "global_shape", outputs_of(op), sink);
}

void check_dispatch(const Op& op, const DispatchKey& key, std::string_view name, AttrType wanted,
                    DiagnosticSink& sink) {
  for (const Candidate& candidate : key.candidates) {
    if (candidate.constant) continue;
    if (const std::string& text = candidate.name.text; text.starts_with("DataType::")) {
      sink.error(
          candidate.name.at, "unknown-type",
          fmt::format("Unknown data type '{}'{}", text.substr(10), suggestion(text.substr(10), data_type_names())));
      continue;
    }
    check_name_in(op, candidate.name, name, args_of(op), sink);
    const int attr = find_attr(op.signature, candidate.name.text);
    if (attr >= 0 && op.signature.attrs[attr].type != wanted) {
      sink.error(
          candidate.name.at, "bad-dispatch",
          fmt::format("'{}' in '{}' must be a tensor or a {} argument.", candidate.name.text, name, yaml_name(wanted)));
    }
  }
}

void check_kernel_refs(const Op& op, DiagnosticSink& sink) {
  const KernelSpec& kernel = *op.kernel;
  if (kernel.param) check_passed(op, *kernel.param, "kernel.param", false, sink);
  check_dispatch(op, kernel.data_type, "kernel.data_type", AttrType::dtype, sink);
  check_dispatch(op, kernel.backend, "kernel.backend", AttrType::place, sink);
  for (const Candidate& candidate : kernel.layout.candidates) {
    if (!candidate.constant) check_name_in(op, candidate.name, "kernel.layout", args_of(op), sink);
  }
}

bool is_integer(AttrType type) { return type == AttrType::int32 || type == AttrType::int64; }

bool has_length(AttrType type) {
  switch (type) {
    case AttrType::int_array:
    case AttrType::boolean_list:
    case AttrType::int32_list:
    case AttrType::int64_list:
    case AttrType::float32_list:
    case AttrType::float64_list:
    case AttrType::str_list:
    case AttrType::scalar_list: return true;
    case AttrType::boolean:
    case AttrType::int32:
    case AttrType::int64:
    case AttrType::float32:
    case AttrType::float64:
    case AttrType::str:
    case AttrType::dtype:
    case AttrType::place:
    case AttrType::scalar:
    case AttrType::unknown: return false;
  }
  return false;
}

/// At least one output must be visible, or the function would return nothing.
void check_visible(const Op& op, DiagnosticSink& sink) {
  if (op.is_backward || op.signature.outputs.empty()) return;
  for (const Output& output : op.signature.outputs) {
    if (!contains(op.intermediate, output.name.text)) return;
  }
  sink.error(op.intermediate.front().at, "no-output",
             fmt::format("All outputs of op '{}' are intermediate: remove the one that users get from the list.",
                         op.name.text));
}

void check_save_if(const Op& op, DiagnosticSink& sink) {
  if (!op.extension.save_if) return;
  const std::vector<SaveIf>& all = *op.extension.save_if;
  if (!op.is_backward && !all.empty()) {
    sink.error(all.front().arg.at, "save-if",
               fmt::format("'save_if' is given for op '{}', but applies to arguments of its gradient: put it under "
                           "'shard' of the backward op.",
                           op.name.text));
    return;
  }
  for (const SaveIf& one : all) {
    check_name_in(op, one.arg, "save_if", inputs_of(op), sink);
    if (find_input(op.signature, one.arg.text) >= 0 && op.kernel && !contains(op.optional, one.arg.text)) {
      sink.error(
          one.arg.at, "save-if",
          fmt::format("'{}' may be missing under 'save_if', but the kernel of '{}' requires it: add it to 'optional'.",
                      one.arg.text, op.name.text));
    }
    for (const Condition::Term& term : one.condition.terms) {
      if (term.kind == Condition::Term::Kind::wanted) check_name_in(op, term.name, "save_if", outputs_of(op), sink);
      if (term.kind != Condition::Term::Kind::attr) continue;
      check_name_in(op, term.name, "save_if", args_of(op), sink);
      const std::optional<ArgRef> arg = find_arg(op.signature, term.name.text);
      if (!arg || (!arg->tensor && op.signature.attrs[arg->index].type == AttrType::boolean)) continue;
      sink.error(term.name.at, "save-if", fmt::format("'{}' is not a bool, as a condition must be.", term.name.text));
    }
  }
}

void check_neutral(const Op& op, DiagnosticSink& sink) {
  if (!op.extension.neutral) return;
  for (const Neutral& one : *op.extension.neutral) {
    check_name_in(op, one.arg, "neutral", inputs_of(op), sink);
    if (find_input(op.signature, one.arg.text) < 2) continue;
    sink.error(
        one.arg.at, "bad-value",
        fmt::format("'neutral' applies to the first two arguments of an op, and '{}' comes after them.", one.arg.text));
  }
}

void check_pointwise(const Op& op, DiagnosticSink& sink) {
  if (!has_trait(op, Trait::pointwise) || (is_elementwise(op) && !is_random(op))) return;
  sink.error(op.name.at, "bad-value",
             fmt::format("Op '{}' cannot be pointwise, because it {}.", op.name.text,
                         is_random(op) ? "draws random numbers by position"
                                       : "is not elementwise: add 'elementwise : true' under 'shard'"));
}

void check_record_composite(const Op& op, DiagnosticSink& sink) {
  if (!op.extension.record_composite.value_or(false) || (op.kernel && op.composite && !op.backward)) return;
  sink.error(op.name.at, "record-composite",
             fmt::format("'record_composite' of op '{}' {}.", op.name.text,
                         op.backward ? "is given together with 'backward', which already defines how recorded calls "
                                       "are differentiated: remove one of them"
                         : !op.composite ? "needs the key 'composite', which defines what recorded calls run"
                                         : "needs a 'kernel', which runs the calls that are not recorded"));
}

void check_optional_outputs(const Op& op, DiagnosticSink& sink) {
  if (!op.extension.optional_outputs.value_or(false)) return;
  const char* const problem =
      !op.is_backward || op.signature.outputs.size() < 2 ? "is only for backward ops with several outputs"
      : !op.kernel                       ? "needs a 'kernel'; a 'composite' alone gets the wanted outputs anyway"
      : !op.inplace.empty()              ? "is given together with 'inplace', whose outputs are arguments"
      : find_arg(op.signature, "wanted") ? "adds an argument 'wanted', which the op has already: rename it"
                                         : nullptr;
  if (problem != nullptr)
    sink.error(op.name.at, "optional-outputs", fmt::format("'optional_outputs' of op '{}' {}.", op.name.text, problem));
}

void check_overload(const Op& op, DiagnosticSink& sink) {
  if (!op.extension.overload.value_or(false) || (op.invoke && !op.is_backward)) return;
  sink.error(op.name.at, "overload",
             fmt::format("'overload' of op '{}' {}.", op.name.text,
                         op.is_backward ? "is for functions that users call, not for backward ops"
                                        : "needs the key 'invoke', which names the op of which it is an overload"));
}

void check_sizes(const Op& op, DiagnosticSink& sink) {
  for (const Output& output : op.signature.outputs) {
    for (const SizeTerm& term : output.size) {
      if (term.kind == SizeTerm::Kind::opaque) {
        sink.warning(term.name.at, "cpp-expression",
                     "The length is a C++ expression, which is not parsed: infer_meta decides.");
      }
      if (term.kind == SizeTerm::Kind::constant || term.kind == SizeTerm::Kind::opaque) continue;
      check_name_in(op, term.name, "output", args_of(op), sink);
      const std::optional<ArgRef> arg = find_arg(op.signature, term.name.text);
      if (!arg) continue;
      const bool wants_length = term.kind == SizeTerm::Kind::length;
      const bool fits = arg->tensor    ? wants_length && op.signature.inputs[arg->index].list
                        : wants_length ? has_length(op.signature.attrs[arg->index].type)
                                       : is_integer(op.signature.attrs[arg->index].type);
      if (fits) continue;
      sink.error(term.name.at, "bad-size",
                 fmt::format("'{}' cannot be the length of '{}': it is {}.", term.name.text, output.name.text,
                             wants_length ? "not a list" : "not an int"));
    }
  }
}

}  // namespace

void check_references(const Op& op, DiagnosticSink& sink) {
  check_list(op, op.optional, "optional", tensors_of(op), sink);
  check_list(op, op.intermediate, "intermediate", outputs_of(op), sink);
  check_list(op, op.no_need_buffer, "no_need_buffer", inputs_of(op), sink);
  check_list(op, op.support_tensor, "support_tensor", args_of(op), sink);
  check_list(op, op.data_transform.skip_transform, "skip_transform", inputs_of(op), sink);
  check_list(op, op.data_transform.support_trans_dtype, "support_trans_dtype", inputs_of(op), sink);
  if (op.extension.view_writes) check_list(op, *op.extension.view_writes, "view_writes", outputs_of(op), sink);
  if (op.extension.dynamic_shape) check_list(op, *op.extension.dynamic_shape, "dynamic_shape", outputs_of(op), sink);
  check_save_if(op, sink);
  check_neutral(op, sink);
  check_pointwise(op, sink);
  check_record_composite(op, sink);
  check_optional_outputs(op, sink);
  check_overload(op, sink);
  if (op.infer_meta) check_infer_meta_refs(op, sink);
  if (op.kernel) check_kernel_refs(op, sink);
  // A backward op may pass its outputs to a function that writes them.
  if (op.invoke) check_passed(op, op.invoke->args, "invoke", op.is_backward, sink);
  // A composite beside a kernel is only used by recorded calls. Alone it is the body of the op, and
  // may be passed outputs like an invoke.
  const bool runs_composite = (!op.kernel && !op.invoke) || op.extension.record_composite.value_or(false);
  if (op.composite && runs_composite) check_passed(op, op.composite->args, "composite", op.is_backward, sink);
  check_sizes(op, sink);
  check_visible(op, sink);
}

}  // namespace shardgen
