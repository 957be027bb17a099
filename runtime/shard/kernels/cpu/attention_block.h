// Blocks of queries of one head and of keys, in buffers: their products and scores.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_ATTENTION_BLOCK_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ATTENTION_BLOCK_H
#undef SHARD_KERNELS_CPU_ATTENTION_BLOCK_H
#else
#define SHARD_KERNELS_CPU_ATTENTION_BLOCK_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "shard/kernels/cpu/attention_sequence.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/product.h"
#include "shard/kernels/cpu/scratch.h"
#include "shard/kernels/cpu/transpose.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

constexpr int64_t kQueries = 256;  // rows of a job
/// Columns that are scored at once, for factors of type F: with few of them a causal job skips more of what it does not
/// see, with many of them oneDNN multiplies faster.
template <class F>
constexpr int64_t kKeys = is_half<F>                 ? 512
                          : std::is_same_v<F, float> ? 128
                                                     : 64;

inline int64_t rounded_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }
/// How many rows are multiplied for `rows` of them.
template <class F>
int64_t product_rows(int64_t rows) {
  return rounded_up(rows, is_half<F> || rows > kBlockStep ? kBlockStep : 8);
}
/// The step of rows in buffers.
template <class F>
int64_t padded(int64_t width) {
  return rounded_up(std::max<int64_t>(width, 1), is_half<F> ? kBlockStep : kProductColumns);
}

/// Calls body.operator()<F>() with the type of factors of products for tensors of T: bfloat16 where the processor
/// multiplies it, else the type of arithmetic.
template <class T, class Body>
void with_factors(const Body& body) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (onednn_multiplies_bfloat16()) return body.template operator()<bfloat16>();
  }
  body.template operator()<Compute<T>>();
}

/// The type of sums of products.
template <class F>
using Sum = Compute<F>;

/// out = x * y, or out += x * y where it `adds`. Only n of doubles need be a multiple of kProductColumns; other sizes
/// are those of multiply_block.
template <class F>
void multiply_buffers(const Product& p, const F* x, const F* y, Sum<F>* out, bool adds) {
  if constexpr (std::is_same_v<F, double>) {
    std::vector<double> turned;
    if (p.transpose_y) {
      turned.resize(size_t(p.k * p.n));
      transpose_matrix(y, p.k, turned.data(), p.n, p.n, p.k);
      y = turned.data();
    }
    if (!adds) std::fill_n(out, p.m * p.n, 0.0);
    const Steps steps = steps_of_x(p);
    add_product<double>(p.m, p.n, p.k, {x, steps.row, steps.column}, y, p.n, out, p.n);
  } else {
    multiply_block(p, {dtype_of<F>, x, y}, out, adds);
  }
}

/// A number in a buffer that is not finite.
template <class F>
struct NotFinite {
  int64_t at;
  F value;
};

template <class F>
bool is_finite(F x) {
  if constexpr (std::is_same_v<F, bfloat16>) return (x.bits & 0x7f80u) != 0x7f80u;
  else return std::abs(x) <= std::numeric_limits<F>::max();
}

/// Rows of numbers in a buffer, which are added up with weights.
template <class F>
struct Buffer {
  explicit Buffer(int64_t size) : data(size) {}
  /// To be called when `n` numbers have been loaded and are to be added up.
  void find_not_finite(int64_t n) {
    not_finite.clear();
    const F* const all = data.get();
    int found = 0;
    for (int64_t i = 0; i < n; ++i) found |= !is_finite(all[i]);
    if (found == 0) return;
    for (int64_t i = 0; i < n; ++i)
      if (!is_finite(all[i])) not_finite.push_back({i, all[i]});
  }

  Scratch<F> data;
  std::vector<NotFinite<F>> not_finite;
};

/// out [m, n] += weights [m, k] * the k rows of `factors` from row `first` on. What has weight 0 adds nothing, even if it
/// is not finite: a query must not see what is hidden from it.
template <class F>
void add_weighted(const Product& p, const F* weights, Buffer<F>& factors, int64_t first, Sum<F>* out) {
  for (const NotFinite<F>& one : factors.not_finite) factors.data.get()[one.at] = F(0.0f);
  multiply_buffers(p, weights, factors.data.get() + first * p.n, out, true);
  const Steps steps = steps_of_x(p);
  for (const NotFinite<F>& one : factors.not_finite) {
    factors.data.get()[one.at] = one.value;
    const int64_t k = one.at / p.n - first, column = one.at % p.n;
    if (k < 0 || k >= p.k) continue;
    for (int64_t i = 0; i < p.m; ++i) {
      const auto weight = static_cast<Sum<F>>(weights[i * steps.row + k * steps.column]);
      if (weight != 0) out[i * p.n + column] += weight * static_cast<Sum<F>>(one.value);
    }
  }
}

/// `n` rows of a head from row `first` on, in a buffer whose rows are padded with 0, and rows of 0 up to `all`.
template <class T, class F>
void load_rows(const Rows<const T>& from, int64_t head, int64_t first, int64_t n, int64_t all, F* to, int64_t step) {
  for (int64_t i = 0; i < n; ++i) {
    const T* row = from.at(first + i, head);
    if constexpr (std::is_same_v<T, F>) std::copy_n(row, from.width, to + i * step);
    else
      for (int64_t d = 0; d < from.width; ++d) to[i * step + d] = static_cast<F>(row[d]);
    std::fill(to + i * step + from.width, to + (i + 1) * step, F(0.0f));
  }
  std::fill(to + n * step, to + all * step, F(0.0f));
}

