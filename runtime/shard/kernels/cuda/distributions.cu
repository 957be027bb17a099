// Draws from distributions by rejection on CUDA, of the same random numbers as on the CPU: poisson, binomial, standard_gamma,
// truncated_gaussian_random, dirichlet; and from rows of weights: multinomial, top_p_sampling. Compiled without fused operations.
#include <cmath>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/philox.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

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

#include "shard/kernels/formulas/distributions.inc"

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

/// Inline, because the model of CUDA does not see where the result of a call is stored.
template <class D>
__device__ __forceinline__ D drawn_number(double value) {
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

// Draws by rows.

constexpr int kRowThreads = 128;

/// A category and what orders it: the smaller value first, of equal ones the lower index.
struct Entry {
  double value;
  int64_t index;
  __device__ bool is_before(const Entry& other) const {
    return value < other.value || (value == other.value && index < other.index);
  }
};

/// The first of the entries (value(k), k) behind `last`; its index is n where there is none. The threads of a block share the work.
template <class Value>
__device__ Entry next_entry(int64_t n, const Value& value, Entry last) {
  Entry best{INFINITY, n};
  for (int64_t k = threadIdx.x; k < n; k += kRowThreads) {
    const Entry entry{value(k), k};
    if (last.is_before(entry) && entry.is_before(best)) best = entry;
  }
  return block_reduce<kRowThreads>(best, [](const Entry& a, const Entry& b) { return b.is_before(a) ? b : a; });
}
__device__ Entry no_entry() { return {-INFINITY, -1}; }

/// Describes a row in which too few categories have a weight above 0: `least` are needed, or one of a row of probabilities (0).
struct alignas(8) RowWeights {
  const char* op;
  int64_t least;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t possible) const {
    const std::string begin = fmt::format("[{}] the row of x that begins at element {} of {} has ", op,
                                          place.index_text(position), place.global_text());
    if (least == 0) fail_check(ErrorCode::invalid_argument, "{}no probability above 0, so nothing can be drawn", begin);
    fail_check(ErrorCode::invalid_argument,
               "{}{} weights above 0, but {} must be drawn from it; draw fewer, or with replacement", begin, possible,
               least);
  }
};

/// Rows of weights, each of which must have `least` categories above 0.
template <class D>
struct Rows {
  const D* x;
  int64_t rows, categories, least;
  int64_t before;  // rows of other shards
  RandomKey key;
  NumberCheck numbers;
  DataCheck<RowWeights> weights;

  __device__ double at(int64_t row, int64_t k) const { return number_at(x, row * categories + k); }
  __device__ double fraction(int64_t element) const { return Stream(key, element).fraction(); }

  /// Whether the row can be drawn from; all threads of the block get the answer. Reports what is wrong.
  __device__ bool is_right(int64_t row) const {
    bool wrong = false;
    int64_t possible = 0;
    for (int64_t k = threadIdx.x; k < categories; k += kRowThreads) {
      const double weight = at(row, k);
      wrong |= !numbers.admits(finite_from_0(weight), row * categories + k, weight);
      possible += weight > 0 ? 1 : 0;
    }
    if (__syncthreads_or(wrong) != 0) return false;
    possible = block_reduce<kRowThreads>(possible, [](int64_t a, int64_t b) { return a + b; });
    if (possible >= least) return true;
    if (threadIdx.x == 0) weights.report(row * categories, possible);
    return false;
  }
};

template <class D>
Rows<D> rows_of(const OpContext& ctx, const DenseTensor& x, int64_t least, int64_t described, RandomKey key) {
  const int last = x.dims().rank() - 1;
  return {elements<const D>(x),
          last == 0 ? 1 : x.dims()[0],
          x.dims()[last],
          least,
          last == 0 ? 0 : ctx.input_box(0, x).begin[0],
          key,
          {ctx, 0, "x", "finite and 0 or more", x},
          DataCheck<RowWeights>(RowWeights{ctx.op, described, ArgumentPlace(ctx, 0, x)})};
}

/// The arguments of a launch that have checks.
template <class D>
struct RowDraw {
  using IsDataCheck = void;
  Rows<D> rows;
};

