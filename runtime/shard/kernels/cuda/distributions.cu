// Draws from distributions by rejection on CUDA, of the same random numbers as on the CPU: poisson, binomial, standard_gamma,
// truncated_gaussian_random. Compiled without fused operations.
#include <cmath>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/philox.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kThreads = 256;

/// The random numbers of one element, as many as its rejections take: its blocks are 2^40 apart.
class Stream {
 public:
  __device__ Stream(RandomKey key, int64_t element) : words_(key), block_(static_cast<uint64_t>(element)) {}

  __device__ double fraction() {
    if (next_ == 4) {
      block_ += uint64_t{1} << 40;
      next_ = 0;
    }
    const uint64_t high = words_.at(4 * block_ + next_), low = words_.at(4 * block_ + next_ + 1);
    next_ += 2;
    return static_cast<double>(static_cast<int64_t>((high << 32 | low) >> 11)) * 0x1p-53;
  }

 private:
  PhiloxWords words_;
  uint64_t block_;
  unsigned next_ = 0;
};

__device__ double log_factorial(double k) { return ::lgamma(k + 1); }

#define SHARD_FORMULA_INLINE __device__ inline
#include "shard/kernels/formulas/distributions.inc"
#undef SHARD_FORMULA_INLINE

/// Describes a number that is not `what`.
struct alignas(8) NumberRange {
  const char* op;
  const char* name;
  const char* what;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t bits) const {
    double value;
    memcpy(&value, &bits, sizeof(value));
    fail_check(ErrorCode::invalid_argument,
               "[{}] argument '{}' has the element {}, which must be {} (element {} of {})", op, name, value, what,
               place.index_text(position), place.global_text());
  }
};

class NumberCheck : public DataCheck<NumberRange> {
 public:
  NumberCheck(const OpContext& ctx, size_t input, const char* name, const char* what, const DenseTensor& x)
      : DataCheck(NumberRange{ctx.op, name, what, ArgumentPlace(ctx, input, x)}) {}

  __device__ bool admits(bool good, int64_t position, double value) const {
    if (good) return true;
    int64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    report(position, bits);
    return false;
  }
};

template <class D>
__device__ double number_at(const D* x, int64_t i) {
  return static_cast<double>(load(x[i]));
}
__device__ bool finite_from_0(double value) { return value >= 0 && value < INFINITY; }

template <class D>
struct Poisson {
  using IsDataCheck = void;
  const D* mean;
  NumberCheck check;
  __device__ double operator()(Stream& stream, int64_t i) const {
    const double value = number_at(mean, i);
    return check.admits(finite_from_0(value), i, value) ? draw_poisson(stream, value) : 0;
  }
};

template <class D>
struct Binomial {
  using IsDataCheck = void;
  const D *count, *prob;
  NumberCheck counts, probs;
  __device__ double operator()(Stream& stream, int64_t i) const {
    const double n = number_at(count, i), p = number_at(prob, i);
    if (!counts.admits(n >= 0 && n <= 0x1p53 && n == ::floor(n), i, n)) return 0;
    return probs.admits(p >= 0 && p <= 1, i, p) ? draw_successes(stream, n, p) : 0;
  }
};

template <class D>
struct Gamma {
  using IsDataCheck = void;
  const D* shape;
  NumberCheck check;
  __device__ double operator()(Stream& stream, int64_t i) const {
    const double value = number_at(shape, i);
    return check.admits(finite_from_0(value), i, value) ? draw_gamma(stream, value) : 0;
  }
};

struct NearNormal {
  double mean, std;
  __device__ double operator()(Stream& stream, int64_t) const { return mean + std * draw_near_normal(stream); }
};

template <class D>
__device__ D drawn_number(double value) {
  if constexpr (std::is_integral_v<D>) return static_cast<D>(value);
  else return store<D>(static_cast<math_t<D>>(value));
}

template <class D, class Draw>
__global__ void draw_kernel(D* out, int64_t count, Draw draw, RandomKey key, GlobalIndex index) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    Stream stream(key, index.of(i));
    out[i] = drawn_number<D>(draw(stream, i));
  }
}

template <class D, class Draw>
void draw_each(const OpContext& ctx, const Box& box, RandomKey key, const Draw& draw, DenseTensor& out) {
  if (out.numel() == 0) return;
  launch(ctx, draw_kernel<D, Draw>, grid_for(out.numel(), kThreads), kThreads, elements<D>(out), out.numel(), draw, key,
         GlobalIndex(box, out.dims()));
}

template <class T>
void poisson(const OpContext& ctx, const DenseTensor& x, RandomKey key, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  draw_each<D>(ctx, ctx.input_box(0, x), key,
               Poisson<D>{elements<const D>(x), {ctx, 0, "x", "finite and 0 or more", x}}, out);
}

template <class T>
void binomial(const OpContext& ctx, const DenseTensor& count, const DenseTensor& prob, RandomKey key,
              DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const Binomial<D> draw{elements<const D>(count),
                         elements<const D>(prob),
                         {ctx, 0, "count", "a whole number from 0 to 2^53", count},
                         {ctx, 1, "prob", "from 0 to 1", prob}};
  draw_each<int64_t>(ctx, ctx.input_box(0, count), key, draw, out);
}

template <class T>
void standard_gamma(const OpContext& ctx, const DenseTensor& x, RandomKey key, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  draw_each<D>(ctx, ctx.input_box(0, x), key, Gamma<D>{elements<const D>(x), {ctx, 0, "x", "finite and 0 or more", x}},
               out);
}

template <class T>
void truncated_gaussian(const OpContext& ctx, float mean, float std, int seed, RandomKey drawn, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const RandomKey key = seed != 0 ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn;
  draw_each<device_t<T>>(ctx, ctx.output_box(0, out), key, NearNormal{mean, std}, out);
}

}  // namespace

void register_distributions(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("poisson", backend, dtype_of<T>, &poisson<T>);
    register_kernel("binomial", backend, dtype_of<T>, &binomial<T>);
    register_kernel("standard_gamma", backend, dtype_of<T>, &standard_gamma<T>);
    register_kernel("truncated_gaussian_random", backend, dtype_of<T>, &truncated_gaussian<T>);
  });
}

}  // namespace shard::cuda
