// CPU kernels that draw random numbers: uniform, gaussian, randint, bernoulli, randperm, dropout.
// Each number depends on the global index of its element.
#include <vector>

#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// Calls body(first local element, first global element, n) for each contiguous run of the local
/// shard `dims` of `box`.
template <class Body>
void for_runs(const Box& box, const Dims& dims, const Body& body) {
  const int rank = dims.rank();
  const int64_t width = rank == 0 ? 1 : dims[rank - 1];
  const int64_t rows = width == 0 ? 0 : dims.numel(0, std::max(rank - 1, 0));
  // One run per row and chunk: enough work for a thread, without assigning a long 1-D tensor to a
  // single thread.
  constexpr int64_t kRun = 4096;
  const int64_t chunks = (width + kRun - 1) / kRun;
  parallel_for(rows * chunks, 16 * std::min(width, kRun), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % chunks * kRun;
      int64_t row = i / chunks;
      const int64_t local = row * width + column;
      int64_t global = rank == 0 ? 0 : box.begin[rank - 1] + column;
      int64_t stride = rank == 0 ? 1 : box.global[rank - 1];
      for (int d = rank - 2; d >= 0; --d) {
        global += (box.begin[d] + row % dims[d]) * stride;
        stride *= box.global[d];
        row /= dims[d];
      }
      body(local, global, std::min(kRun, width - column));
    }
  });
}

/// Calls use(i, word) for the words first .. first + n - 1, of which one evaluation produces four.
template <class Use>
void for_words(RandomKey key, uint64_t first, int64_t n, const Use& use) {
  for (int64_t i = 0; i < n;) {
    const uint64_t at = first + static_cast<uint64_t>(i);
    const std::array<uint32_t, 4> words = philox(key, at >> 2);
    for (uint64_t k = at & 3; k < 4 && i < n; ++k, ++i) use(i, words[k]);
  }
}

RandomKey key_of(int seed, RandomKey drawn) { return seed != 0 ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn; }

/// Arithmetic is in double for double, else in float.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls use(i, fraction) for the uniform numbers first .. first + n - 1 in [0, 1): with 53 bits
/// from two words for double, with 24 bits from one word for the others.
template <class T, class Use>
void for_fractions(RandomKey key, uint64_t first, int64_t n, const Use& use) {
  if constexpr (std::is_same_v<T, double>) {
    uint64_t high = 0;
    for_words(key, 2 * first, 2 * n, [&](int64_t i, uint32_t word) {
      if (i % 2 == 0) high = word;
      else use(i / 2, static_cast<double>((high << 32 | word) >> 11) * 0x1p-53);
    });
  } else {
    for_words(key, first, n, [&](int64_t i, uint32_t word) { use(i, uniform01(word)); });
  }
}

template <class T>
void uniform(const OpContext& ctx, const Scalar& min, const Scalar& max, int seed, RandomKey drawn, DenseTensor& out) {
  using R = Real<T>;
  const RandomKey key = key_of(seed, drawn);
  const R low = min.to<R>();
  const R high = max.to<R>();
  const R range = high - low;
  const bool wide = std::isinf(range) && !std::isinf(low) && !std::isinf(high);
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for_fractions<T>(key, static_cast<uint64_t>(global), n, [&](int64_t i, R fraction) {
      // Where the range overflows, half of it does not.
      const T value = T(wide ? R(2) * (low / 2 + (high / 2 - low / 2) * fraction) : low + range * fraction);
      // rounding may return max, which is excluded
      data[local + i] = static_cast<R>(value) < high ? value : T(low);
    });
  });
}

/// Box-Muller: element e uses the uniform numbers 2e and 2e + 1.
template <class T>
void gaussian(const OpContext& ctx, float mean, float std, int seed, RandomKey drawn, DenseTensor& out) {
  using R = Real<T>;
  const RandomKey key = key_of(seed, drawn);
  constexpr R kTwoPi = static_cast<R>(6.283185307179586);
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    R radius = 0;
    for_fractions<T>(key, 2 * static_cast<uint64_t>(global), 2 * n, [&](int64_t i, R fraction) {
      if (i % 2 == 0) radius = std::sqrt(R(-2) * std::log(R(1) - fraction));
      else data[local + i / 2] = T(static_cast<R>(mean) + static_cast<R>(std) * (radius * std::cos(kTwoPi * fraction)));
    });
  });
}

