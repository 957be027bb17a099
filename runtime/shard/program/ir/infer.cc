#include "shard/program/ir/infer.h"

#include <algorithm>

#include "shard/call/plan_call.h"
#include "shard/core/error.h"
#include "shard/reshard/plan.h"

namespace shard::program {
namespace {

/// True if output `slot` is absent because it is not wanted, or because the optional argument whose buffer it shares is
/// absent.
bool is_absent(const Op& op, size_t slot, std::span<const Type* const> inputs) {
  if (op.leaves_out(slot)) return true;
  for (const AliasDef& alias : op.entry->op->aliases) {
    if (alias.output != static_cast<int>(slot) || (alias.kind == AliasDef::Kind::inplace && !op.inplace)) continue;
    const SlotRange& from = op.slots[static_cast<size_t>(alias.input)];
    if (from.count == 0 || inputs[from.first] == nullptr) return true;
  }
  return false;
}

/// The types of the outputs of a call and, on a mesh, its placement.
struct InferredCall {
  std::vector<std::optional<Type>> types;
  std::optional<call::CallPlan> plan;
};

InferredCall infer_call(const Op& op, std::span<const Type* const> inputs) {
  const auto [flat, slots] = infer_metas(op, inputs);
  const ProcessMesh* const mesh = mesh_of(op, inputs);
  const auto first = std::find_if(inputs.begin(), inputs.end(), [](const Type* type) { return type != nullptr; });
  InferredCall result;
  std::optional<call::CallPlan>& plan = result.plan;
  if (mesh != nullptr) plan = place(op, inputs, flat, slots);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    for (size_t i = slots[slot].first; i < slots[slot].first + slots[slot].count; ++i) {
      if (is_absent(op, slot, inputs) || (plan && plan->outputs[i].spec == nullptr)) result.types.emplace_back();
      else
        result.types.push_back(
            Type{flat[i], plan ? plan->outputs[i].spec : nullptr, first == inputs.end() ? kCpu : (*first)->device});
    }
  }
  return result;
}

/// The first input that is in another layout than the call computes in; nullopt if there is none.
std::optional<size_t> misplaced(const Op& op, std::span<const Type* const> inputs, const InferredCall& call) {
  for (size_t i = 0; call.plan && i < inputs.size(); ++i) {
    if (inputs[i] == nullptr || !op.reads_bytes(i)) continue;
    if (!same_value(inputs[i]->meta.dtype, inputs[i]->spec, call.plan->inputs[i].want)) return i;
  }
  return std::nullopt;
}

}  // namespace

OutputMetas infer_metas(const Op& op, std::span<const Type* const> inputs) {
  std::vector<const Meta*> metas;
  for (const Type* type : inputs) metas.push_back(type == nullptr ? nullptr : &type->meta);
  return op.entry->infer({{.op = op.name().data()}, metas, op.slots, attr_refs(op.attrs)});
}

bool computes_type(const Op& op, std::span<const Type* const> inputs, const Type& output) {
  const InferredCall call = infer_call(op, inputs);
  return !misplaced(op, inputs, call) && call.types.size() == 1 && call.types[0] == output;
}

bool sends(const Program& program, const Op& op) {
  if (op.kind != Kind::call) return op.kind != Kind::alias && op.kind != Kind::copy && op.kind != Kind::clone;
  std::vector<const Type*> inputs;
  for (const Operand& input : op.inputs)
    inputs.push_back(input.value == 0 ? nullptr : &program.value(input.value).type);
  if (op.layout != nullptr || mesh_of(op, inputs) == nullptr) return false;
  std::vector<Meta> outputs;
  for (const ValueId id : op.outputs) outputs.push_back(id == 0 ? Meta() : program.value(id).type.meta);
  return !place(op, inputs, outputs, op.output_slots).reduce_axes.empty();
}

const ProcessMesh* mesh_of(const Op& op, std::span<const Type* const> inputs) {
  if (op.layout != nullptr) return op.layout->mesh();
  for (const Type* type : inputs) {
    if (type != nullptr && type->spec != nullptr) return type->spec->mesh();
  }
  return nullptr;
}

call::CallPlan place(const Op& op, std::span<const Type* const> inputs, std::span<const Meta> outputs,
                     std::span<const SlotRange> output_slots) {
  std::vector<spmd::TensorArg> args;
  for (const Type* type : inputs)
    args.push_back(type == nullptr ? spmd::TensorArg{} : spmd::TensorArg{type->meta, type->spec});
  return call::place_call({*op.entry->op, op.name().data(), op.inplace, mesh_of(op, inputs), args, op.slots,
                           attr_refs(op.attrs), op.layout, outputs, output_slots},
                          FallbackPolicy::replicate);
}

std::vector<std::optional<Type>> infer_types(const Op& op, std::span<const Type* const> inputs) {
  if (op.kind == Kind::call) {
    InferredCall call = infer_call(op, inputs);
    if (const std::optional<size_t> i = misplaced(op, inputs, call)) {
      fail(ErrorCode::internal,
           "[{}] argument {} has layout {}, but the op computes in {}: a reshard is missing before it", op.name(), *i,
           inputs[*i]->spec->text(), call.plan->inputs[*i].want->text());
    }
    return std::move(call.types);
  }
  const Type& first = *inputs[0];
  // For these ops `layout` and `attrs` determine part of the result type. The rest follows from the
  // input.
  switch (op.kind) {
    case Kind::reshard:
    case Kind::distribute: return {Type{first.meta, op.layout, first.device}};
    case Kind::relayout: {
      const IntArray& shape = std::get<IntArray>(op.attrs[0]);
      return {Type{{Dims(std::span<const int64_t>(shape)), first.meta.dtype}, op.layout, first.device}};
    }
    case Kind::copy:
      if (!(first.meta == inputs[1]->meta) || first.spec != inputs[1]->spec) {
        fail(ErrorCode::internal, "[copy] {} cannot be written over {}", to_string(*inputs[1]), to_string(first));
      }
      return {first};
    case Kind::full_tensor: return {Type{first.meta, nullptr, first.device}};
    case Kind::clone: return {Type{first.meta, first.spec, std::get<Device>(op.attrs[0])}};
    case Kind::alias:
      return {Type{{Dims(std::span<const int64_t>(std::get<IntArray>(op.attrs[0]))), std::get<DType>(op.attrs[1])},
                   op.layout,
                   first.device}};
    case Kind::call: break;
  }
  return {};
}

}  // namespace shard::program