/// Where the sums of weights up to each category pass a fraction of their sum. A block for each row; `sums` has room for x.
template <class D>
__global__ void draw_replaced_kernel(RowDraw<D> draw, int64_t samples, double* sums, int64_t* out) {
  const Rows<D>& rows = draw.rows;
  for (int64_t row = blockIdx.x; row < rows.rows; row += gridDim.x) {
    const bool right = rows.is_right(row);
    double* const of_row = sums + row * rows.categories;
    if (threadIdx.x == 0 && right) {
      double sum = 0;
      for (int64_t k = 0; k < rows.categories; ++k) of_row[k] = sum += rows.at(row, k);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < samples; i += kRowThreads) {
      int64_t begin = 0,
              end = right ? rows.categories - 1 : 0;  // the first category whose sum is above; of weight 0 none is
      const double at = right ? rows.fraction((rows.before + row) * samples + i) * of_row[rows.categories - 1] : 0;
      while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (of_row[middle] > at) end = middle;
        else begin = middle + 1;
      }
      while (right && begin > 0 && !(rows.at(row, begin) > 0)) --begin;  // rounding must not select one of weight 0
      out[row * samples + i] = begin;
    }
  }
}

/// The categories whose exponential times, of the rates `weights`, are the first: an order of drawing without replacement.
template <class D>
__global__ void draw_unreplaced_kernel(RowDraw<D> draw, int64_t samples, int64_t* out) {
  const Rows<D>& rows = draw.rows;
  for (int64_t row = blockIdx.x; row < rows.rows; row += gridDim.x) {
    const bool right = rows.is_right(row);
    const auto time = [&](int64_t k) {
      const double weight = rows.at(row, k);
      if (!(weight > 0)) return static_cast<double>(INFINITY);
      Stream stream(rows.key, (rows.before + row) * rows.categories + k);
      return -log_fraction(stream) / weight;
    };
    Entry last = no_entry();
    for (int64_t i = 0; i < samples; ++i) {
      if (right) last = next_entry(rows.categories, time, last);
      if (threadIdx.x == 0) out[row * samples + i] = right ? last.index : 0;
    }
  }
}

template <class T>
void multinomial(const OpContext& ctx, const DenseTensor& x, bool replacement, RandomKey key, DenseTensor& out) {
  using D = device_t<T>;
  const int last = x.dims().rank() - 1;
  const int64_t categories = x.dims()[last], samples = out.dims()[last];
  if ((last == 0 || x.dims()[0] > 0) && categories == 0)
    fail_check(ErrorCode::invalid_argument, "[{}] x is {}, but each row needs a category to draw", ctx.op,
               ArgumentPlace(ctx, 0, x).global_text());
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const int64_t least = replacement ? 1 : samples;
  const RowDraw<D> draw{rows_of<D>(ctx, x, least, least, key)};
  const auto blocks = grid_for(draw.rows.rows * kRowThreads, kRowThreads);
  if (!replacement) {
    launch(ctx, draw_unreplaced_kernel<D>, blocks, kRowThreads, draw, samples, elements<int64_t>(out));
    return;
  }
  const Scratch sums(static_cast<size_t>(x.numel()) * sizeof(double));
  launch(ctx, draw_replaced_kernel<D>, blocks, kRowThreads, draw, samples, static_cast<double*>(sums.data()),
         elements<int64_t>(out));
}

template <class D>
struct TopP {
  using IsDataCheck = void;
  Rows<D> rows;
  const D *ps, *threshold;  // the latter may be null
  NumberCheck most, least;

  /// The category of a row with which the sum of the likeliest ones exceeds a fraction of p, or of the sum of all.
  __device__ int64_t draw(int64_t row) const {
    const double p = number_at(ps, row), bound = threshold != nullptr ? number_at(threshold, row) : 0;
    const bool right = rows.is_right(row);
    if (!right || !(finite_from_0(p) && bound == bound)) {
      if (threadIdx.x == 0) {
        most.admits(finite_from_0(p), row, p);
        least.admits(bound == bound, row, bound);
      }
      return 0;
    }
    double total = 0;
    for (int64_t k = threadIdx.x; k < rows.categories; k += kRowThreads) total += rows.at(row, k);
    total = block_reduce<kRowThreads>(total, [](double a, double b) { return a + b; });
    const double end = rows.fraction(rows.before + row) * (p < total ? p : total);
    const auto value = [&](int64_t k) { return -rows.at(row, k); };
    Entry chosen = next_entry(rows.categories, value, no_entry()), next = chosen;
    for (double sum = -next.value; sum <= end; sum -= next.value) {
      next = next_entry(rows.categories, value, next);
      if (next.index == rows.categories || -next.value < bound || next.value == 0) break;
      chosen = next;
    }
    return chosen.index;
  }
};