/// The upper part of (high, low) * range, which is in [0, range): its bias is at most range *
/// 2^-64. range <= 2^32.
uint64_t below(uint64_t range, uint64_t high, uint64_t low) { return (high * range + (low * range >> 32)) >> 32; }

/// Element e uses the words 2e and 2e + 1 of one evaluation.
template <class T>
void randint(const OpContext& ctx, int low, int high, int seed, RandomKey drawn, DenseTensor& out) {
  const RandomKey key = key_of(seed, drawn);
  const auto range = static_cast<uint64_t>(static_cast<int64_t>(high) - low);
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    uint32_t first = 0;
    for_words(key, 2 * static_cast<uint64_t>(global), 2 * n, [&](int64_t i, uint32_t word) {
      if (i % 2 == 0) first = word;
      else data[local + i / 2] = static_cast<T>(low + static_cast<int64_t>(below(range, first, word)));
    });
  });
}

template <class T>
void bernoulli(const OpContext& ctx, const DenseTensor& x, RandomKey key, DenseTensor& out) {
  const T* p = x.data<T>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto value = static_cast<Real<T>>(p[i]);
    if (value >= 0 && value <= 1) continue;
    fail_check(ErrorCode::invalid_argument,
               "[{}] argument 'x' has the probability {}, which must be from 0 to 1; clip it (element {} of {})",
               ctx.op, value, index_text(ctx, 0, x, i), global_text(ctx, 0, x));
  }
  T* to = out.data<T>();
  for_runs(ctx.input_box(0, x), x.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for_fractions<T>(key, static_cast<uint64_t>(global), n, [&](int64_t i, Real<T> fraction) {
      to[local + i] = T(fraction < static_cast<Real<T>>(p[local + i]) ? 1.0f : 0.0f);
    });
  });
}

/// A permutation of [0, n), evaluated index by index. A small one is a table that every rank
/// computes alike, by Fisher and Yates' shuffle: all n! orders are equally likely. A Feistel
/// network would not be uniform there, because it has too few round keys: for n = 5 some orders
/// occurred twice as often as others. A large one is such a network of eight rounds, on pairs
/// (left, right) below (rows, columns), the smallest near-square grid that holds n (Black and
/// Rogaway, CT-RSA 2002); a result outside [0, n) goes through the network again.
class Permutation {
 public:
  Permutation(RandomKey key, uint64_t n) : key_(key), n_(n), rows_(1) {
    if (n <= kTable) shuffle();
    while (rows_ * rows_ < n) ++rows_;
    columns_ = (n + rows_ - 1) / rows_;
  }
  uint64_t operator()(uint64_t index) const {
    if (!table_.empty()) return table_[index];
    do index = once(index);
    while (index >= n_);
    return index;
  }

 private:
  static constexpr uint64_t kTable = 4096;
  static constexpr uint64_t kRounds = 8;

  void shuffle() {
    table_.reserve(n_);
    for (uint64_t i = 0; i < n_; ++i) {
      const std::array<uint32_t, 4> words = philox(key_, i);
      const uint64_t other = below(i + 1, words[0], words[1]);
      table_.push_back(static_cast<uint32_t>(i));
      std::swap(table_[i], table_[other]);
    }
  }
  uint64_t once(uint64_t index) const {
    uint64_t left = index / columns_;
    uint64_t right = index % columns_;
    for (uint64_t round = 0; round < kRounds; round += 2) {
      left = (left + shift(round, right, rows_)) % rows_;
      right = (right + shift(round + 1, left, columns_)) % columns_;
    }
    return left * columns_ + right;
  }
  uint64_t shift(uint64_t round, uint64_t value, uint64_t range) const {
    const std::array<uint32_t, 4> words = philox(key_, round << 32 | value);
    return below(range, words[0], words[1]);
  }

