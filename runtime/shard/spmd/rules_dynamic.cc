// Rules of ops whose number of output rows depends on data. Their kernels compute the rows of a
// local shard; the call concatenates them in order.
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/rule.h"

namespace shard::spmd {
namespace {

/// Outputs list elements of the arguments, which have one shape, in row-major order. So each local
/// shard must be one run of that order: every axis that shards an argument is assigned to the first
/// dim that can be split, and shards the rows of the outputs.
RuleResult row_major(const RuleArgs& args) {
  const Dims& dims = args.tensors[0].meta.dims;
  int lead = 0;
  while (lead + 1 < dims.rank() && dims[lead] == 1) ++lead;
  AxisList axes;
  const auto take = [&](const AxisList& more) {
    for (int i = 0; i < more.size(); ++i) {
      if (!axes.contains(more[i])) axes.push_back(more[i]);
    }
  };
  if (dims.rank() > 0) {
    for (const TensorArg& tensor : args.tensors) take(tensor.spec->axes(lead));
    for (const TensorArg& tensor : args.tensors) {
      for (int d = 0; d < dims.rank(); ++d) take(tensor.spec->axes(d));
    }
  }
  RuleResult result = infer_replicated(args);
  for (Layout& input : result.inputs) input.dims[static_cast<size_t>(lead)] = axes;
  for (Layout& output : result.outputs) output.dims[0] = axes;
  return result;
}

}  // namespace

void register_dynamic_rules() {
  register_rule("RowMajorInferSpmd", row_major);
  register_rule("UniqueInferSpmd", infer_replicated);  // equal elements may be anywhere
}

}  // namespace shard::spmd
