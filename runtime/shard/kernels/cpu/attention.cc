// The CPU kernels of flash_attn and of its gradient: blocks of keys with a running maximum and sum
// (Dao et al. 2022), so that no row of scores is stored. For finite values, a row of results depends
// only on its own query and on the keys that it sees, bit for bit, however queries, heads and batches
// are sharded. (A value that a row does not see counts 0 times, which is NaN for an infinite one.)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/attention.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <vector>

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/product.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/transpose.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kQueries = 256;  // rows of a job
constexpr int64_t kKeys = 64;      // columns that are scored at once

/// `width` rounded up to a multiple of kProductColumns: the step of rows in buffers.
int64_t padded(int64_t width) { return (width + kProductColumns - 1) / kProductColumns * kProductColumns; }

/// One call; q, k, v are [batch, sequence, heads, width].
template <class T>
struct Attention {
  using C = Compute<T>;
  const DenseTensor &q, &k, &v, &mask;
  Box q_box, k_box, mask_box;
  bool causal;
  double dropout;
  RandomKey key;

  int64_t queries() const { return q.dims()[1]; }
  int64_t keys() const { return k.dims()[1]; }
  int64_t width() const { return q.dims()[3]; }
  int64_t value_width() const { return v.dims()[3]; }

  /// The head of k and v that local head `h` of q reads.
  int64_t kv_head(int64_t h) const {
    const int64_t group = q_box.global[2] / k_box.global[2];
    return (q_box.begin[2] + h) / group - k_box.begin[2];
  }
  /// The first local query from `first` on that may see a key at or after `start`.
  int64_t first_query(int64_t first, int64_t start) const {
    return causal ? std::max(first, start - (q_box.begin[1] + keys() - q_box.global[1])) : first;
  }
  /// How many keys local query `i` may see, in the whole sequence; the last query sees all.
  int64_t visible(int64_t i) const {
    return causal ? std::clamp<int64_t>(q_box.begin[1] + i + 1 + keys() - q_box.global[1], 0, keys()) : keys();
  }
  const T* mask_row(int64_t b, int64_t h, int64_t i) const {
    const Dims& dims = mask.dims();
    const auto at = [&](int d, int64_t index) { return mask_box.global[d] == 1 ? 0 : index; };
    return mask.data<T>() + ((at(0, b) * dims[1] + at(1, h)) * dims[2] + at(2, i)) * dims[3];
  }
  /// 1 / (1 - dropout) where the weight of key j is kept, else 0. Depends on the position in the
  /// whole [batch, heads, queries, keys].
  C kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t row =
        ((q_box.begin[0] + b) * q_box.global[2] + q_box.begin[2] + h) * q_box.global[1] + q_box.begin[1] + i;
    const bool keeps =
        uniform01(random_word(key, static_cast<uint64_t>(row * keys() + j))) >= static_cast<float>(dropout);
    return keeps ? static_cast<C>(1.0 / (1.0 - dropout)) : C(0);
  }
};

/// Scratch for a block of queries of one head.
template <class C>
struct Block {
  Block(int64_t queries, int64_t width, int64_t value_width)
      : step(padded(width)), value_step(padded(value_width)), query(size_t(queries * step)), rows(size_t(kKeys * step)),
        keys(size_t(step * kKeys)), values(size_t(kKeys * value_step)), sums(size_t(queries * value_step)),
        scores(size_t(queries * kKeys)) {}
  int64_t step, value_step;
  std::vector<C> query;   // [row][step], scaled
  std::vector<C> rows;    // [key][step]
  std::vector<C> keys;    // the same transposed, [step][kKeys]
  std::vector<C> values;  // [key][value_step]
  std::vector<C> sums;    // [row][value_step]
  std::vector<C> scores;  // [row][kKeys]
  C largest[kQueries], total[kQueries];
};

/// Rows of `width` numbers, `from_step` apart, in a buffer. The padding is not touched: it stays 0.
template <class T, class C>
void load_rows(const T* from, int64_t from_step, int64_t rows, int64_t width, C* to, int64_t to_step) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < width; ++d) to[i * to_step + d] = static_cast<C>(from[i * from_step + d]);
}

