// infer_meta of attention and of what prepares its arguments. Other layers go to nn.cc.
#include "meta/check.h"
#include "meta/infer_meta.h"

namespace shard::meta {
namespace {

void check_four_dims(const OpContext& ctx, std::string_view name, const Meta& x, std::string_view dims) {
  if (x.dims.rank() == 4) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have the four dims {}", ctx.op, name, to_string(x), dims);
}

constexpr std::string_view kBatchFirst = "[batch, sequence, heads, width]";

void check_mask(const OpContext& ctx, const Meta& mask, const Meta& q, const Dims& q_dims, const Dims& k_dims) {
  check_same_dtype(ctx, "q", q, "attn_mask", mask);
  const Dims& dims = global_dims(ctx, 4, mask);
  const Dims expected{q_dims[0], q_dims[2], q_dims[1], k_dims[1]};
  bool fits = dims.rank() == 4 && dims[3] == expected[3];
  for (int d = 0; fits && d < 3; ++d) fits = dims[d] == 1 || dims[d] == expected[d];
  if (fits) return;
  fail(ErrorCode::shape_mismatch, "[{}] attn_mask is {}, but must be {}, with a 1 for any of the first three", ctx.op, to_string(mask),
       to_string(expected));
}

/// A table of sines or cosines: [positions, width] or [1, positions, 1, width]. Gives the number of positions.
int64_t check_table(const OpContext& ctx, size_t slot, std::string_view name, const Meta& table, const Meta& q) {
  check_floating(ctx, name, table);
  const Dims& dims = global_dims(ctx, slot, table);
  const int64_t width = q.dims[3];
  if (dims.rank() == 2 && dims[1] == width) return dims[0];
  if (dims.rank() == 4 && dims[0] == 1 && dims[2] == 1 && dims[3] == width) return dims[1];
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but for q, which is {}, must be [positions, {}] or [1, positions, 1, {}]", ctx.op, name,
       to_string(table), to_string(q), width, width);
}

void check_like_q(const OpContext& ctx, std::string_view name, const Meta* x, const Meta& q) {
  if (x == nullptr) return;
  check_same_dtype(ctx, "q", q, name, *x);
  check_four_dims(ctx, name, *x, kBatchFirst);
  Dims expected = q.dims;
  expected[2] = x->dims[2];
  if (x->dims == expected) return;
  fail(ErrorCode::shape_mismatch, "[{}] q is {} and {} is {}, which may differ only in their heads, dim 2", ctx.op, to_string(q), name, to_string(*x));
}

}  // namespace

void FlashAttnInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v, const Meta* fixed_seed_offset, const Meta* attn_mask,
                        float dropout, bool return_softmax, Meta& out, Meta& softmax, Meta& softmax_lse, Meta& seed_offset) {
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
         "[{}] q is {}, k {} and v {}; all need one batch, q and k one width, k and v one sequence and as many heads, which divide those of q", ctx.op,
         to_string(q), to_string(k), to_string(v));
  }
  if (!(dropout >= 0 && dropout < 1)) {
    fail(ErrorCode::invalid_argument, "[{}] dropout is {}, but must be from 0 to below 1", ctx.op, dropout);
  }
  if (fixed_seed_offset != nullptr && !(*fixed_seed_offset == Meta{{2}, DType::int64})) {
    fail(ErrorCode::shape_mismatch, "[{}] fixed_seed_offset is {}, but must be i64[2]: a seed and an offset", ctx.op, to_string(*fixed_seed_offset));
  }
  if (attn_mask != nullptr) check_mask(ctx, *attn_mask, q, gq, gk);
  out = {Dims{q.dims[0], q.dims[1], q.dims[2], v.dims[3]}, q.dtype};
  softmax = {return_softmax ? Dims{q.dims[0], q.dims[2], q.dims[1], k.dims[1]} : Dims{0}, q.dtype};
  softmax_lse = {Dims{q.dims[0], q.dims[2], q.dims[1]}, statistics_dtype(q.dtype)};
  seed_offset = {Dims{2}, DType::int64};
  check_size(ctx, softmax.dims, softmax.dtype);
}

void FusedRopeInferMeta(const OpContext& ctx, const Meta& q, const Meta* k, const Meta* v, const Meta* sin, const Meta* cos, const Meta* position_ids,
                        bool time_major, Meta& out_q, Meta& out_k, Meta& out_v) {
  check_floating(ctx, "q", q);
  check_four_dims(ctx, "q", q, time_major ? "[sequence, batch, heads, width]" : kBatchFirst);
  check_like_q(ctx, "k", k, q);
  check_like_q(ctx, "v", v, q);
  if (q.dims[3] % 2 != 0) {
    fail(ErrorCode::shape_mismatch, "[{}] q is {}, but its width, dim 3, must be even: elements turn in pairs", ctx.op, to_string(q));
  }
  if ((sin == nullptr) != (cos == nullptr)) fail(ErrorCode::undefined, "[{}] only one of sin and cos is given; give both or none", ctx.op);
  const Dims& global = global_dims(ctx, 0, q);
  const int64_t batch = global[time_major ? 1 : 0], sequence = global[time_major ? 0 : 1];
  if (sin != nullptr) {
    const int64_t positions = check_table(ctx, 3, "sin", *sin, q);
    const bool equal = check_table(ctx, 4, "cos", *cos, q) == positions && global_dims(ctx, 3, *sin).rank() == global_dims(ctx, 4, *cos).rank();
    if (!equal || (position_ids == nullptr && positions != sequence)) {
      fail(ErrorCode::shape_mismatch, "[{}] sin is {} and cos {}, but must agree, and without position_ids have the {} positions of q, which is {}", ctx.op,
           to_string(*sin), to_string(*cos), sequence, to_string(q));
    }
  }
  if (position_ids != nullptr && !(Meta{global_dims(ctx, 5, *position_ids), position_ids->dtype} == Meta{{batch, sequence}, DType::int64})) {
    fail(ErrorCode::shape_mismatch, "[{}] position_ids is {}, but for q, which is {}, must be i64[{}, {}]", ctx.op, to_string(*position_ids), to_string(q),
         batch, sequence);
  }
  out_q = q;
  if (k != nullptr) out_k = *k;
  if (v != nullptr) out_v = *v;
}

}  // namespace shard::meta
