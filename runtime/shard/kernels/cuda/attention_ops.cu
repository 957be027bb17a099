// flash_attn, flash_attn_unpadded, memory_efficient_attention and their gradients on CUDA: what their arguments say of sequences.
#include <optional>

#include "shard/kernels/cuda/attention.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {
namespace {

/// A tensor of packed rows [rows, heads, width], if there is one, as one batch.
DenseTensor as_batch(const DenseTensor& x) {
  if (!x.defined()) return x;
  const Dims& d = x.dims();
  return x.reinterpret({Dims{1, d[0], d[1], d[2]}, x.dtype()});
}
Box as_batch(const Box& box) {
  return {{1, box.global[0], box.global[1], box.global[2]}, {0, box.begin[0], box.begin[1], box.begin[2]}};
}

/// The bias, if there is one, with four dims: one of two dims is that of all batches and heads.
DenseTensor wide_bias(const DenseTensor& bias) {
  if (!bias.defined() || bias.dims().rank() == 4) return bias;
  return bias.reinterpret({Dims{1, 1, bias.dims()[0], bias.dims()[1]}, bias.dtype()});
}

double scale_of(const DenseTensor& q, float scale) {
  return scale < 0 ? 1.0 / std::sqrt(static_cast<double>(q.dims()[3])) : static_cast<double>(scale);
}

__global__ void store_key_kernel(int64_t* to, DropoutKey key, bool drops) {
  const RandomKey used = drops ? key.get() : RandomKey{};
  to[0] = static_cast<int64_t>(used.seed);
  to[1] = static_cast<int64_t>(used.offset);
}

void store_key(const OpContext& ctx, const DropoutKey& key, bool drops, DenseTensor& to) {
  launch(ctx, store_key_kernel, 1, 1, elements<int64_t>(to), key, drops);
}

DropoutKey key_in(const DenseTensor& x) { return {elements<const int64_t>(x), {}}; }

/// Describes the offsets of packed sequences.
struct alignas(8) OffsetRange {
  const char *op, *name, *rows_name;
  int64_t rows;
  const char* longest_name;
  int64_t longest;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "{}",
               offset_text(op, name, position, value, rows_name, rows, longest_name, longest));
  }
};

/// Checks that offsets rise from 0 to the number of rows, in steps of at most the longest length.
class OffsetCheck : public DataCheck<OffsetRange> {
 public:
  explicit OffsetCheck(const OffsetRange& range) : DataCheck(range), rows_(range.rows), longest_(range.longest) {}

  /// Whether offset `s` of `count` + 1 is right; reports it where not.
  __device__ bool admits(const int32_t* offsets, int64_t s, int64_t count) const {
    const int64_t at = offsets[s], least = s == 0 ? 0 : offsets[s - 1];
    const int64_t most = s == 0 ? 0 : min(rows_, least + longest_);
    if (at >= least && at <= most && (s < count || at == rows_)) return true;
    report(s, at);
    return false;
  }

 private:
  int64_t rows_, longest_;
};

/// Describes the lengths of sequences of keys. A value has the number of keys that there are in its upper half.
struct alignas(8) KeyLengthRange {
  const char* op;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "{}",
               length_text(op, place, position, static_cast<int32_t>(value), value >> 32));
  }
};

class LengthCheck : public DataCheck<KeyLengthRange> {
 public:
  using DataCheck::DataCheck;

  /// Whether a length is from 0 to `most`; reports it where not.
  __device__ bool admits(int64_t s, int32_t length, int64_t most) const {
    if (length >= 0 && length <= most) return true;
    report(s, most << 32 | static_cast<uint32_t>(length));
    return false;
  }
};

/// The tensors that tell where sequences are, each of which may be absent, and what holds without them.
struct TableSource {
  const int32_t *q_offsets, *k_offsets, *diagonals, *lengths;
  int64_t count, queries, keys;  // of a batch
  int64_t diagonal;              // is added to those of the tensor
  bool last_sees_all;            // the last query sees all keys, whatever the diagonals are
  int64_t first_key, all_keys;   // of a batch, of which `keys` are here