  RandomKey key_;
  uint64_t n_;
  uint64_t rows_;
  uint64_t columns_ = 1;
  std::vector<uint32_t> table_;  // of a small permutation
};

template <class T>
void randperm(const OpContext& ctx, RandomKey key, DenseTensor& out) {
  const Box box = ctx.output_box(0, out);
  const Permutation permutation(key, static_cast<uint64_t>(box.global[0]));
  T* data = out.data<T>();
  constexpr int64_t kCost = 256;
  parallel_for(out.numel(), kCost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      data[i] = static_cast<T>(permutation(static_cast<uint64_t>(box.begin[0] + i)));
  });
}

RandomKey dropout_key(const DenseTensor& seed_tensor, int seed, bool fix_seed, RandomKey drawn) {
  if (seed_tensor.defined()) {
    const bool wide = seed_tensor.dtype() == DType::int64;
    return {static_cast<uint64_t>(wide ? *seed_tensor.data<int64_t>() : *seed_tensor.data<int32_t>()), 0};
  }
  return fix_seed ? RandomKey{static_cast<uint64_t>(seed), 0} : key_of(seed, drawn);
}

template <class T>
void dropout(const OpContext& ctx, const DenseTensor& x, const DenseTensor& seed_tensor, const Scalar& p, bool is_test,
             const std::string& mode, int seed, bool fix_seed, RandomKey drawn, DenseTensor& out, DenseTensor& mask) {
  using C = Compute<T>;
  const bool upscale = mode == "upscale_in_train";
  const C keep = static_cast<C>(1.0 - p.to<double>());
  const T* from = x.data<T>();
  T* to = out.data<T>();
  uint8_t* kept = mask.data<uint8_t>();
  if (is_test) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      to[i] = upscale ? from[i] : T(static_cast<C>(from[i]) * keep);
      kept[i] = 1;
    }
    return;
  }
  const RandomKey key = dropout_key(seed_tensor, seed, fix_seed, drawn);
  const C factor = upscale && keep != C(0) ? C(1) / keep : C(1);
  const float p_float = p.to<float>();
  for_runs(ctx.input_box(0, x), x.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for_words(key, static_cast<uint64_t>(global), n, [&](int64_t i, uint32_t word) {
      const bool keeps = uniform01(word) >= p_float;
      to[local + i] = keeps ? T(static_cast<C>(from[local + i]) * factor) : T(C(0));
      kept[local + i] = keeps ? 1 : 0;
    });
  });
}

/// The factor by which dropout multiplied x where it kept an element; nothing is drawn.
template <class T>
void dropout_grad(const OpContext&, const DenseTensor& mask, const DenseTensor& out_grad, const Scalar& p, bool is_test,
                  const std::string& mode, DenseTensor& x_grad) {
  using C = Compute<T>;
  const C keep = static_cast<C>(1.0 - p.to<double>());
  const bool upscale = mode == "upscale_in_train";
  const C factor = upscale == is_test ? C(1) : is_test ? keep : keep == C(0) ? C(1) : C(1) / keep;
  const uint8_t* kept = mask.data<uint8_t>();
  const T* from = out_grad.data<T>();
  T* to = x_grad.data<T>();
  parallel_for(out_grad.numel(), 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = kept[i] != 0 ? T(static_cast<C>(from[i]) * factor) : T(C(0));
  });
}

}  // namespace

void register_random() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("uniform", kBackend, dtype_of<T>, &uniform<T>);
    register_kernel("gaussian", kBackend, dtype_of<T>, &gaussian<T>);
    register_kernel("bernoulli", kBackend, dtype_of<T>, &bernoulli<T>);
    register_kernel("dropout", kBackend, dtype_of<T>, &dropout<T>);
    register_kernel("dropout_grad", kBackend, dtype_of<T>, &dropout_grad<T>);
  });
  for_types(Types<int32_t, int64_t>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("randint", kBackend, dtype_of<T>, &randint<T>);
    register_kernel("randperm", kBackend, dtype_of<T>, &randperm<T>);
  });
}

}  // namespace shard::cpu
