// CPU kernels that draw random numbers: uniform, gaussian, exponential, randint, bernoulli, randperm, dropout.
// Each number depends on the global index of its element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/random.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <cstring>
#include <vector>

#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/random_runs.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlocks = 64;  // blocks of four words that are drawn at once

#if HWY_TARGET != HWY_SCALAR
using D = hn::CappedTag<uint32_t, 16>;
using V = hn::Vec<D>;

/// The products with one factor, whose lower and upper halves they are.
struct WideProduct {
  V low, high;
  HWY_INLINE WideProduct(V x, V factor) {
    const D d;
    const hn::RepartitionToWide<D> wide;
    const auto even = hn::MulEven(x, factor);
    const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))), factor);
    low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
    high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  }
};

/// The state of as many blocks as a vector has lanes.
struct Counters {
  V c0, c1, c2, c3;

  HWY_INLINE Counters(const uint64_t* blocks, RandomKey key) {
    const D d;
    uint32_t low[16], high[16];
    for (size_t j = 0; j < hn::Lanes(d); ++j) {
      low[j] = static_cast<uint32_t>(blocks[j]);
      high[j] = static_cast<uint32_t>(blocks[j] >> 32);
    }
    c0 = hn::LoadU(d, low);
    c1 = hn::LoadU(d, high);
    c2 = hn::Set(d, static_cast<uint32_t>(key.offset));
    c3 = hn::Set(d, static_cast<uint32_t>(key.offset >> 32));
  }
  HWY_INLINE void round(V k0, V k1) {
    const D d;
    const WideProduct p0(c0, hn::Set(d, 0xD2511F53u)), p1(c2, hn::Set(d, 0xCD9E8D57u));
    c0 = hn::Xor(hn::Xor(p1.high, c1), k0);
    c1 = p1.low;
    c2 = hn::Xor(hn::Xor(p0.high, c3), k1);
    c3 = p0.low;
  }
  HWY_INLINE void store(uint32_t* words) const { hn::StoreInterleaved4(c0, c1, c2, c3, D(), words); }
};

#endif

/// The words of `count` blocks from `first` on (see philox), at most kBlocks. They are drawn two vectors at a time,
/// whose multiplications do not wait for each other; `words` has room for kBlocks blocks.
void draw_blocks(RandomKey key, uint64_t first, int64_t count, uint32_t* words) {
  const int64_t alone = HWY_TARGET == HWY_SCALAR || count < 4 ? count : 0;
  for (int64_t i = 0; i < alone; ++i) {
    const std::array<uint32_t, 4> block = philox(key, first + static_cast<uint64_t>(i));
    std::copy(block.begin(), block.end(), words + 4 * i);
  }
#if HWY_TARGET != HWY_SCALAR
  if (alone > 0) return;
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t begin = 0; begin < count; begin += 2 * lanes) {
    uint64_t blocks[32];
    for (int64_t j = 0; j < 2 * lanes; ++j) blocks[j] = first + static_cast<uint64_t>(begin + j);
    Counters a(blocks, key), b(blocks + lanes, key);
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      a.round(hn::Set(d, k0), hn::Set(d, k1));
      b.round(hn::Set(d, k0), hn::Set(d, k1));
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    a.store(words + 4 * begin);
    b.store(words + 4 * (begin + lanes));
  }
#endif
}

/// Calls use(i, count, words) for runs of the words first .. first + n - 1: `words` are those from
/// first + i on. If `first` and `n` are multiples of 2 or 4, so is each i.
template <class Use>
void for_words(RandomKey key, uint64_t first, int64_t n, const Use& use) {
  for (int64_t i = 0; i < n;) {
    const uint64_t at = first + static_cast<uint64_t>(i);
    const auto skip = static_cast<int64_t>(at & 3);
    uint32_t words[4 * kBlocks];
    const int64_t count = std::min(4 * kBlocks - skip, n - i);
    draw_blocks(key, at >> 2, (skip + count + 3) / 4, words);
    use(i, count, words + skip);
    i += count;
  }
}

