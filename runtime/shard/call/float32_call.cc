#include "shard/call/float32_call.h"

#include <algorithm>

#include "shard/call/dense_call.h"

namespace shard::call {

Float32Call::Float32Call(const OpContext& ctx, const CallPlan& plan, std::span<DenseTensor> arguments)
    : ctx_(ctx), plan_(plan) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    DenseTensor& argument = arguments[i];
    if (!argument.defined() || compute_dtype(argument.dtype()) == argument.dtype()) continue;
    if (plan.inputs[i].shape_only) {
      argument = DenseTensor(argument.storage(), {argument.dims(), DType::float32});
      continue;
    }
    const DenseTensor from = argument;
    argument = cast_to(ctx, from, DType::float32);
    converted_.push_back({from, argument});
  }
}

DenseTensor Float32Call::output(size_t o, const DenseTensor& given) const {
  if (!given.defined() || plan_.outputs[o].spec == nullptr) return given;
  const DenseTensor result = cast_to(ctx_, given, plan_.output_shards[o].dtype);
  const auto written = std::find_if(converted_.begin(), converted_.end(),
                                    [&](const Argument& each) { return each.to.storage() == given.storage(); });
  if (written == converted_.end() || result.dtype() != written->from.dtype()) return result;
  copy(ctx_, written->from, result);
  return written->from.reinterpret(result.meta());
}

}  // namespace shard::call
