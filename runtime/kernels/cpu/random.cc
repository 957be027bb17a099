// CPU kernels that draw random numbers: uniform, gaussian, dropout. Each number belongs to the global index of its element.
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// Calls body(first local element, first global element, n) for each contiguous run of the piece `dims` of `box`.
template <class Body>
void for_runs(const Box& box, const Dims& dims, const Body& body) {
  const int rank = dims.rank();
  const int64_t width = rank == 0 ? 1 : dims[rank - 1];
  const int64_t rows = width == 0 ? 0 : dims.numel(0, std::max(rank - 1, 0));
  // One run per row and chunk: enough work for a thread without leaving a long 1-D tensor to one of them.
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

/// Calls use(i, word) for the words first .. first + n - 1, four of which come from one evaluation.
template <class Use>
void for_words(RandomKey key, uint64_t first, int64_t n, const Use& use) {
  for (int64_t i = 0; i < n;) {
    const uint64_t at = first + static_cast<uint64_t>(i);
    const std::array<uint32_t, 4> words = philox(key, at >> 2);
    for (uint64_t k = at & 3; k < 4 && i < n; ++k, ++i) use(i, words[k]);
  }
}

RandomKey key_of(int seed, RandomKey drawn) { return seed != 0 ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn; }

/// Arithmetic in double for double, whose numbers have 32 random bits, else in float with 24.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Real<T> fraction(uint32_t word) {
  if constexpr (std::is_same_v<T, double>) return static_cast<double>(word) * 0x1p-32;
  else return uniform01(word);
}

template <class T>
void uniform(const OpContext& ctx, const Scalar& min, const Scalar& max, int seed, RandomKey drawn, DenseTensor& out) {
  using R = Real<T>;
  const RandomKey key = key_of(seed, drawn);
  const R low = min.to<R>();
  const R range = max.to<R>() - low;
  const R high = max.to<R>();
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for_words(key, static_cast<uint64_t>(global), n, [&](int64_t i, uint32_t word) {
      const T value = T(low + range * fraction<T>(word));
      data[local + i] = static_cast<R>(value) < high ? value : T(low);  // rounding may reach max, which is outside
    });
  });
}

/// Box-Muller: the words 2e and 2e + 1 of one evaluation give element e.
template <class T>
void gaussian(const OpContext& ctx, float mean, float std, int seed, RandomKey drawn, DenseTensor& out) {
  using R = Real<T>;
  const RandomKey key = key_of(seed, drawn);
  constexpr R kTwoPi = static_cast<R>(6.283185307179586);
  T* data = out.data<T>();
  for_runs(ctx.output_box(0, out), out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    R radius = 0;
    for_words(key, 2 * static_cast<uint64_t>(global), 2 * n, [&](int64_t i, uint32_t word) {
      if (i % 2 == 0) radius = std::sqrt(R(-2) * std::log(R(1) - fraction<T>(word)));
      else data[local + i / 2] = T(static_cast<R>(mean) + static_cast<R>(std) * (radius * std::cos(kTwoPi * fraction<T>(word))));
    });
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

}  // namespace

void register_random() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("uniform", kBackend, dtype_of<T>, &uniform<T>);
    register_kernel("gaussian", kBackend, dtype_of<T>, &gaussian<T>);
    register_kernel("dropout", kBackend, dtype_of<T>, &dropout<T>);
  });
}

}  // namespace shard::cpu
