// Rules of optimiser steps and of loss scaling that an expression cannot state.
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// All states are sharded like the parameter; the kernel adds up norms over the axes that shard it.
RuleResult lamb(const RuleArgs& args) {
  Notation n;
  const std::vector<int> like_param = fresh_letters(n, args.tensors[0].meta.dims, Letter::Role::collective);
  const auto letters_of = [&](bool is_state, const Meta& meta) {
    return is_state ? like_param : std::vector<int>(static_cast<size_t>(meta.dims.rank()), kNoLetter);
  };
  const auto has = [](std::initializer_list<size_t> slots, size_t slot) {
    return std::find(slots.begin(), slots.end(), slot) != slots.end();
  };
  // param, grad, moment1, moment2 and master_param; the others are numbers.
  for (size_t slot = 0; slot < args.tensors.size(); ++slot) {
    const TensorArg& tensor = args.tensors[slot];
    n.inputs.push_back(tensor.spec == nullptr ? std::vector<int>()
                                              : letters_of(has({0, 1, 3, 4, 7}, slot), tensor.meta));
  }
  for (size_t slot = 0; slot < args.outputs.size(); ++slot) {
    n.outputs.push_back(is_absent_output(args, slot) ? std::vector<int>()
                                                     : letters_of(has({0, 1, 2, 5}, slot), args.outputs[slot]));
  }
  return solve(args, n);
}

/// Each tensor of the list keeps its own layout, but for pending reductions; numbers are replicated.
RuleResult update_loss_scaling(const RuleArgs& args) {
  RuleResult result = infer_replicated(args);
  const SlotRange x = args.slots[0], out = args.output_slots[0];
  for (size_t i = 0; i < x.count; ++i) {
    const DistSpec* spec = args.wanted.empty() ? args.tensors[x.first + i].spec : args.wanted[out.first + i];
    if (spec == nullptr) continue;
    Layout layout = spec->layout();
    layout.partial = {};
    result.inputs[x.first + i] = result.outputs[out.first + i] = layout;
  }
  return result;
}

/// As update_loss_scaling; the kernel combines what the ranks found over all axes that shard a tensor.
RuleResult check_finite_and_unscale(const RuleArgs& args) {
  RuleResult result = update_loss_scaling(args);
  for (int axis = 0; axis < args.mesh->rank(); ++axis) {
    const auto shards = [&](const Layout& layout) { return layout.dim_of(axis) >= 0; };
    if (std::any_of(result.inputs.begin(), result.inputs.end(), shards)) result.reduce_axes.push_back(axis);
  }
  return result;
}

/// Each parameter of a list keeps its own layout, but for pending reductions, and its states follow it. Inputs and
/// outputs of the slots in `numbers` and `number_outputs` are numbers, which are replicated.
RuleResult merged(const RuleArgs& args, std::initializer_list<size_t> numbers,
                  std::initializer_list<size_t> number_outputs) {
  RuleResult result = infer_replicated(args);
  const auto has = [](std::initializer_list<size_t> slots, size_t slot) {
    return std::find(slots.begin(), slots.end(), slot) != slots.end();
  };
  const SlotRange param = args.slots[0], param_out = args.output_slots[0];
  for (size_t i = 0; i < param.count; ++i) {
    const DistSpec* spec = args.wanted.empty() ? args.tensors[param.first + i].spec : args.wanted[param_out.first + i];
    if (spec == nullptr) continue;
    Layout layout = spec->layout();
    layout.partial = {};
    for (size_t slot = 0; slot < args.slots.size(); ++slot) {
      if (!has(numbers, slot) && i < args.slots[slot].count) result.inputs[args.slots[slot].first + i] = layout;
    }
    for (size_t slot = 0; slot < args.output_slots.size(); ++slot) {
      const SlotRange out = args.output_slots[slot];
      if (!has(number_outputs, slot) && i < out.count) result.outputs[out.first + i] = layout;
    }
  }
  return result;
}

}  // namespace

void register_optim_rules() {
  register_rule("MergedMomentumInferSpmd", [](const RuleArgs& args) { return merged(args, {3}, {}); });
  register_rule("MergedAdamInferSpmd", [](const RuleArgs& args) { return merged(args, {2, 5, 6}, {3, 4}); });
  register_rule("FusedAdamInferSpmd", [](const RuleArgs& args) { return merged(args, {2, 5, 6, 8}, {3, 4}); });
  register_rule("LambInferSpmd", lamb);
  register_rule("UpdateLossScalingInferSpmd", update_loss_scaling);
  register_rule("CheckFiniteAndUnscaleInferSpmd", check_finite_and_unscale);
}

}  // namespace shard::spmd