  __device__ int64_t keys_of(int64_t s) const {
    return k_offsets == nullptr ? all_keys : k_offsets[s + 1] - k_offsets[s];
  }
  __device__ __forceinline__ Sequence at(int64_t s) const {
    Sequence found{s, 0, queries, 0, keys, diagonal};
    if (q_offsets != nullptr) {
      found = {0, q_offsets[s], q_offsets[s + 1] - q_offsets[s], k_offsets[s], keys_of(s), diagonal};
      if (last_sees_all) found.diagonal = found.keys - found.queries;
    }
    if (diagonals != nullptr) found.diagonal += diagonals[s];
    if (lengths == nullptr) return found;
    const int64_t here = lengths[s] - first_key;
    found.keys = here < 0 ? 0 : min(here, found.keys);
    return found;
  }
};

/// Makes the table, by one block. Where something is wrong, all sequences are empty.
__global__ void table_kernel(Sequence* table, TableSource from, OffsetCheck q, OffsetCheck k, LengthCheck lengths) {
  const int64_t first = threadIdx.x;
  bool is_wrong = false;
  for (int64_t s = first; from.q_offsets != nullptr && s <= from.count; s += kThreads)
    is_wrong = !q.admits(from.q_offsets, s, from.count) || is_wrong;
  is_wrong = __syncthreads_or(is_wrong);
  for (int64_t s = first; !is_wrong && from.k_offsets != nullptr && s <= from.count; s += kThreads)
    is_wrong = !k.admits(from.k_offsets, s, from.count) || is_wrong;
  is_wrong = __syncthreads_or(is_wrong);
  for (int64_t s = first; !is_wrong && from.lengths != nullptr && s < from.count; s += kThreads)
    is_wrong = !lengths.admits(s, from.lengths[s], from.keys_of(s)) || is_wrong;
  is_wrong = __syncthreads_or(is_wrong);
  for (int64_t s = first; s < from.count; s += kThreads) table[s] = is_wrong ? Sequence{} : from.at(s);
}

/// The names of offsets and of what they divide, and the tensors.
struct PackedArguments {
  const DenseTensor &q, &k, &cu_seqlens_q, &cu_seqlens_k;
  const char *q_name, *k_name;
  int64_t max_seqlen_q, max_seqlen_k;
  int row_dim;  // of q and k

  int64_t rows() const { return q.dims()[row_dim]; }
  int64_t keys() const { return k.dims()[row_dim]; }
};

/// The sequences of a call; a table lives as long as this.
class CallSequences {
 public:
  CallSequences(const OpContext& ctx, const PackedArguments& args, const TableSource& from,
                const DenseTensor& seqlen_k) {
    const bool is_packed = from.q_offsets != nullptr;
    sequences_ = {from.count, is_packed ? std::min(args.max_seqlen_q, from.queries) : from.queries,
                  is_packed ? std::min(args.max_seqlen_k, from.keys) : from.keys, from.diagonal};
    if (!is_packed && from.diagonals == nullptr && from.lengths == nullptr) return;
    memory_.emplace(static_cast<size_t>(std::max<int64_t>(from.count, 1)) * sizeof(Sequence));
    auto* const table = static_cast<Sequence*>(memory_->data());
    sequences_.table = table;
    const OffsetCheck q({ctx.op, "cu_seqlens_q", args.q_name, args.rows(), "max_seqlen_q", args.max_seqlen_q});
    const OffsetCheck k({ctx.op, "cu_seqlens_k", args.k_name, args.keys(), "max_seqlen_k", args.max_seqlen_k});
    const bool has_lengths = seqlen_k.defined();  // input 7 of the ops that have it
    const LengthCheck lengths({ctx.op, ArgumentPlace(ctx, has_lengths ? 7 : 0, has_lengths ? seqlen_k : args.q)});
    launch(ctx, table_kernel, 1, kThreads, table, from, q, k, lengths);
  }
  const Sequences& get() const { return sequences_; }
  /// Whether there may be rows, or numbers of a row, that belong to no sequence.
  bool leave_gaps() const { return sequences_.table != nullptr; }