/// Keys (or values) [start, start + n) of a head of k (or v).
template <class T, class C>
void load_keys(const DenseTensor& k, int64_t b, int64_t head, int64_t start, int64_t n, C* to, int64_t step) {
  const int64_t heads = k.dims()[2], width = k.dims()[3];
  const T* from = k.data<T>() + ((b * k.dims()[1] + start) * heads + head) * width;
  load_rows(from, heads * width, n, width, to, step);
}

template <class T, class C>
void load_queries(const Attention<T>& a, int64_t b, int64_t h, int64_t first, int64_t rows, Block<C>& block) {
  const int64_t width = a.width(), heads = a.q.dims()[2];
  const C scale = static_cast<C>(1.0 / std::sqrt(static_cast<double>(width)));
  const T* from = a.q.template data<T>() + ((b * a.queries() + first) * heads + h) * width;
  load_rows(from, heads * width, rows, width, block.query.data(), block.step);
  for (int64_t i = 0; i < rows * block.step; ++i) block.query[size_t(i)] *= scale;
}

/// The scores of keys [start, start + n) for the block's queries; -infinity for masked keys and from
/// n on. Returns the first row that sees one of the keys. Rows before it are not computed.
template <class T, class C>
int64_t score(const Attention<T>& a, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
              Block<C>& block) {
  load_keys<T>(a.k, b, a.kv_head(h), start, n, block.rows.data(), block.step);
  transpose_matrix(block.rows.data(), block.step, block.keys.data(), kKeys, kKeys, block.step);
  const int64_t begin = std::min(a.first_query(first, start) - first, rows);
  std::fill(block.scores.data() + begin * kKeys, block.scores.data() + rows * kKeys, C(0));
  add_product<C>(rows - begin, kKeys, a.width(), {block.query.data() + begin * block.step, block.step, 1},
                 block.keys.data(), kKeys, block.scores.data() + begin * kKeys, kKeys);
  for (int64_t i = begin; i < rows; ++i) {
    C* scores = block.scores.data() + i * kKeys;
    if (a.mask.defined()) {
      const T* mask = a.mask_row(b, h, first + i) + start;
      for (int64_t j = 0; j < n; ++j) scores[j] += static_cast<C>(mask[j]);
    }
    const int64_t visible = std::clamp<int64_t>(a.visible(first + i) - start, 0, n);
    std::fill(scores + visible, scores + kKeys, lowest<C>());
  }
  return begin;
}

/// Adds the block's keys to the running maximum, sum and weighted values of each query.
template <class T, class C>
void accumulate(const Attention<T>& a, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
                Block<C>& block) {
  const int64_t begin = score(a, b, h, first, rows, start, n, block);
  load_keys<T>(a.v, b, a.kv_head(h), start, n, block.values.data(), block.value_step);
  for (int64_t i = begin; i < rows; ++i) {
    C* scores = block.scores.data() + i * kKeys;
    const auto score_of = [=](int64_t j) { return scores[j]; };
    const C largest = fold(kKeys, block.largest[i], score_of, Larger());
    if (largest == lowest<C>()) {  // no key is visible yet
      std::fill_n(scores, kKeys, C(0));
      continue;
    }
    const C shrink = exp_of(block.largest[i] - largest);
    block.largest[i] = largest;
    for (int64_t j = 0; j < kKeys; ++j) scores[j] = exp_of(scores[j] - largest);
    block.total[i] = block.total[i] * shrink + sum_of<C>(kKeys, [=](int64_t j) { return scores[j]; });
    if (a.dropout > 0)
      for (int64_t j = 0; j < n; ++j) scores[j] *= a.kept(b, h, first + i, start + j);
    C* sums = block.sums.data() + i * block.value_step;
    for (int64_t d = 0; d < block.value_step; ++d) sums[d] *= shrink;
  }
  add_product<C>(rows - begin, block.value_step, n, {block.scores.data() + begin * kKeys, kKeys, 1},
                 block.values.data(), block.value_step, block.sums.data() + begin * block.value_step, block.value_step);
}

