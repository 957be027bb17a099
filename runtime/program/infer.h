// What ops give, from the types of what they get.
#pragma once

#include <optional>

#include "call/infer_call.h"
#include "call/plan.h"
#include "program/program.h"

namespace shard::program {

/// The types of the flat outputs of an op from those of its flat inputs (null: absent). Throws as a call would, and internal where inputs of a
/// call on a mesh are not in the layouts that it computes in.
std::vector<std::optional<Type>> infer_types(const Op& op, std::span<const Type* const> inputs);

/// The metas of the outputs of a call, from the types of its inputs.
OutputMetas infer_metas(const Op& op, std::span<const Type* const> inputs);

/// Whether an op with one output makes it of this type; false where it refuses its inputs.
bool gives(const Op& op, std::span<const Type* const> inputs, const Type& output);

/// The placement of a call on a mesh; a program whose capture was allowed to replicate for want of a rule still is.
call::CallPlan place(const Op& op, std::span<const Type* const> inputs, std::span<const Meta> outputs,
                     std::span<const SlotRange> output_slots);

/// Whether an op moves pieces between ranks, or reduces over them.
bool sends(const Program& program, const Op& op);

/// The mesh of a call: that of its inputs or its layout; null for one on plain tensors.
const ProcessMesh* mesh_of(const Op& op, std::span<const Type* const> inputs);

}  // namespace shard::program