template <class D>
__global__ void top_p_kernel(TopP<D> call, D* out, int64_t* ids) {
  for (int64_t row = blockIdx.x; row < call.rows.rows; row += gridDim.x) {
    const int64_t id = call.draw(row);
    if (threadIdx.x != 0) continue;
    ids[row] = id;
    out[row] = call.rows.x[row * call.rows.categories + id];
  }
}

template <class T>
void top_p_sampling(const OpContext& ctx, const DenseTensor& x, const DenseTensor& ps, const DenseTensor& threshold,
                    int seed, RandomKey drawn, DenseTensor& out, DenseTensor& ids) {
  using D = device_t<T>;
  if (x.dims()[0] == 0) return;
  if (x.numel() == 0)
    fail_check(ErrorCode::invalid_argument,
               "[{}] the row of x that begins at element {} of {} has no probability above 0, so nothing can be drawn",
               ctx.op, ArgumentPlace(ctx, 0, x).index_text(0), ArgumentPlace(ctx, 0, x).global_text());
  const DeviceScope scope(out.device().index);
  const RandomKey key = seed < 0 ? drawn : RandomKey{static_cast<uint64_t>(seed), 0};
  const DenseTensor& bounds = threshold.defined() ? threshold : ps;
  const TopP<D> call{rows_of<D>(ctx, x, 1, 0, key),
                     elements<const D>(ps),
                     threshold.defined() ? elements<const D>(threshold) : nullptr,
                     {ctx, 1, "ps", "finite and 0 or more", ps},
                     {ctx, size_t{threshold.defined() ? 2u : 1u}, "threshold", "a number", bounds}};
  launch(ctx, top_p_kernel<D>, grid_for(call.rows.rows * kRowThreads, kRowThreads), kRowThreads, call, elements<D>(out),
         elements<int64_t>(ids));
}

template <class D>
struct LogGamma {
  using IsDataCheck = void;
  const D* shape;
  NumberCheck check;
  __device__ double operator()(Stream& stream, int64_t i) const {
    const double value = number_at(shape, i);
    return check.admits(value > 0 && value < INFINITY, i, value) ? draw_log_gamma(stream, value) : 0;
  }
};

/// A row of gamma variates, of which there are logarithms, divided by their sum. One thread adds a row, in the order of the CPU.
template <class D>
__global__ void normalise_kernel(double* logs, int64_t rows, int64_t categories, D* out) {
  for (int64_t row = grid_first<int64_t>(); row < rows; row += grid_step<int64_t>()) {
    double* const first = logs + row * categories;
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < categories; ++j) largest = first[j] > largest ? first[j] : largest;
    for (int64_t j = 0; j < categories; ++j) sum += first[j] = exp_of(first[j] - largest);
    for (int64_t j = 0; j < categories; ++j) out[row * categories + j] = drawn_number<D>(first[j] / sum);
  }
}

template <class T>
void dirichlet(const OpContext& ctx, const DenseTensor& alpha, RandomKey key, DenseTensor& out) {
  using D = device_t<T>;
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const Scratch logs(static_cast<size_t>(alpha.numel()) * sizeof(double));
  const LogGamma<D> draw{elements<const D>(alpha), {ctx, 0, "alpha", "finite and above 0", alpha}};
  launch(ctx, draw_kernel<double, LogGamma<D>>, grid_for(alpha.numel(), kThreads), kThreads,
         static_cast<double*>(logs.data()), alpha.numel(), draw, key,
         GlobalIndex(ctx.input_box(0, alpha), alpha.dims()));
  const int64_t categories = alpha.dims()[alpha.dims().rank() - 1], rows = alpha.numel() / categories;
  launch(ctx, normalise_kernel<D>, grid_for(rows, kThreads), kThreads, static_cast<double*>(logs.data()), rows,
         categories, elements<D>(out));
}

}  // namespace

void register_distributions(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("poisson", backend, dtype_of<T>, &poisson<T>);
    register_kernel("binomial", backend, dtype_of<T>, &binomial<T>);
    register_kernel("standard_gamma", backend, dtype_of<T>, &standard_gamma<T>);
    register_kernel("truncated_gaussian_random", backend, dtype_of<T>, &truncated_gaussian<T>);
    register_kernel("dirichlet", backend, dtype_of<T>, &dirichlet<T>);
    register_kernel("multinomial", backend, dtype_of<T>, &multinomial<T>);
    register_kernel("top_p_sampling", backend, dtype_of<T>, &top_p_sampling<T>);
  });
}

}  // namespace shard::cuda
