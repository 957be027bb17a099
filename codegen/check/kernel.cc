// Checks that an op says how to run it, and that its kernels have as many tensors as the op.
// rule.cc checks its rule.
#include <fmt/format.h>

#include <algorithm>

#include "check/parts.h"
#include "diag/suggest.h"

namespace shardgen {
namespace {

/// True when every output only reinterprets an input, so that no kernel is needed.
bool is_pure_view(const Op& op) {
  if (op.signature.outputs.empty()) return false;
  const auto in = [](const std::vector<AliasPair>& pairs, const std::string& output) {
    return std::any_of(pairs.begin(), pairs.end(), [&](const AliasPair& pair) { return pair.output.text == output; });
  };
  return std::all_of(op.signature.outputs.begin(), op.signature.outputs.end(), [&](const Output& output) {
    const bool written = op.extension.view_writes && contains(*op.extension.view_writes, output.name.text);
    return in(op.view, output.name.text) && in(op.inplace, output.name.text) && !written;
  });
}

void check_formats(const Op& op, const KernelFunc& func, DiagnosticSink& sink) {
  for (const Name& kind : func.unknown) {
    sink.error(kind.at, "unknown-type",
               fmt::format("Unknown kind of tensor '{}'{}", kind.text, suggestion(kind.text, tensor_format_names())));
  }
  if (!func.has_formats) return;
  size_t inputs = op.signature.inputs.size();
  if (op.kernel->param) {
    inputs =
        static_cast<size_t>(std::count_if(op.kernel->param->begin(), op.kernel->param->end(), [&](const CallArg& arg) {
          return find_input(op.signature, arg.name.text) >= 0;
        }));
  }
  if (func.inputs.size() != inputs || func.outputs.size() != op.signature.outputs.size()) {
    sink.warning(func.name.at, "kernel-arity",
                 fmt::format("Kernel '{}' is declared for {} inputs and {} outputs, but op '{}' passes it {} and {}.",
                             func.name.text, func.inputs.size(), func.outputs.size(), op.name.text, inputs,
                             op.signature.outputs.size()));
  }
}

/// The kernel makes an output whose shape depends on data, so it is one new tensor.
void check_dynamic_shape(const Op& op, DiagnosticSink& sink) {
  if (!op.extension.dynamic_shape) return;
  for (const Name& name : *op.extension.dynamic_shape) {
    const int output = find_output(op.signature, name.text);
    if (output < 0) continue;
    const auto shares = [&](const std::vector<AliasPair>& pairs, std::string_view key) {
      for (const AliasPair& pair : pairs) {
        if (pair.output.text != name.text) continue;
        sink.error(
            name.at, "bad-dynamic-shape",
            fmt::format("'{}' is in the buffer of '{}', so its shape cannot come from data: remove one of the two.",
                        name.text, pair.input.text),
            {{pair.output.at, fmt::format("The pair of '{}'.", key)}});
      }
    };
    shares(op.inplace, "inplace");
    shares(op.view, "view");
    if (op.signature.outputs[output].list) {
      sink.error(name.at, "bad-dynamic-shape",
                 fmt::format("'{}' is a list: only a single tensor can get its shape from data.", name.text));
    }
    if (!op.kernel)
      sink.error(name.at, "bad-dynamic-shape",
                 fmt::format("Op '{}' has no kernel to compute '{}'.", op.name.text, name.text));
  }
}

/// Without tensor inputs nothing determines the dtype and the device.
void check_dispatch_given(const Op& op, DiagnosticSink& sink) {
  // it may be a misspelt Tensor
  const auto unknown = [](const Attr& attr) { return attr.type == AttrType::unknown; };
  if (!op.signature.inputs.empty() || std::any_of(op.signature.attrs.begin(), op.signature.attrs.end(), unknown))
    return;
  if (op.kernel->data_type.candidates.empty() || op.kernel->backend.candidates.empty()) {
    sink.warning(op.kernel->at, "missing-dispatch",
                 fmt::format("Op '{}' has no tensor argument, so its kernel needs both 'data_type' and 'backend'.",
                             op.name.text));
  }
}

/// The message for an op that nothing computes.
std::string missing_kernel(const Op& op) {
  const auto is_view = [&](const Output& output) {
    return std::any_of(op.view.begin(), op.view.end(),
                       [&](const AliasPair& pair) { return pair.output.text == output.name.text; });
  };
  const std::vector<Output>& outputs = op.signature.outputs;
  if (!std::all_of(outputs.begin(), outputs.end(), is_view))
    return fmt::format("Op '{}' has no 'kernel' and no 'invoke', and not all of its outputs are views: add a 'kernel'.",
                       op.name.text);
  for (const AliasPair& view : op.view) {
    const bool inplace = std::any_of(op.inplace.begin(), op.inplace.end(),
                                     [&](const AliasPair& pair) { return pair.output.text == view.output.text; });
    if (inplace) continue;
    return fmt::format(
        "Op '{0}' has no 'kernel', and its view '{2}' is not in 'inplace'. If '{2}' is '{1}' in another shape, add "
        "'inplace : ({1} -> {2})'; "
        "else add a 'kernel', which fills '{2}' and so writes into '{1}'.",
        op.name.text, view.input.text, view.output.text);
  }
  return fmt::format(
      "Op '{}' has no 'kernel' to write the views in 'view_writes': add one, or remove them from 'view_writes'.",
      op.name.text);
}

/// A kernel that writes a view writes into the argument, which is often unintended.
void check_written_views(const Op& op, DiagnosticSink& sink) {
  if (!op.kernel || op.extension.view_writes) return;
  for (const AliasPair& view : op.view) {
    const bool inplace = std::any_of(op.inplace.begin(), op.inplace.end(),
                                     [&](const AliasPair& pair) { return pair.output.text == view.output.text; });
    if (inplace) continue;
    sink.warning(view.output.at, "view-writes",
                 fmt::format("The kernel of '{0}' fills the view '{2}' and so writes into '{1}'. If that is intended, "
                             "write 'shard : {{view_writes : [{2}]}}'; if '{2}' is '{1}' in another shape, add "
                             "'inplace : ({1} -> {2})'; else remove the pair.",
                             op.name.text, view.input.text, view.output.text));
  }
}

void check_blocks(const Op& op, DiagnosticSink& sink) {
  const bool runs = op.kernel || op.has_invoke || op.composite || is_pure_view(op);
  if (!runs) sink.error(op.name.at, "missing-kernel", missing_kernel(op));
  if (op.kernel && op.invoke) {
    sink.error(op.kernel->at, "kernel-and-invoke",
               fmt::format("Op '{}' has both 'kernel' and 'invoke': remove one of them.", op.name.text),
               {{op.invoke->function.at, "The 'invoke'."}});
  }
  if (op.kernel && !op.kernel->has_func) {
    sink.error(op.kernel->at, "missing-key", fmt::format("'kernel' of op '{}' needs the key 'func'.", op.name.text));
  }
  if (!op.inplace.empty() && !op.kernel && (op.has_invoke || op.composite)) {
    const AliasPair& pair = op.inplace.front();
    sink.warning(
        pair.input.at, "unused-inplace",
        fmt::format("Op '{}' has no 'kernel' of its own that could write '{}', so there is no in-place form of "
                    "it: add a 'kernel', or remove 'inplace'.",
                    op.name.text, pair.input.text));
  }
  const bool needs_meta = !op.is_backward && (op.kernel || is_pure_view(op));
  if (needs_meta && (!op.infer_meta || !op.infer_meta->func)) {
    sink.error(op.infer_meta ? op.infer_meta->at : op.name.at, "missing-key",
               fmt::format("Op '{}' needs 'infer_meta' with the key 'func'.", op.name.text));
  }
}

}  // namespace

bool check_signature_given(const Op& op, DiagnosticSink& sink) {
  if (!op.args_at) sink.error(op.name.at, "missing-key", fmt::format("Op '{}' needs the key 'args'.", op.name.text));
  if (!op.output_at)
    sink.error(op.name.at, "missing-key", fmt::format("Op '{}' needs the key 'output'.", op.name.text));
  return op.args_at && op.output_at;
}

void check_kernel(const Op& op, DiagnosticSink& sink) {
  if (op.is_backward && !op.has_forward && !op.has_invoke) {
    sink.warning(op.name.at, "missing-key", fmt::format("Backward op '{}' needs the key 'forward'.", op.name.text));
  }
  if (op.signature.outputs.empty()) return;
  check_blocks(op, sink);
  check_dynamic_shape(op, sink);
  check_written_views(op, sink);
  if (op.kernel) {
    for (const KernelFunc& func : op.kernel->funcs) check_formats(op, func, sink);
    if (!op.is_backward) check_dispatch_given(op, sink);
  }
  if (op.infer_meta && op.infer_meta->spmd_rule) check_rule(op, sink);
}

}  // namespace shardgen