template <class T>
void attend(const Attention<T>& a, int64_t b, int64_t h, int64_t first, Block<Compute<T>>& block, DenseTensor& out,
            DenseTensor& softmax, DenseTensor& lse) {
  using C = Compute<T>;
  const int64_t rows = std::min(kQueries, a.queries() - first), heads = a.q.dims()[2], width = a.value_width();
  load_queries(a, b, h, first, rows, block);
  std::fill_n(block.sums.data(), rows * block.value_step, C(0));
  std::fill_n(block.largest, rows, lowest<C>());
  std::fill_n(block.total, rows, C(0));
  const int64_t end = rows == 0 ? 0 : a.visible(first + rows - 1);
  for (int64_t start = 0; start < end; start += kKeys) {
    const int64_t n = std::min(kKeys, end - start);
    accumulate(a, b, h, first, rows, start, n, block);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const C total = block.total[i];
    T* to = out.data<T>() + ((b * a.queries() + first + i) * heads + h) * width;
    for (int64_t d = 0; d < width; ++d)
      to[d] = total == C(0) ? T(C(0)) : T(block.sums[size_t(i * block.value_step + d)] / total);
    lse.data<Statistic<T>>()[(b * heads + h) * a.queries() + first + i] = block.largest[i] + std::log(total);
  }
  if (softmax.dims().rank() != 4) return;
  for (int64_t start = 0; start < a.keys(); start += kKeys) {
    const int64_t n = std::min(kKeys, a.keys() - start);
    const int64_t begin = score(a, b, h, first, rows, start, n, block);
    for (int64_t i = 0; i < rows; ++i) {
      T* to = softmax.data<T>() + ((b * heads + h) * a.queries() + first + i) * a.keys() + start;
      for (int64_t j = 0; j < n; ++j) {
        to[j] = i < begin || block.total[i] == C(0)
                    ? T(C(0))
                    : T(exp_of(block.scores[size_t(i * kKeys + j)] - block.largest[i]) / block.total[i]);
      }
    }
  }
}

template <class T>
void flash_attn(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                const DenseTensor& fixed_seed_offset, const DenseTensor& attn_mask, float dropout, bool causal, bool,
                bool is_test, const std::string&, RandomKey drawn, DenseTensor& out, DenseTensor& softmax,
                DenseTensor& softmax_lse, DenseTensor& seed_offset) {
  RandomKey key = drawn;
  if (fixed_seed_offset.defined()) {
    key = {static_cast<uint64_t>(fixed_seed_offset.data<int64_t>()[0]),
           static_cast<uint64_t>(fixed_seed_offset.data<int64_t>()[1])};
  }
  const bool drops = dropout > 0 && !is_test;
  seed_offset.data<int64_t>()[0] = drops ? static_cast<int64_t>(key.seed) : 0;
  seed_offset.data<int64_t>()[1] = drops ? static_cast<int64_t>(key.offset) : 0;
  const Box mask_box = attn_mask.defined() ? ctx.input_box(4, attn_mask) : Box();
  const Attention<T> a{q,
                       k,
                       v,
                       attn_mask,
                       ctx.input_box(0, q),
                       ctx.input_box(1, k),
                       mask_box,
                       causal,
                       drops ? static_cast<double>(dropout) : 0,
                       key};
  const int64_t heads = q.dims()[2], blocks = (a.queries() + kQueries - 1) / kQueries;
  const int64_t rows = std::min(kQueries, a.queries());
  const int64_t cost = rows * a.keys() * (a.width() + a.value_width()) / 4;
  parallel_for(q.dims()[0] * heads * blocks, cost, [&](int64_t begin, int64_t end) {
    Block<Compute<T>> block(rows, a.width(), a.value_width());
    for (int64_t job = begin; job < end; ++job) {
      const int64_t line = job / blocks;
      attend<T>(a, line / heads, line % heads, job % blocks * kQueries, block, out, softmax, softmax_lse);
    }
  });
}

/// The arguments of the gradient besides those of the forward op.
template <class T>
struct AttentionGrad {
  const Attention<T>& a;
  const DenseTensor &out, &lse, &out_grad;
};