 private:
  std::optional<Scratch> memory_;
  Sequences sequences_{};
};

/// lse[i] = the logarithm of a sum without terms.
template <class C>
__global__ void clear_sums_kernel(C* lse, int64_t count) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) lse[i] = -INFINITY;
}

void clear_sums(const OpContext& ctx, const DenseTensor& lse) {
  const int64_t count = lse.numel();
  if (count == 0) return;
  const unsigned blocks = grid_for(count, kThreads);
  if (lse.dtype() == DType::float64)
    launch(ctx, clear_sums_kernel<double>, blocks, kThreads, elements<double>(lse), count);
  else launch(ctx, clear_sums_kernel<float>, blocks, kThreads, elements<float>(lse), count);
}

const int32_t* numbers(const DenseTensor& x) { return x.defined() ? elements<const int32_t>(x) : nullptr; }

// flash_attn.

/// One sequence in each batch: the queries and keys that are here. The last query of all sees all keys.
Sequences batches(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k) {
  const Box a = ctx.input_box(0, q), b = ctx.input_box(1, k);
  return {q.dims()[0], q.dims()[1], k.dims()[1], a.begin[1] + b.global[1] - a.global[1] - b.begin[1]};
}

void flash_attn(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                const DenseTensor& fixed_seed_offset, const DenseTensor& attn_mask, float dropout, bool causal, bool,
                bool is_test, const std::string&, RandomKey drawn, DenseTensor& out, DenseTensor& softmax,
                DenseTensor& softmax_lse, DenseTensor& seed_offset) {
  const DeviceScope scope(out.device().index);
  const bool drops = dropout > 0 && !is_test;
  const DropoutKey key = fixed_seed_offset.defined() ? key_in(fixed_seed_offset) : DropoutKey{nullptr, drawn};
  store_key(ctx, key, drops, seed_offset);
  attend_to_all(ctx,
                {q, k, v, attn_mask, ctx.input_box(0, q), ctx.input_box(1, k), causal, scale_of(q, -1),
                 drops ? static_cast<double>(dropout) : 0, key, batches(ctx, q, k)},
                {out, softmax, softmax_lse});
}

void flash_attn_grad(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                     const DenseTensor& out, const DenseTensor& softmax_lse, const DenseTensor& seed_offset,
                     const DenseTensor& attn_mask, const DenseTensor& out_grad, float dropout, bool causal,
                     bool is_test, DenseTensor& q_grad, DenseTensor& k_grad, DenseTensor& v_grad) {
  const DeviceScope scope(q.device().index);
  attention_grads(ctx,
                  {q, k, v, attn_mask, ctx.input_box(0, q), ctx.input_box(1, k), causal, scale_of(q, -1),
                   is_test ? 0 : static_cast<double>(dropout), key_in(seed_offset), batches(ctx, q, k)},
                  out, softmax_lse, out_grad, {q_grad, k_grad, v_grad, DenseTensor()});
}

// flash_attn_unpadded.

/// Packed sequences, whose last queries see all keys.
CallSequences unpadded_sequences(const OpContext& ctx, const PackedArguments& args) {
  return {ctx,
          args,
          {numbers(args.cu_seqlens_q), numbers(args.cu_seqlens_k), nullptr, nullptr, args.cu_seqlens_q.numel() - 1,
           args.rows(), args.keys(), 0, true, 0, 0},
          DenseTensor()};
}