/// Arithmetic is in double for double, else in float.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls use(i, count, fractions) for runs of the uniform numbers first .. first + n - 1 in [0, 1): with 53 bits
/// from two words for double, with 24 bits from one word for the others. If `first` and `n` are even, so is each i.
template <class T, class Use>
void for_fractions(RandomKey key, uint64_t first, int64_t n, const Use& use) {
  Real<T> fractions[4 * kBlocks];
  if constexpr (std::is_same_v<T, double>) {
    for_words(key, 2 * first, 2 * n, [&](int64_t i, int64_t count, const uint32_t* words) {
      for (int64_t j = 0; j < count / 2; ++j) {
        const uint64_t bits = uint64_t{words[2 * j]} << 32 | words[2 * j + 1];
        fractions[j] = static_cast<double>(static_cast<int64_t>(bits >> 11)) * 0x1p-53;
      }
      use(i / 2, count / 2, fractions);
    });
  } else {
    for_words(key, first, n, [&](int64_t i, int64_t count, const uint32_t* words) {
      for (int64_t j = 0; j < count; ++j) fractions[j] = uniform01(words[j]);
      use(i, count, fractions);
    });
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
    for_fractions<T>(key, static_cast<uint64_t>(global), n, [&](int64_t i, int64_t count, const R* fractions) {
      T* to = data + local + i;
      for (int64_t j = 0; j < count; ++j) {
        // Where the range overflows, half of it does not.
        const T value = T(wide ? R(2) * (low / 2 + (high / 2 - low / 2) * fractions[j]) : low + range * fractions[j]);
        // rounding may return max, which is excluded
        to[j] = static_cast<R>(value) < high ? value : T(low);
      }
    });
  });
}

#define SHARD_FORMULA_INLINE HWY_INLINE
#include "shard/kernels/formulas/random.inc"
#include "shard/kernels/formulas/random_double.inc"
#undef SHARD_FORMULA_INLINE

/// Box-Muller: element e uses the uniform numbers 2e and 2e + 1.
template <class T>
void gaussian(const OpContext& ctx, float mean, float std, int seed, RandomKey drawn, DenseTensor& out) {
  using R = Real<T>;
  const RandomKey key = key_of(seed, drawn);
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for_fractions<T>(key, 2 * static_cast<uint64_t>(global), 2 * n, [&](int64_t i, int64_t count, const R* fractions) {
      T* to = data + local + i / 2;
      for (int64_t j = 0; j < count / 2; ++j) {
        const R radius = std::sqrt(R(-2) * log_of_fraction(R(1) - fractions[2 * j]));
        to[j] = T(static_cast<R>(mean) + static_cast<R>(std) * (radius * cos_of_turns(fractions[2 * j + 1])));
      }
    });
  });
}

/// The offset in the shard of the element whose row-major index in the whole tensor is `at`, or -1 where another rank
/// has it.
int64_t offset_of(const Box& box, const Dims& dims, int64_t at) {
  int64_t offset = 0, stride = 1;
  for (int d = dims.rank() - 1; d >= 0; --d) {
    const int64_t place = at % box.global[d] - box.begin[d];
    if (place < 0 || place >= dims[d]) return -1;
    offset += place * stride;
    stride *= dims[d];
    at /= box.global[d];
  }
  return offset;
}

template <class T>
void uniform_inplace(const OpContext& ctx, const DenseTensor&, float min, float max, int seed, int diag_num,
                     int diag_step, float diag_val, RandomKey drawn, DenseTensor& out) {
  uniform<T>(ctx, Scalar(min), Scalar(max), seed, drawn, out);
  const Box box = ctx.output_box(0, out);
  for (int64_t i = 0; i < diag_num; ++i) {
    const int64_t offset = offset_of(box, out.dims(), i * (int64_t{diag_step} + 1));
    if (offset >= 0) out.data<T>()[offset] = T(static_cast<Real<T>>(diag_val));
  }
}

template <class T>
void gaussian_inplace(const OpContext& ctx, const DenseTensor&, float mean, float std, int seed, RandomKey drawn,
                      DenseTensor& out) {
  gaussian<T>(ctx, mean, std, seed, drawn, out);
}

/// By the inverse of the distribution function: -log(1 - u) / lam.
template <class T>
void exponential(const OpContext& ctx, const DenseTensor&, float lam, RandomKey key, DenseTensor& out) {
  using R = Real<T>;
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for_fractions<T>(key, static_cast<uint64_t>(global), n, [&](int64_t i, int64_t count, const R* fractions) {
      T* to = data + local + i;
      for (int64_t j = 0; j < count; ++j)
        to[j] = T((R(0) - log_of_fraction(R(1) - fractions[j])) / static_cast<R>(lam));
    });
  });
}

