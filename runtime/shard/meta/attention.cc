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

constexpr std::string_view kPackedRows = "[rows, heads, width]";

/// The names of the first three arguments.
struct QkvNames {
  std::string_view q = "q", k = "k", v = "v";
};

void check_dims(const OpContext& ctx, std::string_view name, const Meta& x, int rank) {
  if (rank == 4) return check_four_dims(ctx, name, x, kBatchFirst);
  if (x.dims.rank() == rank) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have the three dims {}", ctx.op, name, to_string(x),
       kPackedRows);
}

/// Checks q, k and v, which are in the first three slots: [sequence, heads, width] after the batch, if there are four
/// dims.
void check_qkv(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v, const QkvNames& names = {},
               int rank = 4) {
  check_floating(ctx, names.q, q);
  check_same_dtype(ctx, names.q, q, names.k, k);
  check_same_dtype(ctx, names.q, q, names.v, v);
  check_dims(ctx, names.q, q, rank);
  check_dims(ctx, names.k, k, rank);
  check_dims(ctx, names.v, v, rank);
  const Dims &gq = global_dims(ctx, 0, q), &gk = global_dims(ctx, 1, k), &gv = global_dims(ctx, 2, v);
  bool alike = gq[rank - 1] == gk[rank - 1] && (rank == 3 || gq[0] == gk[0]);
  for (int d = 0; d < rank - 1; ++d) alike = alike && gk[d] == gv[d];
  const int64_t heads = gq[rank - 2], kv_heads = gk[rank - 2];
  if (alike && (kv_heads == 0 ? heads == 0 : heads % kv_heads == 0)) return;
  fail(
      ErrorCode::shape_mismatch,
      "[{}] {} is {}, {} {} and {} {}; all need {}{} and {} one width, {} and {} one sequence and as many heads, which "
      "divide those of {}",
      ctx.op, names.q, to_string(q), names.k, to_string(k), names.v, to_string(v), rank == 4 ? "one batch, " : "",
      names.q, names.k, names.k, names.v, names.q);
}

/// Checks a mask in slot `slot`, which is added to scores of the shape `expected`.
void check_mask(const OpContext& ctx, size_t slot, const Meta& mask, const Meta& q, const Dims& expected,
                std::string_view name = "attn_mask", std::string_view q_name = "q") {
  check_same_dtype(ctx, q_name, q, name, mask);
  const Dims& dims = global_dims(ctx, slot, mask);
  bool fits = dims.rank() == 4 && dims[3] == expected[3];
  for (int d = 0; fits && d < 3; ++d) fits = dims[d] == 1 || dims[d] == expected[d];
  if (fits) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must be {}, with a 1 for any of the first three", ctx.op, name,
       to_string(mask), to_string(expected));
}

/// The shape of the scores of q and k [batch, sequence, heads, width].
Dims scores_dims(const OpContext& ctx, const Meta& q, const Meta& k) {
  const Dims &q_dims = global_dims(ctx, 0, q), &k_dims = global_dims(ctx, 1, k);
  return {q_dims[0], q_dims[2], q_dims[1], k_dims[1]};
}

void check_dropout(const OpContext& ctx, std::string_view name, double dropout) {
  if (dropout >= 0 && dropout < 1) return;
  fail(ErrorCode::invalid_argument, "[{}] {} is {}, but must be from 0 to below 1", ctx.op, name, dropout);
}

void check_key(const OpContext& ctx, const Meta* fixed_seed_offset) {
  if (fixed_seed_offset == nullptr || *fixed_seed_offset == Meta{{2}, DType::int64}) return;
  fail(ErrorCode::shape_mismatch, "[{}] fixed_seed_offset is {}, but must be i64[2]: a seed and an offset", ctx.op,
       to_string(*fixed_seed_offset));
}

/// Checks the offsets of packed sequences and returns the number of these.
int64_t check_offsets(const OpContext& ctx, const Meta& cu_seqlens_q, const Meta& cu_seqlens_k) {
  const Dims &q = cu_seqlens_q.dims, &k = cu_seqlens_k.dims;  // never sharded
  const bool whole = cu_seqlens_q.dtype == DType::int32 && cu_seqlens_k.dtype == DType::int32;
  if (whole && q.rank() == 1 && q == k && q[0] > 0) return q[0] - 1;
  fail(whole ? ErrorCode::shape_mismatch : ErrorCode::dtype_mismatch,
       "[{}] cu_seqlens_q is {} and cu_seqlens_k {}, but both must be i32[sequences + 1]: where sequences begin, and "
       "the end of the last one",
       ctx.op, to_string(cu_seqlens_q), to_string(cu_seqlens_k));
}