void flash_attn_unpadded(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                         const DenseTensor& cu_seqlens_q, const DenseTensor& cu_seqlens_k,
                         const DenseTensor& fixed_seed_offset, const DenseTensor& attn_mask, int64_t max_seqlen_q,
                         int64_t max_seqlen_k, float scale, float dropout, bool causal, bool is_test, RandomKey drawn,
                         DenseTensor& out, DenseTensor& softmax, DenseTensor& softmax_lse, DenseTensor& seed_offset) {
  const DeviceScope scope(out.device().index);
  const CallSequences sequences =
      unpadded_sequences(ctx, {q, k, cu_seqlens_q, cu_seqlens_k, "q", "k", max_seqlen_q, max_seqlen_k, 0});
  const bool drops = dropout > 0 && !is_test;
  const DropoutKey key = fixed_seed_offset.defined() ? key_in(fixed_seed_offset) : DropoutKey{nullptr, drawn};
  store_key(ctx, key, drops, seed_offset);
  fill_zeros(out);  // where there is no sequence, and beyond the length of one
  fill_zeros(softmax);
  clear_sums(ctx, softmax_lse);
  const DenseTensor wide_q = as_batch(q), wide_k = as_batch(k), wide_v = as_batch(v);
  DenseTensor wide_out = as_batch(out);
  attend(ctx,
         {wide_q, wide_k, wide_v, attn_mask, as_batch(ctx.input_box(0, q)), as_batch(ctx.input_box(1, k)), causal,
          static_cast<double>(scale), drops ? static_cast<double>(dropout) : 0, key, sequences.get()},
         {wide_out, softmax, softmax_lse});
}

void fill_given(const DenseTensor& grad) {
  if (grad.defined()) fill_zeros(grad);
}

void flash_attn_unpadded_grad(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                              const DenseTensor& cu_seqlens_q, const DenseTensor& cu_seqlens_k, const DenseTensor& out,
                              const DenseTensor& softmax_lse, const DenseTensor& seed_offset,
                              const DenseTensor& attn_mask, const DenseTensor& out_grad, int64_t max_seqlen_q,
                              int64_t max_seqlen_k, float scale, float dropout, bool causal, bool is_test,
                              DenseTensor& q_grad, DenseTensor& k_grad, DenseTensor& v_grad) {
  const DeviceScope scope(q.device().index);
  const CallSequences sequences =
      unpadded_sequences(ctx, {q, k, cu_seqlens_q, cu_seqlens_k, "q", "k", max_seqlen_q, max_seqlen_k, 0});
  for (const DenseTensor* grad : {&q_grad, &k_grad, &v_grad}) fill_given(*grad);  // where there is no sequence
  const DenseTensor wide_q = as_batch(q), wide_k = as_batch(k), wide_v = as_batch(v);
  attention_grads(
      ctx,
      {wide_q, wide_k, wide_v, attn_mask, as_batch(ctx.input_box(0, q)), as_batch(ctx.input_box(1, k)), causal,
       static_cast<double>(scale), is_test ? 0 : static_cast<double>(dropout), key_in(seed_offset), sequences.get()},
      as_batch(out), softmax_lse, as_batch(out_grad),
      {as_batch(q_grad), as_batch(k_grad), as_batch(v_grad), DenseTensor()});
}

// memory_efficient_attention.

/// The arguments that say which queries see which keys.
struct Visibility {
  const DenseTensor &cu_seqlens_q, &cu_seqlens_k, &causal_diagonal, &seqlen_k;
  const Scalar &max_seqlen_q, &max_seqlen_k;
};

/// Sequences of which query i sees the keys up to i plus a diagonal. Lengths and diagonals count from the first key of all, of
/// which a shard has a part.
CallSequences visible_sequences(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k,
                                const Visibility& by) {
  const Box keys = ctx.input_box(1, k);
  const int64_t first_query = ctx.input_box(0, q).begin[1], first_key = keys.begin[1];
  const int64_t count = by.cu_seqlens_q.defined() ? by.cu_seqlens_q.numel() - 1 : q.dims()[0];
  return {ctx,
          {q, k, by.cu_seqlens_q, by.cu_seqlens_k, "query", "key", by.max_seqlen_q.to<int64_t>(),
           by.max_seqlen_k.to<int64_t>(), 1},
          {numbers(by.cu_seqlens_q), numbers(by.cu_seqlens_k), numbers(by.causal_diagonal), numbers(by.seqlen_k), count,
           q.dims()[1], k.dims()[1], first_query - first_key, false, first_key, keys.global[1]},
          by.seqlen_k};
}

