// infer_meta of attention and of rotary embeddings. Other layers are in nn.cc.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

void check_four_dims(const OpContext& ctx, std::string_view name, const Meta& x, std::string_view dims) {
  if (x.dims.rank() == 4) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have the four dims {}", ctx.op, name, to_string(x), dims);
}

constexpr std::string_view kBatchFirst = "[batch, sequence, heads, width]";

/// Checks q, k and v, which are in the first three slots.
void check_qkv(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v) {
  check_floating(ctx, "q", q);
  check_same_dtype(ctx, "q", q, "k", k);
  check_same_dtype(ctx, "q", q, "v", v);
  check_four_dims(ctx, "q", q, kBatchFirst);
  check_four_dims(ctx, "k", k, kBatchFirst);
  check_four_dims(ctx, "v", v, kBatchFirst);
  const Dims &gq = global_dims(ctx, 0, q), &gk = global_dims(ctx, 1, k), &gv = global_dims(ctx, 2, v);
  const bool alike = gq[0] == gk[0] && gq[3] == gk[3] && gk[0] == gv[0] && gk[1] == gv[1] && gk[2] == gv[2];
  if (!alike || (gk[2] == 0 ? gq[2] != 0 : gq[2] % gk[2] != 0)) {
    fail(ErrorCode::shape_mismatch,
         "[{}] q is {}, k {} and v {}; all need one batch, q and k one width, k and v one sequence and as many heads, "
         "which divide those of q",
         ctx.op, to_string(q), to_string(k), to_string(v));
  }
}

/// Checks the mask in slot `slot`; q and k are in the slots 0 and 1.
void check_mask(const OpContext& ctx, size_t slot, const Meta& mask, const Meta& q, const Meta& k) {
  check_same_dtype(ctx, "q", q, "attn_mask", mask);
  const Dims &dims = global_dims(ctx, slot, mask), &q_dims = global_dims(ctx, 0, q), &k_dims = global_dims(ctx, 1, k);
  const Dims expected{q_dims[0], q_dims[2], q_dims[1], k_dims[1]};
  bool fits = dims.rank() == 4 && dims[3] == expected[3];
  for (int d = 0; fits && d < 3; ++d) fits = dims[d] == 1 || dims[d] == expected[d];
  if (fits) return;
  fail(ErrorCode::shape_mismatch, "[{}] attn_mask is {}, but must be {}, with a 1 for any of the first three", ctx.op,
       to_string(mask), to_string(expected));
}

/// The arguments of a rotation, forward or backward: rotated tensors in slots from `first` on,
/// tables and positions in slots from `first_table` on.
struct RopeArgs {
  const Meta* x[3];
  std::string_view names[3];
  size_t first;
  const Meta *sin, *cos, *position_ids;
  size_t first_table;
};

/// A table of sines or cosines: [positions, width] or [1, positions, 1, width]. Returns the number
/// of positions.
int64_t check_table(const OpContext& ctx, size_t slot, std::string_view name, const Meta& table, const RopeArgs& args) {
  const Meta& q = *args.x[0];
  check_floating(ctx, name, table);
  const Dims& dims = global_dims(ctx, slot, table);
  const int64_t width = q.dims[3];
  if (dims.rank() == 2 && dims[1] == width) return dims[0];
  if (dims.rank() == 4 && dims[0] == 1 && dims[2] == 1 && dims[3] == width) return dims[1];
  fail(ErrorCode::shape_mismatch,
       "[{}] {} is {}, but for {}, which is {}, must be [positions, {}] or [1, positions, 1, {}]", ctx.op, name,
       to_string(table), args.names[0], to_string(q), width, width);
}

void check_like_q(const OpContext& ctx, std::string_view name, const Meta& x, std::string_view q_name, const Meta& q) {
  check_same_dtype(ctx, q_name, q, name, x);
  check_four_dims(ctx, name, x, kBatchFirst);
  Dims expected = q.dims;
  expected[2] = x.dims[2];
  if (x.dims == expected) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {} and {} is {}, which may differ only in their heads, dim 2", ctx.op,
       q_name, to_string(q), name, to_string(x));
}