/// Element e uses the words 2e and 2e + 1 of one evaluation.
template <class T>
void randint(const OpContext& ctx, int low, int high, int seed, RandomKey drawn, DenseTensor& out) {
  const RandomKey key = key_of(seed, drawn);
  const auto range = static_cast<uint64_t>(static_cast<int64_t>(high) - low);
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for_words(key, 2 * static_cast<uint64_t>(global), 2 * n, [&](int64_t i, int64_t count, const uint32_t* words) {
      T* to = data + local + i / 2;
      for (int64_t j = 0; j < count / 2; ++j)
        to[j] = static_cast<T>(low + static_cast<int64_t>(below(range, words[2 * j], words[2 * j + 1])));
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
    for_fractions<T>(key, static_cast<uint64_t>(global), n, [&](int64_t i, int64_t count, const Real<T>* fractions) {
      for (int64_t j = local + i; j < local + i + count; ++j)
        to[j] = T(*fractions++ < static_cast<Real<T>>(p[j]) ? 1.0f : 0.0f);
    });
  });
}

template <class T>
void randperm(const OpContext& ctx, RandomKey key, DenseTensor& out) {
  const Box box = ctx.output_box(0, out);
  const auto n = static_cast<uint64_t>(box.global[0]), first = static_cast<uint64_t>(box.begin[0]);
  const auto draw = [key](uint64_t range, uint64_t block) {
    const std::array<uint32_t, 4> words = philox(key, block);
    return below(range, words[0], words[1]);
  };
  T* data = out.data<T>();
  if (n <= kPermutationTable) {
    std::vector<uint32_t> table(n);
    shuffle(draw, n, table.data());
    for (int64_t i = 0; i < out.numel(); ++i) data[i] = static_cast<T>(table[first + static_cast<uint64_t>(i)]);
    return;
  }
  const PermutationNetwork network = permutation_network(n);
  constexpr int64_t kCost = 256;
  parallel_for(out.numel(), kCost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i] = static_cast<T>(network.at(draw, first + static_cast<uint64_t>(i)));
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
    for_words(key, static_cast<uint64_t>(global), n, [&](int64_t i, int64_t count, const uint32_t* words) {
      const WideLine<T> line(from + local + i, count);
      const C* const x_run = line.get();
      uint8_t* kept_run = kept + local + i;
      for (int64_t j = 0; j < count; ++j) kept_run[j] = uniform01(words[j]) >= p_float ? 1 : 0;
      write_line(to + local + i, count, [=](int64_t j) {
        const C value = x_run[j] * factor;
        return uniform01(words[j]) >= p_float ? value : C(0);
      });
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
    constexpr int64_t kLine = 1024;
    for (int64_t first = begin; first < end; first += kLine) {
      const int64_t n = std::min(kLine, end - first);
      const WideLine<T> line(from + first, n);
      const C* const grads = line.get();
      const uint8_t* const keeps = kept + first;
      write_line(to + first, n, [=](int64_t i) {
        const C value = grads[i] * factor;
        return keeps[i] != 0 ? value : C(0);
      });
    }
  });
}

void register_random_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("uniform", kBackend, dtype_of<T>, &uniform<T>);
    register_kernel("gaussian", kBackend, dtype_of<T>, &gaussian<T>);
    register_kernel("uniform_inplace", kBackend, dtype_of<T>, &uniform_inplace<T>);
    register_kernel("gaussian_inplace", kBackend, dtype_of<T>, &gaussian_inplace<T>);
    register_kernel("exponential", kBackend, dtype_of<T>, &exponential<T>);
    register_kernel("bernoulli", kBackend, dtype_of<T>, &bernoulli<T>);
    register_kernel("dropout", kBackend, dtype_of<T>, &dropout<T>);
    register_kernel("dropout_grad", kBackend, dtype_of<T>, &dropout_grad<T>);
  });
  for_types(Types<int32_t, int64_t>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("randint", kBackend, dtype_of<T>, &randint<T>);
    register_kernel("randperm", kBackend, dtype_of<T>, &randperm<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_random_for_target);
void register_random() { HWY_DYNAMIC_DISPATCH(register_random_for_target)(); }
}  // namespace shard::cpu
#endif
