// Infers the types of the outputs of ops from the types of their inputs.
#pragma once

#include <optional>

#include "shard/call/infer_call.h"
#include "shard/call/plan.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// The types of the flat outputs of an op from those of its flat inputs (null: absent). Throws like
/// a call, and internal if inputs of a call on a mesh are not in the layouts that it computes in.
std::vector<std::optional<Type>> infer_types(const Op& op, std::span<const Type* const> inputs);

/// The metas of the outputs of a call, from the types of its inputs.
OutputMetas infer_metas(const Op& op, std::span<const Type* const> inputs);

/// True if a call computes in the layouts of these inputs, and has one output, of this type. The
/// metas of the inputs must be those of a call that was captured.
bool computes_type(const Op& op, std::span<const Type* const> inputs, const Type& output);

/// The placement of a call on a mesh. If the capture was allowed to replicate an op without a rule,
/// the program is too.
call::CallPlan place(const Op& op, std::span<const Type* const> inputs, std::span<const Meta> outputs,
                     std::span<const SlotRange> output_slots);

/// True if an op sends data between ranks, or reduces over them.
bool sends(const Program& program, const Op& op);

/// The mesh of a call: that of its inputs or its layout; null for a call on plain tensors.
const ProcessMesh* mesh_of(const Op& op, std::span<const Type* const> inputs);

}  // namespace shard::program
