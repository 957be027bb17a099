// The CPU kernels of flash_attn and of its gradient: blocks of keys with a running maximum and sum
// (Dao et al. 2022), so that no row of scores is stored. A row of results depends only on its own
// query, bit for bit, however queries, heads and batches are sharded.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/attention.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <vector>

#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kQueries = 16;  // rows of a job
constexpr int64_t kKeys = 64;     // columns that are scored at once

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

/// Scratch of one job: a block of queries of one head.
template <class C>
struct Block {
  Block(int64_t width, int64_t value_width)
      : query(size_t(kQueries * width)), keys(size_t(kKeys * width)), values(size_t(kKeys * value_width)),
        sums(size_t(kQueries * value_width)) {}
  std::vector<C> query;   // [row][width], scaled
  std::vector<C> keys;    // [width][kKeys]: a score is a sum over rows, with the keys in vector lanes
  std::vector<C> values;  // [kKeys][value_width]
  std::vector<C> sums;    // [row][value_width]
  C scores[kQueries][kKeys];
  C largest[kQueries], total[kQueries];
};

template <class T, class C>
void load_queries(const Attention<T>& a, int64_t b, int64_t h, int64_t first, int64_t rows, Block<C>& block) {
  const int64_t width = a.width(), heads = a.q.dims()[2];
  const C scale = static_cast<C>(1.0 / std::sqrt(static_cast<double>(width)));
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = a.q.template data<T>() + ((b * a.queries() + first + i) * heads + h) * width;
    for (int64_t d = 0; d < width; ++d) block.query[size_t(i * width + d)] = static_cast<C>(from[d]) * scale;
    block.largest[i] = lowest<C>();
    block.total[i] = C(0);
  }
  std::fill(block.sums.begin(), block.sums.end(), C(0));
}

/// The scores of keys [start, start + n) for the block's queries; -infinity for masked keys.
template <class T, class C>
void score(const Attention<T>& a, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
           Block<C>& block) {
  const int64_t width = a.width(), heads = a.k.dims()[2], head = a.kv_head(h);
  for (int64_t j = 0; j < n; ++j) {
    const T* from = a.k.template data<T>() + ((b * a.keys() + start + j) * heads + head) * width;
    for (int64_t d = 0; d < width; ++d) block.keys[size_t(d * kKeys + j)] = static_cast<C>(from[d]);
  }
  for (int64_t i = 0; i < rows; ++i) {
    C* scores = block.scores[i];
    std::fill_n(scores, kKeys, C(0));
    for (int64_t d = 0; d < width; ++d) {
      const C factor = block.query[size_t(i * width + d)];
      const C* column = block.keys.data() + d * kKeys;
      for (int64_t j = 0; j < n; ++j) scores[j] += factor * column[j];
    }
    if (a.mask.defined()) {
      const T* mask = a.mask_row(b, h, first + i) + start;
      for (int64_t j = 0; j < n; ++j) scores[j] += static_cast<C>(mask[j]);
    }
    for (int64_t j = std::max<int64_t>(a.visible(first + i) - start, 0); j < n; ++j) scores[j] = lowest<C>();
  }
}

/// Adds the block's keys to the running maximum, sum and weighted values of each query.
template <class T, class C>
void accumulate(const Attention<T>& a, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
                Block<C>& block) {
  const int64_t width = a.value_width(), heads = a.v.dims()[2], head = a.kv_head(h);
  for (int64_t j = 0; j < n; ++j) {
    const T* from = a.v.template data<T>() + ((b * a.keys() + start + j) * heads + head) * width;
    for (int64_t d = 0; d < width; ++d) block.values[size_t(j * width + d)] = static_cast<C>(from[d]);
  }
  for (int64_t i = 0; i < rows; ++i) {
    C* scores = block.scores[i];
    C largest = block.largest[i];
    for (int64_t j = 0; j < n; ++j) largest = nan_max(largest, scores[j]);
    if (largest == lowest<C>()) continue;  // no key is visible yet
    const C shrink = exp_of(block.largest[i] - largest);
    block.largest[i] = largest;
    C total = block.total[i] * shrink;
    for (int64_t j = 0; j < n; ++j) scores[j] = exp_of(scores[j] - largest);
    for (int64_t j = 0; j < n; ++j) total += scores[j];
    block.total[i] = total;
    C* sums = block.sums.data() + i * width;
    for (int64_t d = 0; d < width; ++d) sums[d] *= shrink;
    for (int64_t j = 0; j < n; ++j) {
      const C weight = a.dropout > 0 ? scores[j] * a.kept(b, h, first + i, start + j) : scores[j];
      const C* value = block.values.data() + j * width;
      for (int64_t d = 0; d < width; ++d) sums[d] += weight * value[d];
    }
  }
}

