// infer_meta functions and the placement rule of the ops in forms.yaml.
#include "form_testing.h"
#include "forms_ops.h"
#include "shard/spmd/rule.h"

namespace shard::meta {
namespace {

void check_alike(const OpContext& ctx, const Meta& x, const Meta& y) {
  if (x.dims == y.dims) return;
  fail(ErrorCode::shape_mismatch, "[{}] shapes differ: {} and {}", ctx.op, to_string(x), to_string(y));
}

void check_counts(const OpContext& ctx, size_t x, size_t y) {
  if (x != 0 && x == y) return;
  fail(ErrorCode::invalid_argument, "[{}] lists of {} and {} tensors; they must be equally long and not empty", ctx.op,
       x, y);
}

}  // namespace

void ListSgdInferMeta(const OpContext& ctx, std::span<const Meta> params, const Meta&, std::span<const Meta> grads,
                      std::span<const Meta> masters, std::vector<Meta>& params_out, std::vector<Meta>& masters_out) {
  ++test::inferences;
  check_counts(ctx, params.size(), grads.size());
  if (!masters.empty()) check_counts(ctx, params.size(), masters.size());
  for (size_t k = 0; k < params.size(); ++k) check_alike(ctx, params[k], grads[k]);
  params_out.assign(params.begin(), params.end());
  masters_out.assign(masters.begin(), masters.end());
}

void ListAxpyInferMeta(const OpContext& ctx, std::span<const Meta> x, std::span<const Meta> y, std::vector<Meta>& out) {
  ++test::inferences;
  check_counts(ctx, x.size(), y.size());
  for (size_t k = 0; k < x.size(); ++k) check_alike(ctx, x[k], y[k]);
  out.assign(x.begin(), x.end());
}

void ListFlipInferMeta(const OpContext& ctx, std::span<const Meta> x, std::vector<Meta>& out) {
  check_counts(ctx, x.size(), x.size());
  out.assign(x.begin(), x.end());
}

void ListWidenInferMeta(const OpContext& ctx, std::span<const Meta> x, std::vector<Meta>& out) {
  check_counts(ctx, x.size(), x.size());
  for (const Meta& each : x) out.push_back({each.dims, DType::float64});
}

void ListBreakInferMeta(const OpContext& ctx, std::span<const Meta> x, std::vector<Meta>& out) {
  ListFlipInferMeta(ctx, x, out);
}

void StepAndDeltaInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out, Meta& delta) {
  ++test::inferences;
  check_alike(ctx, x, y);
  out = delta = x;
}

void StepAndPartsInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> y, std::vector<Meta>& parts,
                           Meta& out, Meta& total) {
  ++test::inferences;
  for (const Meta& each : y) check_alike(ctx, x, each);
  parts.assign(y.begin(), y.end());
  out = total = x;
}

void TrackInferMeta(const OpContext& ctx, const Meta& x, const Meta* state, const Meta& y, Meta& out, Meta& state_out,
                    Meta& seen) {
  if (state != nullptr) check_alike(ctx, x, *state);
  check_alike(ctx, x, y);
  out = state_out = seen = x;
}

void AddIntoInferMeta(const OpContext& ctx, const Meta& x, const Meta* sum, Meta& out, Meta& sum_out) {
  if (sum != nullptr) check_alike(ctx, x, *sum);
  out = x;
  if (sum != nullptr) sum_out = *sum;
}

void AddExtrasInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> extras, Meta& out) {
  for (const Meta& each : extras) check_alike(ctx, x, each);
  out = x;
}

void AddCastInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out) {
  check_alike(ctx, x, y);
  out = x;
}

void TwoViewsInferMeta(const OpContext&, const Meta& x, const Meta* y, Meta& a, Meta& b) {
  a = x;
  if (y != nullptr) b = *y;
}

void LikeInferMeta(const OpContext&, const Meta& x, std::optional<DType> dtype, Meta& out) {
  out = {x.dims, dtype.value_or(x.dtype)};
}

void NumberLikeInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out) {
  check_alike(ctx, x, y);
  out = x;
}

void ConstantsInferMeta(const OpContext&, const Meta& x, int64_t, float, double, bool, const char*, DType,
                        const IntArray&, Meta& out) {
  out = x;
}

void JitterInferMeta(const OpContext& ctx, const Meta& x, float scale, Meta& out) {
  if (scale < 0) fail(ErrorCode::invalid_argument, "[{}] scale is {}, but must not be negative", ctx.op, scale);
  out = x;
}

void RampInferMeta(const OpContext&, int64_t count, DType dtype, Meta& out) { out = {{count}, dtype}; }
void AllTypesInferMeta(const OpContext&, const Meta& x, Meta& out) { out = x; }
void MistypedInferMeta(const OpContext&, const Meta& x, int64_t, Meta& out) { out = x; }
void SameInferMeta(const OpContext&, const Meta& x, Meta& out) { out = x; }

}  // namespace shard::meta

namespace shard::test {

thread_local int inferences = 0;

namespace {

/// Every tensor of an element has the layout of its parameter, whatever the other elements are; pending reductions
/// are done first.
spmd::RuleResult list_sgd(const spmd::RuleArgs& args) {
  spmd::RuleResult result;
  result.inputs.resize(args.tensors.size());
  result.outputs.resize(args.outputs.size());
  const auto place = [&](size_t input_slot, size_t k, const Layout& layout) {
    const SlotRange& slot = args.slots[input_slot];
    if (k < slot.count) result.inputs[slot.first + k] = layout;
  };
  for (size_t k = 0; k < args.slots[0].count; ++k) {
    Layout layout = args.tensors[args.slots[0].first + k].spec->layout();
    for (auto& pending : layout.partial) pending.reset();
    for (const size_t slot : {0, 2, 3}) place(slot, k, layout);
    for (const SlotRange& slot : args.output_slots) {
      if (k < slot.count) result.outputs[slot.first + k] = layout;
    }
  }
  place(1, 0, Layout(args.mesh, args.tensors[args.slots[1].first].meta.dims.rank()));
  return result;
}

}  // namespace

void register_form_rules() { spmd::register_rule("ListSgdInferSpmd", list_sgd); }

}  // namespace shard::test
