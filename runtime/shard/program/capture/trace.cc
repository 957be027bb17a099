#include "shard/program/capture/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "shard/core/writing.h"
#include "shard/dist/dist_tensor.h"
#include "shard/program/capture/program_tracer.h"
#include "shard/program/ir/op_table.h"
#include "shard/reshard/plan.h"

namespace shard::program {

std::vector<uint32_t> ProgramTracer::call(const TracedCall& call) {
  Op op;
  op.entry = OpTable::instance().find(call.op.name);
  if (op.entry == nullptr || op.entry->op->location != call.op.location) {
    refuse(call.op.name,
           "it is not in the table of ops. Add the ops of its file: the generated header has a function for that "
           "(register_... with OpTable::instance())");
  }
  if (algorithm_policy() != algorithms_) {
    refuse(call.op.name,
           "the function has changed AlgorithmPolicy, and the kernels of a program run under that of its call; set the "
           "policy around the call of the captured function");
  }
  op.inplace = call.inplace;
  for (const DenseTensor* input : call.inputs)
    op.inputs.push_back({input == nullptr ? 0 : value_of(*input, call.op.name), 0});
  op.slots.assign(call.slots.begin(), call.slots.end());
  op.attrs = call.attrs;
  op.layout = call.layout;
  op.output_slots.assign(call.output_slots.begin(), call.output_slots.end());
  if (call.op.random) op.draw = call.draw - (is_on_mesh(op) ? world_state_.offset : plain_state_.offset);
  std::vector<std::optional<Type>> types;
  std::vector<ValueId> sources;
  std::vector<bool> writes;
  for (const TracedOutput& output : call.outputs) {
    types.push_back(output.present ? std::optional(Type{output.meta, output.spec, output.device}) : std::nullopt);
    sources.push_back(output.shares < 0 ? 0 : op.inputs[static_cast<size_t>(output.shares)].value);
    writes.push_back(output.written);
  }
  std::vector<uint32_t> symbols = add(std::move(op), types, sources, std::move(writes));
  for (uint32_t& symbol : symbols) symbol = symbol_of(symbol);
  return symbols;
}

DenseTensor ProgramTracer::reshard(const ReshardPlan& plan, const DenseTensor& shard, std::string_view op_name,
                                   std::string_view argument) {
  Op op;
  const bool relayout = !(plan.after_meta.dims == plan.meta.dims);
  op.kind = relayout ? Kind::relayout : Kind::reshard;
  if (relayout) op.attrs.emplace_back(IntArray(plan.after_meta.dims));
  op.inputs = {{value_of(shard, op_name), 0}};
  op.layout = plan.to;
  op.cause = op_name == "reshard" ? "" : fmt::format("{} {}", op_name, argument);
  // A rank that held nothing receives on its default device.
  const bool receives = shard.storage()->state() == Storage::State::absent;
  const Type type{plan.after_meta, plan.to, receives ? before_.rank->device() : shard.device()};
  DenseTensor result = local_shard_of(type, meter);
  result.set_symbol(symbol_of(add_single(std::move(op), type)));
  return result;
}

void ProgramTracer::copy(DenseTensor& to, const DenseTensor& from) {
  Op op;
  op.kind = Kind::copy;
  const ValueId target = value_of(to, "copy");
  op.inputs = {{target, 0}, {value_of(from, "copy"), 0}};
  const std::optional<Type> type = program_.value(target).type;
  to.set_symbol(symbol_of(add(std::move(op), {&type, 1}, {&target, 1}, {true})[0]));
}

uint32_t ProgramTracer::convert(Conversion conversion, const DenseTensor& from, const TracedOutput& to,
                                int source_rank) {
  constexpr Kind kinds[] = {Kind::distribute, Kind::full_tensor, Kind::clone};
  Op op;
  op.kind = kinds[static_cast<size_t>(conversion)];
  op.inputs = {{value_of(from, to_string(op.kind)), 0}};
  op.source_rank = source_rank;
  if (op.kind == Kind::distribute) op.layout = to.spec;
  if (op.kind == Kind::clone) op.attrs.emplace_back(to.device);
  return symbol_of(add_single(std::move(op), {to.meta, to.spec, to.device}));
}

uint32_t ProgramTracer::next_tag() {
  static std::atomic<uint32_t> captures{0};
  return (captures++ % 4095 + 1) << 20;
}

uint32_t ProgramTracer::symbol_of(ValueId id) const {
  if (id > kValueBits)
    fail(ErrorCode::capture, "the captured function makes more than {} tensors; capture parts of it", kValueBits);
  return id == 0 ? 0 : tag_ | id;
}

ValueId ProgramTracer::value_of(const DenseTensor& tensor, std::string_view op) {
  if (tensor.symbol() == 0) {
    refuse(op, fmt::format("an argument ({}) comes from computations that were recorded before the capture; compute it "
                           "inside of the captured function, or pass detach() of it",
                           shard::to_string(tensor.meta())));
  }
  if ((tensor.symbol() & ~kValueBits) != tag_) {
    refuse(op, fmt::format("an argument ({}) was made while another program was captured, and has no value; use what "
                           "that program returns when it runs",
                           shard::to_string(tensor.meta())));
  }
  return tensor.symbol() & kValueBits;
}

bool ProgramTracer::is_on_mesh(const Op& op) const {
  if (op.layout != nullptr) return true;
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Operand& input) {
    return input.value != 0 && program_.value(input.value).type.spec != nullptr;
  });
}

std::vector<uint32_t> ProgramTracer::add(Op op, std::span<const std::optional<Type>> types,
                                         std::span<const ValueId> sources, std::vector<bool> writes) {
  if (op.slots.empty()) {
    for (size_t i = 0; i < op.inputs.size(); ++i) op.slots.push_back({i, 1});
  }
  if (op.output_slots.empty()) {
    for (size_t i = 0; i < types.size(); ++i) op.output_slots.push_back({i, 1});
  }
  if (const Writing* const writing = Writing::current()) op.site = writing->site();
  const int number = program_.add_op(std::move(op), types, sources, std::move(writes));
  return program_.ops[static_cast<size_t>(number)].outputs;
}

ValueId ProgramTracer::add_single(Op op, const Type& type) {
  const std::optional<Type> given = type;
  const ValueId none = 0;
  return add(std::move(op), {&given, 1}, {&none, 1}, {false})[0];
}

Trace trace(const Function& function, const std::vector<Tensor>& inputs, const Scope* scope) {
  if (!function)
    fail(ErrorCode::invalid_argument,
         "[trace] there is no function to capture; pass one that takes and returns tensors");
  if (Tracer::current() != nullptr) {
    fail(ErrorCode::capture,
         "a captured function captures another one; call the inner function itself there, it becomes part of the "
         "program");
  }
  const autograd::NoBoundary no_boundary;
  // Whether the function also uses an input from outside is known only after it has run. In that
  // case it runs once more, with one tensor for both.
  for (TensorSet shared;;) {
    ProgramTracer tracer(scope, shared, no_boundary);
    TensorSet more;
    try {
      Trace result = tracer.finish(function(tracer.make_inputs(inputs)));
      more = tracer.found_shared();
      if (more.empty()) {
        tracer.check_constants();
        return result;
      }
    } catch (...) {
      more = tracer.found_shared();
      if (more.empty()) throw;
    }
    shared.insert(more.begin(), more.end());
  }
}

}  // namespace shard::program