template <class T>
void attend(const Attention<T>& a, int64_t b, int64_t h, int64_t first, DenseTensor& out, DenseTensor& softmax,
            DenseTensor& lse) {
  using C = Compute<T>;
  const int64_t rows = std::min(kQueries, a.queries() - first), heads = a.q.dims()[2], width = a.value_width();
  Block<C> block(a.width(), width);
  load_queries(a, b, h, first, rows, block);
  const int64_t end = rows == 0 ? 0 : a.visible(first + rows - 1);
  for (int64_t start = 0; start < end; start += kKeys) {
    const int64_t n = std::min(kKeys, end - start);
    score(a, b, h, first, rows, start, n, block);
    accumulate(a, b, h, first, rows, start, n, block);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const C total = block.total[i];
    T* to = out.data<T>() + ((b * a.queries() + first + i) * heads + h) * width;
    for (int64_t d = 0; d < width; ++d) to[d] = total == C(0) ? T(C(0)) : T(block.sums[size_t(i * width + d)] / total);
    lse.data<Statistic<T>>()[(b * heads + h) * a.queries() + first + i] = block.largest[i] + std::log(total);
  }
  if (softmax.dims().rank() != 4) return;
  for (int64_t start = 0; start < a.keys(); start += kKeys) {
    const int64_t n = std::min(kKeys, a.keys() - start);
    score(a, b, h, first, rows, start, n, block);
    for (int64_t i = 0; i < rows; ++i) {
      T* to = softmax.data<T>() + ((b * heads + h) * a.queries() + first + i) * a.keys() + start;
      for (int64_t j = 0; j < n; ++j) {
        to[j] = block.total[i] == C(0) ? T(C(0)) : T(exp_of(block.scores[i][j] - block.largest[i]) / block.total[i]);
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
  const int64_t cost = kQueries * a.keys() * (a.width() + a.value_width()) / 4;
  parallel_for(q.dims()[0] * heads * blocks, cost, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t line = job / blocks;
      attend<T>(a, line / heads, line % heads, job % blocks * kQueries, out, softmax, softmax_lse);
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
  GradBlock(int64_t width, int64_t value_width)
      : Block<C>(width, value_width), columns(size_t(kKeys * value_width)), rows(size_t(kKeys * width)),
        grads(size_t(kQueries * value_width)) {}
  std::vector<C> columns;      // [value_width][kKeys]: the values, transposed like `keys`
  std::vector<C> rows;         // [kKeys][width]: the keys, in the order of `values`
  std::vector<C> grads;        // [row][value_width]: the gradients of the results
  C weights[kQueries][kKeys];  // the factors of the values
  C slopes[kQueries][kKeys];   // the gradients of the scores
  C dot
      // for result and gradient: the mean of a row's weight gradients, which is subtracted from
      // each of them
      [kQueries];
};

template <class T, class C>
void load_grads(const AttentionGrad<T>& g, int64_t b, int64_t h, int64_t first, int64_t rows, GradBlock<C>& block) {
  load_queries(g.a, b, h, first, rows, block);
  const int64_t width = g.a.value_width(), heads = g.a.q.dims()[2];
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = ((b * g.a.queries() + first + i) * heads + h) * width;
    const T *out = g.out.template data<T>() + at, *grad = g.out_grad.template data<T>() + at;
    C dot = C(0);
    for (int64_t d = 0; d < width; ++d) {
      block.grads[size_t(i * width + d)] = static_cast<C>(grad[d]);
      dot += static_cast<C>(grad[d]) * static_cast<C>(out[d]);
    }
    block.dot[i] = dot;
  }
}

/// The weights and the gradients of the scores of keys [start, start + n) for the block's queries.
template <class T, class C>
void weigh(const AttentionGrad<T>& g, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
           GradBlock<C>& block) {
  const Attention<T>& a = g.a;
  score(a, b, h, first, rows, start, n, block);
  const int64_t width = a.value_width(), kv_heads = a.v.dims()[2], head = a.kv_head(h), heads = a.q.dims()[2];
  for (int64_t j = 0; j < n; ++j) {
    const T* from = a.v.template data<T>() + ((b * a.keys() + start + j) * kv_heads + head) * width;
    for (int64_t d = 0; d < width; ++d) block.columns[size_t(d * kKeys + j)] = static_cast<C>(from[d]);
  }
  for (int64_t i = 0; i < rows; ++i) {
    C *weights = block.weights[i], *slopes = block.slopes[i];
    std::fill_n(slopes, kKeys, C(0));
    const C sum = g.lse.template data<Statistic<T>>()[(b * heads + h) * a.queries() + first + i];
    if (sum == lowest<C>()) {  // no key is visible
      std::fill_n(weights, kKeys, C(0));
      continue;
    }
    for (int64_t d = 0; d < width; ++d) {
      const C factor = block.grads[size_t(i * width + d)];
      const C* column = block.columns.data() + d * kKeys;
      for (int64_t j = 0; j < n; ++j) slopes[j] += factor * column[j];
    }
    for (int64_t j = 0; j < n; ++j) weights[j] = exp_of(block.scores[i][j] - sum);
    for (int64_t j = 0; j < n; ++j) {
      const C kept = a.dropout > 0 ? a.kept(b, h, first + i, start + j) : C(1);
      slopes[j] = weights[j] * (kept * slopes[j] - block.dot[i]);
      weights[j] *= kept;
    }
  }
}

/// The gradients of a block of queries of one head.
template <class T>
void query_grads(const AttentionGrad<T>& g, int64_t b, int64_t h, int64_t first, DenseTensor& q_grad) {
  using C = Compute<T>;
  const Attention<T>& a = g.a;
  const int64_t rows = std::min(kQueries, a.queries() - first), heads = a.q.dims()[2], width = a.width(),
                kv_heads = a.k.dims()[2], head = a.kv_head(h);
  GradBlock<C> block(width, a.value_width());
  load_grads(g, b, h, first, rows, block);
  std::vector<C> sums(size_t(kQueries * width));
  const int64_t end = a.visible(first + rows - 1);
  for (int64_t start = 0; start < end; start += kKeys) {
    const int64_t n = std::min(kKeys, end - start);
    weigh(g, b, h, first, rows, start, n, block);
    for (int64_t j = 0; j < n; ++j) {
      const T* from = a.k.template data<T>() + ((b * a.keys() + start + j) * kv_heads + head) * width;
      for (int64_t d = 0; d < width; ++d) block.rows[size_t(j * width + d)] = static_cast<C>(from[d]);
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const C slope = block.slopes[i][j];
        for (int64_t d = 0; d < width; ++d) sums[size_t(i * width + d)] += slope * block.rows[size_t(j * width + d)];
      }
    }
  }
  const C scale = static_cast<C>(1.0 / std::sqrt(static_cast<double>(width)));
  for (int64_t i = 0; i < rows; ++i) {
    T* to = q_grad.data<T>() + ((b * a.queries() + first + i) * heads + h) * width;
    for (int64_t d = 0; d < width; ++d) to[d] = T(sums[size_t(i * width + d)] * scale);
  }
}

/// The gradients of a block of keys and their values of one head of k and v: sums over the heads of
/// q that read it, and over their queries, in order.
template <class T>
void key_grads(const AttentionGrad<T>& g, int64_t b, int64_t head, int64_t start, DenseTensor& k_grad,
               DenseTensor& v_grad) {
  using C = Compute<T>;
  const Attention<T>& a = g.a;
  const int64_t n = std::min(kKeys, a.keys() - start), width = a.width(), value_width = a.value_width(),
                kv_heads = a.k.dims()[2];
  GradBlock<C> block(width, value_width);
  std::vector<C> key_sums(size_t(kKeys * width)), value_sums(size_t(kKeys * value_width));
  for (int64_t h = 0; h < a.q.dims()[2]; ++h) {
    if (a.kv_head(h) != head) continue;
    for (int64_t first = 0; first < a.queries(); first += kQueries) {
      const int64_t rows = std::min(kQueries, a.queries() - first);
      if (a.visible(first + rows - 1) <= start) continue;
      load_grads(g, b, h, first, rows, block);
      weigh(g, b, h, first, rows, start, n, block);
      for (int64_t i = 0; i < rows; ++i) {
        const C *query = block.query.data() + i * width, *grad = block.grads.data() + i * value_width;
        for (int64_t j = 0; j < n; ++j) {
          const C slope = block.slopes[i][j], weight = block.weights[i][j];
          for (int64_t d = 0; d < width; ++d) key_sums[size_t(j * width + d)] += slope * query[d];  // query is scaled
          for (int64_t d = 0; d < value_width; ++d) value_sums[size_t(j * value_width + d)] += weight * grad[d];
        }
      }
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    const int64_t line = (b * a.keys() + start + j) * kv_heads + head;
    for (int64_t d = 0; d < width; ++d) k_grad.data<T>()[line * width + d] = T(key_sums[size_t(j * width + d)]);
    for (int64_t d = 0; d < value_width; ++d)
      v_grad.data<T>()[line * value_width + d] = T(value_sums[size_t(j * value_width + d)]);
  }
}

/// Weights are computed twice, for the gradients of queries and of keys, so that no two jobs add to
/// one element.
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
  const int64_t heads = q.dims()[2], kv_heads = k.dims()[2], widths = a.width() + a.value_width();
  const auto for_blocks = [](int64_t lines, int64_t length, int64_t size, int64_t cost, const auto& body) {
    const int64_t blocks = (length + size - 1) / size;
    parallel_for(lines * blocks, cost, [&](int64_t begin, int64_t end) {
      for (int64_t job = begin; job < end; ++job) body(job / blocks, job % blocks * size);
    });
  };
  for_blocks(q.dims()[0] * heads, a.queries(), kQueries, kQueries * a.keys() * widths / 2,
             [&](int64_t line, int64_t first) { query_grads<T>(g, line / heads, line % heads, first, q_grad); });
  for_blocks(
      k.dims()[0] * kv_heads, a.keys(), kKeys,
      kKeys * a.queries() * widths / 2 * std::max<int64_t>(heads / std::max<int64_t>(kv_heads, 1), 1),
      [&](int64_t line, int64_t start) { key_grads<T>(g, line / kv_heads, line % kv_heads, start, k_grad, v_grad); });
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