void memory_efficient_attention(const OpContext& ctx, const DenseTensor& query, const DenseTensor& key,
                                const DenseTensor& value, const DenseTensor& bias, const DenseTensor& cu_seqlens_q,
                                const DenseTensor& cu_seqlens_k, const DenseTensor& causal_diagonal,
                                const DenseTensor& seqlen_k, const Scalar& max_seqlen_q, const Scalar& max_seqlen_k,
                                bool causal, double dropout_p, float scale, bool is_test, RandomKey drawn,
                                DenseTensor& output, DenseTensor& logsumexp, DenseTensor& seed_and_offset) {
  const DeviceScope scope(output.device().index);
  const CallSequences sequences = visible_sequences(
      ctx, query, key, {cu_seqlens_q, cu_seqlens_k, causal_diagonal, seqlen_k, max_seqlen_q, max_seqlen_k});
  const bool drops = dropout_p > 0 && !is_test;
  const DropoutKey from{nullptr, drawn};
  store_key(ctx, from, drops, seed_and_offset);
  if (sequences.leave_gaps()) {
    fill_zeros(output);
    clear_sums(ctx, logsumexp);
  }
  DenseTensor none = DenseTensor::allocate(output.device(), {Dims{0}, query.dtype()});
  attend_to_all(ctx,
                {query, key, value, wide_bias(bias), ctx.input_box(0, query), ctx.input_box(1, key), causal,
                 scale_of(query, scale), drops ? dropout_p : 0, from, sequences.get()},
                {output, none, logsumexp});
}

void memory_efficient_attention_grad(const OpContext& ctx, const DenseTensor& query, const DenseTensor& key,
                                     const DenseTensor& value, const DenseTensor& bias, const DenseTensor& cu_seqlens_q,
                                     const DenseTensor& cu_seqlens_k, const DenseTensor& causal_diagonal,
                                     const DenseTensor& seqlen_k, const DenseTensor& output,
                                     const DenseTensor& logsumexp, const DenseTensor& seed_and_offset,
                                     const DenseTensor& output_grad, const Scalar& max_seqlen_q,
                                     const Scalar& max_seqlen_k, bool causal, double dropout_p, float scale,
                                     bool is_test, DenseTensor& query_grad, DenseTensor& key_grad,
                                     DenseTensor& value_grad, DenseTensor& bias_grad) {
  const DeviceScope scope(query.device().index);
  const CallSequences sequences = visible_sequences(
      ctx, query, key, {cu_seqlens_q, cu_seqlens_k, causal_diagonal, seqlen_k, max_seqlen_q, max_seqlen_k});
  if (sequences.leave_gaps())  // keys beyond the length of a sequence have no gradient
    for (const DenseTensor* grad : {&query_grad, &key_grad, &value_grad}) fill_given(*grad);
  attention_grads(ctx,
                  {query, key, value, wide_bias(bias), ctx.input_box(0, query), ctx.input_box(1, key), causal,
                   scale_of(query, scale), is_test ? 0 : dropout_p, key_in(seed_and_offset), sequences.get()},
                  output, logsumexp, output_grad, {query_grad, key_grad, value_grad, wide_bias(bias_grad)});
}

}  // namespace

void register_attention(int backend) {
  for (const DType dtype : dtypes_of(FloatTypes{})) {
    register_kernel("flash_attn", backend, dtype, flash_attn);
    register_kernel("flash_attn_grad", backend, dtype, flash_attn_grad);
    register_kernel("flash_attn_unpadded", backend, dtype, flash_attn_unpadded);
    register_kernel("flash_attn_unpadded_grad", backend, dtype, flash_attn_unpadded_grad);
    register_kernel("memory_efficient_attention", backend, dtype, memory_efficient_attention);
    register_kernel("memory_efficient_attention_grad", backend, dtype, memory_efficient_attention_grad);
  }
}

}  // namespace shard::cuda