/// Scratch of one job of the gradient, for a block of queries and one of keys.
template <class C>
struct GradBlock : Block<C> {
  GradBlock(int64_t queries, int64_t width, int64_t value_width)
      : Block<C>(queries, width, value_width), columns(size_t(this->value_step * kKeys)),
        grads(size_t(queries * this->value_step)), slopes(size_t(queries * kKeys)) {}
  std::vector<C> columns;  // the values transposed, [value_step][kKeys]
  std::vector<C> grads;    // the gradients of the results, [row][value_step]
  std::vector<C> slopes;   // the gradients of the scores, [row][kKeys]; `scores` are the factors of the values then
  C mean[kQueries];        // of a row's gradients of weights, which is subtracted from each of them
};

template <class T, class C>
void load_grads(const AttentionGrad<T>& g, int64_t b, int64_t h, int64_t first, int64_t rows, GradBlock<C>& block) {
  load_queries(g.a, b, h, first, rows, block);
  const int64_t width = g.a.value_width(), heads = g.a.q.dims()[2];
  const int64_t at = ((b * g.a.queries() + first) * heads + h) * width;
  load_rows(g.out_grad.template data<T>() + at, heads * width, rows, width, block.grads.data(), block.value_step);
  for (int64_t i = 0; i < rows; ++i) {
    const T* out = g.out.template data<T>() + at + i * heads * width;
    const C* grad = block.grads.data() + i * block.value_step;
    block.mean[i] = sum_of<C>(width, [=](int64_t d) { return grad[d] * static_cast<C>(out[d]); });
  }
}

/// The weights and the gradients of the scores of keys [start, start + n) for the block's queries. Returns the
/// first row that sees one of the keys, as score does.
template <class T, class C>
int64_t weigh(const AttentionGrad<T>& g, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
              GradBlock<C>& block) {
  const Attention<T>& a = g.a;
  const int64_t begin = score(a, b, h, first, rows, start, n, block);
  load_keys<T>(a.v, b, a.kv_head(h), start, n, block.values.data(), block.value_step);
  transpose_matrix(block.values.data(), block.value_step, block.columns.data(), kKeys, kKeys, block.value_step);
  std::fill(block.slopes.data() + begin * kKeys, block.slopes.data() + rows * kKeys, C(0));
  add_product<C>(rows - begin, kKeys, a.value_width(),
                 {block.grads.data() + begin * block.value_step, block.value_step, 1}, block.columns.data(), kKeys,
                 block.slopes.data() + begin * kKeys, kKeys);
  for (int64_t i = begin; i < rows; ++i) {
    C *weights = block.scores.data() + i * kKeys, *slopes = block.slopes.data() + i * kKeys;
    const C sum = g.lse.template data<Statistic<T>>()[(b * a.q.dims()[2] + h) * a.queries() + first + i];
    if (sum == lowest<C>()) {  // no key is visible
      std::fill_n(weights, kKeys, C(0));
      std::fill_n(slopes, kKeys, C(0));
      continue;
    }
    for (int64_t j = 0; j < kKeys; ++j) weights[j] = exp_of(weights[j] - sum);
    const C mean = block.mean[i];
    if (a.dropout > 0) {
      for (int64_t j = 0; j < n; ++j) {
        const C kept = a.kept(b, h, first + i, start + j);
        slopes[j] = weights[j] * (kept * slopes[j] - mean);
        weights[j] *= kept;
      }
    } else {
      for (int64_t j = 0; j < kKeys; ++j) slopes[j] = weights[j] * (slopes[j] - mean);
    }
  }
  return begin;
}

/// Stores rows of a buffer as rows of `to`, which are to_step apart.
template <class T, class C>
void store_rows(const std::vector<C>& from, int64_t from_step, int64_t rows, int64_t width, C factor, T* to,
                int64_t to_step) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < width; ++d) to[i * to_step + d] = T(from[size_t(i * from_step + d)] * factor);
}

