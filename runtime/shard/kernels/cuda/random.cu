// Random numbers on CUDA, of the same bits as on the CPU: uniform, gaussian, exponential, bernoulli, randint, randperm. Compiled without fused operations.
#include "shard/kernels/cuda/convert.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/map.cuh"
#include "shard/kernels/cuda/philox.cuh"

namespace shard::cuda {
namespace {

__device__ inline float select(bool condition, float a, float b) { return condition ? a : b; }
#include "shard/kernels/formulas/random.inc"
#include "shard/kernels/formulas/random_double.inc"

/// Arithmetic is in double for double, else in float.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Uniform number `i` in [0, 1): with 53 bits from two words for double, with 24 bits from one word for the others.
template <class R>
__device__ R fraction(PhiloxWords& words, uint64_t i) {
  if constexpr (std::is_same_v<R, double>) {
    const uint64_t bits = uint64_t{words.at(2 * i)} << 32 | words.at(2 * i + 1);
    return static_cast<double>(static_cast<int64_t>(bits >> 11)) * 0x1p-53;
  } else {
    return uniform_fraction(words.at(i));
  }
}

/// Elements that are drawn by their index in the whole tensor.
template <class T, class Draw>
struct DrawBody {
  T* out;
  Draw draw;
  RandomKey key;
  GlobalIndex index;

  template <int N>
  __device__ void run(int64_t i) const {
    PhiloxWords words(key);
    T values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = draw(words, static_cast<uint64_t>(index.of(i * N + k)));
    store_elements<N>(out, i, values);
  }
};

template <class D, class Draw>
void draw_elements(const OpContext& ctx, const Draw& draw, int seed, RandomKey drawn, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const RandomKey key = seed != 0 ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn;
  map(ctx, out.numel(), DrawBody<D, Draw>{elements<D>(out), draw, key, {ctx.output_box(0, out), out.dims()}},
      elements<const D>(out));
}

template <class T>
struct Uniform {
  using R = Real<T>;
  R low, high;
  bool wide;  // the range overflows, but half of it does not
  __device__ T operator()(PhiloxWords& words, uint64_t element) const {
    const R f = fraction<R>(words, element);
    const T value = round_to<T>(wide ? R(2) * (low / 2 + (high / 2 - low / 2) * f) : low + (high - low) * f);
    return load(value) < high ? value : round_to<T>(low);  // rounding may return max, which is excluded
  }
};

template <class D>
Uniform<D> uniform_between(Real<D> low, Real<D> high) {
  return {low, high, std::isinf(high - low) && !std::isinf(low) && !std::isinf(high)};
}

template <class T>
void uniform(const OpContext& ctx, const Scalar& min, const Scalar& max, int seed, RandomKey drawn, DenseTensor& out) {
  using D = device_t<T>;
  draw_elements<D>(ctx, uniform_between<D>(min.to<Real<D>>(), max.to<Real<D>>()), seed, drawn, out);
}

/// Uniform numbers but for `count` elements that are `step` + 1 apart, which are `value`.
template <class T>
struct UniformBesideDiagonal {
  Uniform<T> uniform;
  uint64_t count, step;
  T value;
  __device__ T operator()(PhiloxWords& words, uint64_t element) const {
    return element % (step + 1) == 0 && element / (step + 1) < count ? value : uniform(words, element);
  }
};

template <class T>
void uniform_inplace(const OpContext& ctx, const DenseTensor&, float min, float max, int seed, int diag_num,
                     int diag_step, float diag_val, RandomKey drawn, DenseTensor& out) {
  using D = device_t<T>;
  using R = Real<D>;
  const UniformBesideDiagonal<D> draw{uniform_between<D>(static_cast<R>(min), static_cast<R>(max)),
                                      static_cast<uint64_t>(diag_num), static_cast<uint64_t>(diag_step),
                                      round_to<D>(static_cast<R>(diag_val))};
  draw_elements<D>(ctx, draw, seed, drawn, out);
}

/// Box-Muller: element e uses the uniform numbers 2e and 2e + 1.
template <class T>
struct Gaussian {
  using R = Real<T>;
  R mean, std;
  __device__ T operator()(PhiloxWords& words, uint64_t element) const {
    const R radius = ::sqrt(R(-2) * log_of_fraction(R(1) - fraction<R>(words, 2 * element)));
    return round_to<T>(mean + std * (radius * cos_of_turns(fraction<R>(words, 2 * element + 1))));
  }
};

template <class T>
void gaussian(const OpContext& ctx, float mean, float std, int seed, RandomKey drawn, DenseTensor& out) {
  using D = device_t<T>;
  using R = Real<T>;
  draw_elements<D>(ctx, Gaussian<D>{static_cast<R>(mean), static_cast<R>(std)}, seed, drawn, out);
}

template <class T>
void gaussian_inplace(const OpContext& ctx, const DenseTensor&, float mean, float std, int seed, RandomKey drawn,
                      DenseTensor& out) {
  gaussian<T>(ctx, mean, std, seed, drawn, out);
}

/// By the inverse of the distribution function: -log(1 - u) / lam.
template <class T>
struct Exponential {
  using R = Real<T>;
  R lam;
  __device__ T operator()(PhiloxWords& words, uint64_t element) const {
    return round_to<T>((R(0) - log_of_fraction(R(1) - fraction<R>(words, element))) / lam);
  }
};

template <class T>
void exponential(const OpContext& ctx, const DenseTensor&, float lam, RandomKey key, DenseTensor& out) {
  using D = device_t<T>;
  draw_elements<D>(ctx, Exponential<D>{static_cast<Real<T>>(lam)}, 0, key, out);
}

/// Describes a probability that is not from 0 to 1.
struct alignas(8) ProbabilityRange {
  const char* op;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t bits) const {
    double value;
    memcpy(&value, &bits, sizeof(value));
    const std::string text =
        place.dtype == DType::float64 ? fmt::format("{}", value) : fmt::format("{}", static_cast<float>(value));
    fail_check(ErrorCode::invalid_argument,
               "[{}] argument 'x' has the probability {}, which must be from 0 to 1; clip it (element {} of {})", op,
               text, place.index_text(position), place.global_text());
  }
};

/// 1 with the probability of each element.
template <class T>
struct BernoulliBody {
  using IsDataCheck = void;
  const T* p;
  T* out;
  RandomKey key;
  GlobalIndex index;
  DataCheck<ProbabilityRange> check;