/// Stores `n` rows of a buffer as rows of a head.
template <class T, class C>
void store_rows(const C* from, int64_t step, int64_t n, C factor, const Rows<T>& to, int64_t head, int64_t first) {
  for (int64_t i = 0; i < n; ++i) {
    T* row = to.at(first + i, head);
    for (int64_t d = 0; d < to.width; ++d) row[d] = T(from[i * step + d] * factor);
  }
}

/// Keys or values of the heads of a job, in blocks that stay for its next block of queries as long as others do not need
/// their place.
template <class F>
class HeldRows {
 public:
  /// For `rows` rows in a sequence. Those that `are_added` up are searched for numbers that are not finite.
  HeldRows(int64_t rows, int64_t step, bool are_added) : step_(step), are_added_(are_added) {
    const int64_t needed = (rows + kKeys<F> - 1) / kKeys<F>, size = kKeys<F> * step * static_cast<int64_t>(sizeof(F));
    const int64_t blocks = std::clamp<int64_t>(needed, 1, std::max<int64_t>(1, kHeldBytes / size));
    for (int64_t i = 0; i < blocks; ++i) blocks_.push_back({Buffer<F>(kKeys<F> * step), nullptr, 0});
  }
  /// The rows of the block that begins at row `start` of `rows`, and rows of 0 up to a multiple of kBlockStep.
  template <class T>
  Buffer<F>& load(const Rows<const T>& from, int64_t head, int64_t start, int64_t rows) {
    Held& held = blocks_[static_cast<size_t>(start / kKeys<F> % static_cast<int64_t>(blocks_.size()))];
    const int64_t n = std::min(kKeys<F>, rows - start);
    if (held.from == from.at(start, head) && held.rows == n) return held.buffer;
    held.from = from.at(start, head);
    held.rows = n;
    load_rows(from, head, start, n, rounded_up(n, kBlockStep), held.buffer.data.get(), step_);
    if (are_added_) held.buffer.find_not_finite(n * step_);
    return held.buffer;
  }

 private:
  static constexpr int64_t kHeldBytes = int64_t{1} << 19;  // of keys, and of values
  struct Held {
    Buffer<F> buffer;
    const void* from;  // the first row, whose place tells blocks apart; null before the first
    int64_t rows;
  };
  int64_t step_;
  bool are_added_;
  std::vector<Held> blocks_;
};

/// Scratch for a block of queries of one head. Rows follow each other without gaps, as oneDNN multiplies fastest.
template <class F>
struct Block {
  using C = Sum<F>;

  Block(int64_t queries, int64_t all_keys, int64_t width, int64_t value_width, bool of_gradients = false)
      : step(padded<F>(width)), value_step(padded<F>(value_width)), query(product_rows<F>(queries) * step),
        keys(all_keys, step, of_gradients), values(all_keys, value_step, !of_gradients),
        sums(product_rows<F>(queries) * value_step), scores(product_rows<F>(queries) * kKeys<F>),
        rounded(std::is_same_v<F, C> ? 0 : product_rows<F>(queries) * kKeys<F>) {}
  /// The weights of row i, which are kept in the place of the scores where they are of the same type.
  F* weights(int64_t i) {
    if constexpr (std::is_same_v<F, C>) return scores.get() + i * columns;
    else return rounded.get() + i * columns;
  }

  int64_t step, value_step;
  int64_t columns = 0;  // of the scores of the keys that were scored last
  Buffer<F> query;      // [row][step]
  HeldRows<F> keys;     // [key][step]
  HeldRows<F> values;   // [key][value_step]
  Scratch<C> sums;      // [row][value_step]
  Scratch<C> scores;    // [row][columns]
  Scratch<F> rounded;   // the weights, [row][columns]
  C largest[kQueries], total[kQueries];
};

template <class T, class F>
void load_queries(const Attention<T>& a, int64_t h, int64_t first, int64_t rows, Block<F>& block) {
  load_rows(a.q, h, first, rows, product_rows<F>(rows), block.query.data.get(), block.step);
}

/// The products of keys [start, start + n) with the block's queries, from the first row that sees one of the keys, which
/// is returned, or a few rows before it.
template <class T, class F>
int64_t score(const Attention<T>& a, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
              Block<F>& block) {
  block.columns = rounded_up(n, kBlockStep);
  const Buffer<F>& keys = block.keys.load(a.k, a.kv_head(h), start, a.keys);
  const int64_t begin = std::min(a.first_query(first, start) - first, rows) / kBlockStep * kBlockStep;
  if (begin == rows) return begin;
  multiply_buffers<F>({product_rows<F>(rows - begin), block.columns, block.step, false, true},
                      block.query.data.get() + begin * block.step, keys.data.get(),
                      block.scores.get() + begin * block.columns, false);
  return begin;
}

/// Makes the products of query `i` of all with keys [start, start + n) its scores; -infinity for masked keys and from n
/// on. Those at and after the number that is returned, which is a multiple of kBlockStep, are all -infinity, and not
/// stored.
template <class T, class C>
int64_t finish_scores(const Attention<T>& a, int64_t h, int64_t i, int64_t start, int64_t n, C* scores) {
  const int64_t visible = std::clamp<int64_t>(a.visible(i) - start, 0, n), width = rounded_up(visible, kBlockStep);
  const C scale = static_cast<C>(a.scale);
  for (int64_t j = 0; j < width; ++j) scores[j] *= scale;
  if (a.mask.data != nullptr) {
    const T* mask = a.mask.at(h, i) + start;
    for (int64_t j = 0; j < visible; ++j) scores[j] += static_cast<C>(mask[j]);
    // Also where the score was not finite. A loop of its own vectorises.
    for (int64_t j = 0; j < visible; ++j) scores[j] = static_cast<C>(mask[j]) == lowest<C>() ? lowest<C>() : scores[j];
  }
  std::fill(scores + visible, scores + width, lowest<C>());
  return width;
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ATTENTION_BLOCK_H