/// Checks the arguments that flash_attn_unpadded and its gradient have; the mask is in slot `mask_slot`. Returns the
/// number of sequences.
int64_t check_packed(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v, const Meta& cu_seqlens_q,
                     const Meta& cu_seqlens_k, size_t mask_slot, const Meta* attn_mask, int64_t max_seqlen_q,
                     int64_t max_seqlen_k) {
  check_qkv(ctx, q, k, v, {}, 3);
  const int64_t sequences = check_offsets(ctx, cu_seqlens_q, cu_seqlens_k);
  const Dims scores{sequences, global_dims(ctx, 0, q)[1], max_seqlen_q, max_seqlen_k};
  check_size(ctx, Dims{max_seqlen_q}, q.dtype);
  check_size(ctx, Dims{max_seqlen_k}, q.dtype);
  if (attn_mask != nullptr) check_mask(ctx, mask_slot, *attn_mask, q, scores);
  return sequences;
}

/// The arguments of memory_efficient_attention, and of its gradient, in the same slots.
struct Selected {
  const Meta &q, &k, &v;
  const Meta *bias, *cu_seqlens_q, *cu_seqlens_k, *causal_diagonal, *seqlen_k;
  const Scalar &max_seqlen_q, &max_seqlen_k;
  bool causal;
};

/// Checks them and returns the shape of logsumexp.
Dims check_selected(const OpContext& ctx, const Selected& args) {
  const Meta &q = args.q, &k = args.k;
  check_qkv(ctx, q, k, args.v, {"query", "key", "value"});
  const int64_t longest_q = integer(ctx, "max_seqlen_q", args.max_seqlen_q),
                longest_k = integer(ctx, "max_seqlen_k", args.max_seqlen_k);
  if ((args.cu_seqlens_q == nullptr) != (args.cu_seqlens_k == nullptr))
    fail(ErrorCode::undefined, "[{}] only one of cu_seqlens_q and cu_seqlens_k is passed; pass both or none", ctx.op);
  const bool packed = args.cu_seqlens_q != nullptr;
  int64_t sequences = global_dims(ctx, 0, q)[0];
  Dims sums{q.dims[0], q.dims[2], q.dims[1]};
  if (packed) {
    if (sequences != 1) {
      fail(ErrorCode::shape_mismatch, "[{}] query is {}, but sequences are packed in a batch of 1; reshape it", ctx.op,
           to_string(q));
    }
    if (args.bias != nullptr) {
      fail(ErrorCode::invalid_argument,
           "[{}] bias is passed with cu_seqlens_q, but a bias of packed sequences is not supported; call "
           "flash_attn_unpadded with attn_mask",
           ctx.op);
    }
    sequences = check_offsets(ctx, *args.cu_seqlens_q, *args.cu_seqlens_k);
    check_size(ctx, Dims{longest_q}, q.dtype);
    check_size(ctx, Dims{longest_k}, q.dtype);
    sums = {sequences, q.dims[2], longest_q};
  }
  if (args.causal_diagonal != nullptr && !args.causal)
    fail(ErrorCode::invalid_argument, "[{}] causal_diagonal has an effect only with causal; pass both", ctx.op);
  const auto check_each = [&](size_t slot, std::string_view name, const Meta* x) {
    if (x == nullptr || Meta{global_dims(ctx, slot, *x), x->dtype} == Meta{{sequences}, DType::int32}) return;
    fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must be i32[{}]: one for each {}", ctx.op, name, to_string(*x),
         sequences, packed ? "sequence" : "batch");
  };
  check_each(6, "causal_diagonal", args.causal_diagonal);
  check_each(7, "seqlen_k", args.seqlen_k);
  if (args.bias == nullptr) return sums;
  const Dims scores = scores_dims(ctx, q, k);
  const bool two_dims = args.bias->dtype == q.dtype && global_dims(ctx, 3, *args.bias) == Dims{scores[2], scores[3]};
  if (!two_dims) check_mask(ctx, 3, *args.bias, q, scores, "bias", "query");
  return sums;
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
  check_dropout(ctx, "dropout", dropout);
  check_key(ctx, fixed_seed_offset);
  if (attn_mask != nullptr) check_mask(ctx, 4, *attn_mask, q, scores_dims(ctx, q, k));
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
  if (attn_mask != nullptr) check_mask(ctx, 6, *attn_mask, q, scores_dims(ctx, q, k));
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

void FlashAttnUnpaddedInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v,
                                const Meta& cu_seqlens_q, const Meta& cu_seqlens_k, const Meta* fixed_seed_offset,
                                const Meta* attn_mask, int64_t max_seqlen_q, int64_t max_seqlen_k, float dropout,
                                bool return_softmax, Meta& out, Meta& softmax, Meta& softmax_lse, Meta& seed_offset) {
  const int64_t sequences =
      check_packed(ctx, q, k, v, cu_seqlens_q, cu_seqlens_k, 6, attn_mask, max_seqlen_q, max_seqlen_k);
  check_dropout(ctx, "dropout", dropout);
  check_key(ctx, fixed_seed_offset);
  out = {Dims{q.dims[0], q.dims[1], v.dims[2]}, q.dtype};
  softmax = {return_softmax ? Dims{sequences, q.dims[1], max_seqlen_q, max_seqlen_k} : Dims{0}, q.dtype};
  softmax_lse = {Dims{sequences, q.dims[1], max_seqlen_q}, statistics_dtype(q.dtype)};
  seed_offset = {Dims{2}, DType::int64};
  check_size(ctx, softmax.dims, softmax.dtype);
  check_size(ctx, softmax_lse.dims, softmax_lse.dtype);
}

void FlashAttnUnpaddedGradInferMeta(const OpContext& ctx, const Meta& q, const Meta& k, const Meta& v,
                                    const Meta& cu_seqlens_q, const Meta& cu_seqlens_k, const Meta& out,
                                    const Meta& softmax_lse, const Meta& seed_offset, const Meta* attn_mask,
                                    const Meta& out_grad, int64_t max_seqlen_q, int64_t max_seqlen_k, Meta& q_grad,
                                    Meta& k_grad, Meta& v_grad) {
  const int64_t sequences =
      check_packed(ctx, q, k, v, cu_seqlens_q, cu_seqlens_k, 8, attn_mask, max_seqlen_q, max_seqlen_k);
  const Meta result = {Dims{q.dims[0], q.dims[1], v.dims[2]}, q.dtype};
  check_like_forward(ctx, "out", out, result);
  check_like_forward(ctx, "softmax_lse", softmax_lse,
                     {Dims{sequences, q.dims[1], max_seqlen_q}, statistics_dtype(q.dtype)});
  check_like_forward(ctx, "seed_offset", seed_offset, {Dims{2}, DType::int64});
  check_like_forward(ctx, "out_grad", out_grad, result);
  q_grad = q;
  k_grad = k;
  v_grad = v;
}

void MemoryEfficientAttentionInferMeta(const OpContext& ctx, const Meta& query, const Meta& key, const Meta& value,
                                       const Meta* bias, const Meta* cu_seqlens_q, const Meta* cu_seqlens_k,
                                       const Meta* causal_diagonal, const Meta* seqlen_k, const Scalar& max_seqlen_q,
                                       const Scalar& max_seqlen_k, bool causal, double dropout_p, Meta& output,
                                       Meta& logsumexp, Meta& seed_and_offset) {
  const Dims sums = check_selected(ctx, {query, key, value, bias, cu_seqlens_q, cu_seqlens_k, causal_diagonal, seqlen_k,
                                         max_seqlen_q, max_seqlen_k, causal});
  check_dropout(ctx, "dropout_p", dropout_p);
  output = {Dims{query.dims[0], query.dims[1], query.dims[2], value.dims[3]}, query.dtype};
  logsumexp = {sums, statistics_dtype(query.dtype)};
  seed_and_offset = {Dims{2}, DType::int64};
  check_size(ctx, sums, logsumexp.dtype);
}

void MemoryEfficientAttentionGradInferMeta(const OpContext& ctx, const Meta& query, const Meta& key, const Meta& value,
                                           const Meta* bias, const Meta* cu_seqlens_q, const Meta* cu_seqlens_k,
                                           const Meta* causal_diagonal, const Meta* seqlen_k, const Meta& output,
                                           const Meta& logsumexp, const Meta& seed_and_offset, const Meta& output_grad,
                                           const Scalar& max_seqlen_q, const Scalar& max_seqlen_k, bool causal,
                                           double dropout_p, Meta& query_grad, Meta& key_grad, Meta& value_grad,
                                           Meta& bias_grad) {
  const Dims sums = check_selected(ctx, {query, key, value, bias, cu_seqlens_q, cu_seqlens_k, causal_diagonal, seqlen_k,
                                         max_seqlen_q, max_seqlen_k, causal});
  check_dropout(ctx, "dropout_p", dropout_p);
  const Meta result = {Dims{query.dims[0], query.dims[1], query.dims[2], value.dims[3]}, query.dtype};
  check_like_forward(ctx, "output", output, result);
  check_like_forward(ctx, "logsumexp", logsumexp, {sums, statistics_dtype(query.dtype)});
  check_like_forward(ctx, "seed_and_offset", seed_and_offset, {Dims{2}, DType::int64});
  check_like_forward(ctx, "output_grad", output_grad, result);
  query_grad = query;
  key_grad = key;
  value_grad = value;
  if (bias != nullptr) bias_grad = *bias;
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