  template <int N>
  __device__ void run(int64_t i) const {
    using R = Real<T>;
    PhiloxWords words(key);
    R chances[N];
    load_numbers<N>(p, i, chances);
    R results[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      results[k] = fraction<R>(words, static_cast<uint64_t>(index.of(i * N + k))) < chances[k] ? R(1) : R(0);
      if (chances[k] >= 0 && chances[k] <= 1) continue;
      const double value = chances[k];
      int64_t bits;
      memcpy(&bits, &value, sizeof(bits));
      check.report(i * N + k, bits);
    }
    store_numbers<N>(out, i, results);
  }
};

template <class T>
void bernoulli(const OpContext& ctx, const DenseTensor& x, RandomKey key, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const DataCheck<ProbabilityRange> check(ProbabilityRange{ctx.op, ArgumentPlace(ctx, 0, x)});
  map(ctx, out.numel(),
      BernoulliBody<D>{elements<const D>(x), elements<D>(out), key, {ctx.input_box(0, x), x.dims()}, check},
      elements<const D>(x), elements<const D>(out));
}

/// Element e uses the words 2e and 2e + 1.
template <class T>
struct Integer {
  int low;
  uint64_t range;
  __device__ T operator()(PhiloxWords& words, uint64_t element) const {
    const uint32_t high_word = words.at(2 * element), low_word = words.at(2 * element + 1);
    return static_cast<T>(low + static_cast<int64_t>(below(range, high_word, low_word)));
  }
};

template <class T>
void randint(const OpContext& ctx, int low, int high, int seed, RandomKey drawn, DenseTensor& out) {
  const auto range = static_cast<uint64_t>(static_cast<int64_t>(high) - low);
  draw_elements<T>(ctx, Integer<T>{low, range}, seed, drawn, out);
}

/// Draws a number below a range, by the block of random words.
struct DrawBelow {
  RandomKey key;
  __device__ uint64_t operator()(uint64_t range, uint64_t block) const {
    PhiloxWords words(key);
    return below(range, words.at(4 * block), words.at(4 * block + 1));
  }
};

__global__ void shuffle_kernel(DrawBelow draw, uint64_t n, uint32_t* table) { shuffle(draw, n, table); }

template <class T>
__global__ void read_table_kernel(const uint32_t* table, int64_t first, int64_t count, T* out) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>())
    out[i] = static_cast<T>(table[first + i]);
}

template <class T>
__global__ void permute_kernel(PermutationNetwork network, DrawBelow draw, uint64_t first, int64_t count, T* out) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>())
    out[i] = static_cast<T>(network.at(draw, first + static_cast<uint64_t>(i)));
}

template <class T>
void randperm(const OpContext& ctx, RandomKey key, DenseTensor& out) {
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const Box box = ctx.output_box(0, out);
  const auto n = static_cast<uint64_t>(box.global[0]);
  if (n > kPermutationTable) {
    launch(ctx, permute_kernel<T>, grid_for(out.numel(), 256), 256, permutation_network(n), DrawBelow{key},
           static_cast<uint64_t>(box.begin[0]), out.numel(), elements<T>(out));
    return;
  }
  const Scratch table(n * sizeof(uint32_t));  // one thread shuffles, because each step needs the one before
  launch(ctx, shuffle_kernel, 1, 1, DrawBelow{key}, n, static_cast<uint32_t*>(table.data()));
  launch(ctx, read_table_kernel<T>, grid_for(out.numel(), 256), 256, static_cast<const uint32_t*>(table.data()),
         box.begin[0], out.numel(), elements<T>(out));
}

}  // namespace

void register_random(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("uniform", backend, dtype_of<T>, &uniform<T>);
    register_kernel("gaussian", backend, dtype_of<T>, &gaussian<T>);
    register_kernel("gaussian_inplace", backend, dtype_of<T>, &gaussian_inplace<T>);
    register_kernel("exponential", backend, dtype_of<T>, &exponential<T>);
    register_kernel("uniform_inplace", backend, dtype_of<T>, &uniform_inplace<T>);
    register_kernel("bernoulli", backend, dtype_of<T>, &bernoulli<T>);
  });
  register_kernel("randint", backend, DType::int32, &randint<int32_t>);
  register_kernel("randint", backend, DType::int64, &randint<int64_t>);
  register_kernel("randperm", backend, DType::int32, &randperm<int32_t>);
  register_kernel("randperm", backend, DType::int64, &randperm<int64_t>);
}

}  // namespace shard::cuda