void check_rope(const OpContext& ctx, const RopeArgs& args, bool time_major) {
  const Meta &q = *args.x[0], *sin = args.sin, *cos = args.cos, *position_ids = args.position_ids;
  const std::string_view q_name = args.names[0];
  check_floating(ctx, q_name, q);
  check_four_dims(ctx, q_name, q, time_major ? "[sequence, batch, heads, width]" : kBatchFirst);
  for (int i = 1; i < 3; ++i) {
    if (args.x[i] != nullptr) check_like_q(ctx, args.names[i], *args.x[i], q_name, q);
  }
  if (q.dims[3] % 2 != 0) {
    fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but its width, dim 3, must be even: elements are rotated in pairs",
         ctx.op, q_name, to_string(q));
  }
  if ((sin == nullptr) != (cos == nullptr))
    fail(ErrorCode::undefined, "[{}] only one of sin and cos is passed; pass both or none", ctx.op);
  const Dims& global = global_dims(ctx, args.first, q);
  const int64_t batch = global[time_major ? 1 : 0], sequence = global[time_major ? 0 : 1];
  const size_t sin_slot = args.first_table, cos_slot = sin_slot + 1, ids_slot = sin_slot + 2;
  if (sin != nullptr) {
    const int64_t positions = check_table(ctx, sin_slot, "sin", *sin, args);
    const bool equal = check_table(ctx, cos_slot, "cos", *cos, args) == positions &&
                       global_dims(ctx, sin_slot, *sin).rank() == global_dims(ctx, cos_slot, *cos).rank();
    if (!equal || (position_ids == nullptr && positions != sequence)) {
      fail(ErrorCode::shape_mismatch,
           "[{}] sin is {} and cos {}, but must agree, and without position_ids have the {} positions of {}, which is "
           "{}",
           ctx.op, to_string(*sin), to_string(*cos), sequence, q_name, to_string(q));
    }
  }
  if (position_ids != nullptr && !(Meta{global_dims(ctx, ids_slot, *position_ids), position_ids->dtype} ==
                                   Meta{{batch, sequence}, DType::int64})) {
    fail(ErrorCode::shape_mismatch, "[{}] position_ids is {}, but for {}, which is {}, must be i64[{}, {}]", ctx.op,
         to_string(*position_ids), q_name, to_string(q), batch, sequence);
  }
}

}  // namespace

void FlashAttnInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v,
                        const Meta* fixed_seed_offset, const Meta* attn_mask, float dropout, bool return_softmax,
                        Meta& out, Meta& softmax, Meta& softmax_lse, Meta& seed_offset) {
  check_qkv(ctx, q, k, v);
  if (!(dropout >= 0 && dropout < 1)) {
    fail(ErrorCode::invalid_argument, "[{}] dropout is {}, but must be from 0 to below 1", ctx.op, dropout);
  }
  if (fixed_seed_offset != nullptr && !(*fixed_seed_offset == Meta{{2}, DType::int64})) {
    fail(ErrorCode::shape_mismatch, "[{}] fixed_seed_offset is {}, but must be i64[2]: a seed and an offset", ctx.op,
         to_string(*fixed_seed_offset));
  }
  if (attn_mask != nullptr) check_mask(ctx, 4, *attn_mask, q, k);
  out = {Dims{q.dims[0], q.dims[1], q.dims[2], v.dims[3]}, q.dtype};
  softmax = {return_softmax ? Dims{q.dims[0], q.dims[2], q.dims[1], k.dims[1]} : Dims{0}, q.dtype};
  softmax_lse = {Dims{q.dims[0], q.dims[2], q.dims[1]}, statistics_dtype(q.dtype)};
  seed_offset = {Dims{2}, DType::int64};
  check_size(ctx, softmax.dims, softmax.dtype);
}

void FlashAttnGradInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v, const Meta& out,
                            const Meta& softmax_lse, const Meta& seed_offset, const Meta* attn_mask,
                            const Meta& out_grad, Meta& q_grad, Meta& k_grad, Meta& v_grad) {
  check_qkv(ctx, q, k, v);
  if (attn_mask != nullptr) check_mask(ctx, 6, *attn_mask, q, k);
  const Meta result = {Dims{q.dims[0], q.dims[1], q.dims[2], v.dims[3]}, q.dtype};
  check_like_forward(ctx, "out", out, result);
  check_like_forward(ctx, "softmax_lse", softmax_lse,
                     {Dims{q.dims[0], q.dims[2], q.dims[1]}, statistics_dtype(q.dtype)});
  check_like_forward(ctx, "seed_offset", seed_offset, {Dims{2}, DType::int64});
  check_like_forward(ctx, "out_grad", out_grad, result);
  q_grad = q;
  k_grad = k;
  v_grad = v;
}

void FusedRopeInferMeta(const OpContext& ctx, const Meta& q, const Meta* k, const Meta* v, const Meta* sin,
                        const Meta* cos, const Meta* position_ids, bool time_major, Meta& out_q, Meta& out_k,
                        Meta& out_v) {
  check_rope(ctx, {{&q, k, v}, {"q", "k", "v"}, 0, sin, cos, position_ids, 3}, time_major);
  out_q = q;
  if (k != nullptr) out_k = *k;
  if (v != nullptr) out_v = *v;
}

void FusedRopeGradInferMeta(const OpContext& ctx, const Meta* sin, const Meta* cos, const Meta* position_ids,
                            const Meta& out_q_grad, const Meta* out_k_grad, const Meta* out_v_grad, bool time_major,
                            Meta& q_grad, Meta& k_grad, Meta& v_grad) {
  check_rope(
      ctx,
      {{&out_q_grad, out_k_grad, out_v_grad}, {"out_q_grad", "out_k_grad", "out_v_grad"}, 3, sin, cos, position_ids, 0},
      time_major);
  q_grad = out_q_grad;
  if (out_k_grad != nullptr) k_grad = *out_k_grad;
  if (out_v_grad != nullptr) v_grad = *out_v_grad;
}

}  // namespace shard::meta