/// The gradients of one head of k and v and of the heads of q that read it. Those of keys are sums
/// over these heads and over their queries, in order.
template <class T>
void head_grads(const AttentionGrad<T>& g, int64_t b, int64_t head, DenseTensor& q_grad, DenseTensor& k_grad,
                DenseTensor& v_grad) {
  using C = Compute<T>;
  const Attention<T>& a = g.a;
  const int64_t heads = a.q.dims()[2], kv_heads = a.k.dims()[2], width = a.width(), value_width = a.value_width();
  GradBlock<C> block(std::min(kQueries, a.queries()), width, value_width);
  const int64_t step = block.step, value_step = block.value_step;
  std::vector<C> query_sums(block.query.size()), key_sums(size_t(a.keys() * step)),
      value_sums(size_t(a.keys() * value_step));
  for (int64_t h = 0; h < heads; ++h) {
    if (a.kv_head(h) != head) continue;
    for (int64_t first = 0; first < a.queries(); first += kQueries) {
      const int64_t rows = std::min(kQueries, a.queries() - first), end = a.visible(first + rows - 1);
      load_grads(g, b, h, first, rows, block);
      std::fill(query_sums.begin(), query_sums.end(), C(0));
      for (int64_t start = 0; start < end; start += kKeys) {
        const int64_t n = std::min(kKeys, end - start);
        const int64_t begin = weigh(g, b, h, first, rows, start, n, block), seen = rows - begin;
        const C *slopes = block.slopes.data() + begin * kKeys, *weights = block.scores.data() + begin * kKeys;
        add_product<C>(seen, step, n, {slopes, kKeys, 1}, block.rows.data(), step, query_sums.data() + begin * step,
                       step);
        add_product<C>(n, step, seen, {slopes, 1, kKeys}, block.query.data() + begin * step, step,
                       key_sums.data() + start * step, step);  // query is scaled
        add_product<C>(n, value_step, seen, {weights, 1, kKeys}, block.grads.data() + begin * value_step, value_step,
                       value_sums.data() + start * value_step, value_step);
      }
      store_rows(query_sums, step, rows, width, static_cast<C>(1.0 / std::sqrt(static_cast<double>(width))),
                 q_grad.data<T>() + ((b * a.queries() + first) * heads + h) * width, heads * width);
    }
  }
  const int64_t line = b * a.keys() * kv_heads + head;
  store_rows(key_sums, step, a.keys(), width, C(1), k_grad.data<T>() + line * width, kv_heads * width);
  store_rows(value_sums, value_step, a.keys(), value_width, C(1), v_grad.data<T>() + line * value_width,
             kv_heads * value_width);
}

template <class T>
void flash_attn_grad(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                     const DenseTensor& out, const DenseTensor& softmax_lse, const DenseTensor& seed_offset,
                     const DenseTensor& attn_mask, const DenseTensor& out_grad, float dropout, bool causal,
                     bool is_test, DenseTensor& q_grad, DenseTensor& k_grad, DenseTensor& v_grad) {
  const RandomKey key = {static_cast<uint64_t>(seed_offset.data<int64_t>()[0]),
                         static_cast<uint64_t>(seed_offset.data<int64_t>()[1])};
  const Box mask_box = attn_mask.defined() ? ctx.input_box(6, attn_mask) : Box();
  const double drops = is_test ? 0 : static_cast<double>(dropout);
  const Attention<T> a{q, k, v, attn_mask, ctx.input_box(0, q), ctx.input_box(1, k), mask_box, causal, drops, key};
  const AttentionGrad<T> g{a, out, softmax_lse, out_grad};
  const int64_t kv_heads = k.dims()[2];
  const int64_t cost =
      q.dims()[2] * a.queries() / std::max<int64_t>(kv_heads, 1) * a.keys() * (a.width() + a.value_width());
  parallel_for(k.dims()[0] * kv_heads, cost, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job)
      head_grads<T>(g, job / kv_heads, job % kv_heads, q_grad, k_grad, v_grad);
  });
}

void register_attention_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("flash_attn", kBackend, dtype_of<T>, &flash_attn<T>);
    register_kernel("flash_attn_grad", kBackend, dtype_of<T>, &flash_attn_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_attention_for_target);
void register_attention() { HWY_DYNAMIC_DISPATCH(register_attention_for_target)(); }
}  // namespace shard::cpu
#endif
