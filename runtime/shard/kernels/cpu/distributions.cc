// CPU kernels that draw from distributions by rejection or per row: poisson, binomial, standard_gamma, dirichlet,
// multinomial, top_p_sampling, truncated_gaussian_random. Numbers depend on the global index of an element. Arithmetic
// is in double.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/random_runs.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/registry.h"

namespace shard::cpu {
namespace {

/// 53 bits of two words, in [0, 1).
double fraction_of(uint32_t high, uint32_t low) {
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

/// The random numbers of one element, as many as its rejections take: its blocks are 2^40 apart, so that those of the
/// elements of any tensor that fits into memory differ.
class Stream {
 public:
  Stream(RandomKey key, int64_t element) : key_(key), block_(static_cast<uint64_t>(element)) {}

  double fraction() {
    if (next_ == 4) {
      words_ = philox(key_, block_);
      block_ += uint64_t{1} << 40;
      next_ = 0;
    }
    const double value = fraction_of(words_[next_], words_[next_ + 1]);
    next_ += 2;
    return value;
  }

 private:
  RandomKey key_;
  uint64_t block_;
  std::array<uint32_t, 4> words_{};
  size_t next_ = 4;
};

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/distributions.inc"
#undef SHARD_FORMULA_INLINE

/// Throws invalid_argument where an element of `x`, flat input `input`, is not what `good` accepts.
template <class T, class Good>
void check_elements(const OpContext& ctx, size_t input, const char* name, const char* what, const DenseTensor& x,
                    const Good& good) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (const auto value = static_cast<double>(x.data<T>()[i]); !good(value)) {
      fail_check(ErrorCode::invalid_argument,
                 "[{}] argument '{}' has the element {}, which must be {} (element {} of {})", ctx.op, name, value,
                 what, index_text(ctx, input, x, i), global_text(ctx, input, x));
    }
  }
}
bool finite_from_0(double value) { return value >= 0 && std::isfinite(value); }

/// out[i] = draw(the stream of element i, i), for the local shard of `box`.
template <class Out, class DrawOne>
void draw_each(const Box& box, RandomKey key, DenseTensor& out, const DrawOne& draw) {
  Out* to = out.data<Out>();
  for_runs(box, out.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
      Stream stream(key, global + j);
      to[local + j] = static_cast<Out>(draw(stream, local + j));
    }
  });
}

template <class T>
void poisson(const OpContext& ctx, const DenseTensor& x, RandomKey key, DenseTensor& out) {
  check_elements<T>(ctx, 0, "x", "finite and 0 or more", x, finite_from_0);
  const T* mean = x.data<T>();
  draw_each<T>(ctx.input_box(0, x), key, out,
               [=](Stream& stream, int64_t i) { return draw_poisson(stream, static_cast<double>(mean[i])); });
}

template <class T>
void binomial(const OpContext& ctx, const DenseTensor& count, const DenseTensor& prob, RandomKey key,
              DenseTensor& out) {
  // From 2^53 on, neighbouring whole numbers are not all doubles.
  check_elements<T>(ctx, 0, "count", "a whole number from 0 to 2^53", count,
                    [](double n) { return n >= 0 && n <= 0x1p53 && n == std::floor(n); });
  check_elements<T>(ctx, 1, "prob", "from 0 to 1", prob, [](double p) { return p >= 0 && p <= 1; });
  const T *n = count.data<T>(), *p = prob.data<T>();
  draw_each<int64_t>(ctx.input_box(0, count), key, out, [=](Stream& stream, int64_t i) {
    return draw_successes(stream, static_cast<double>(n[i]), static_cast<double>(p[i]));
  });
}

template <class T>
void standard_gamma(const OpContext& ctx, const DenseTensor& x, RandomKey key, DenseTensor& out) {
  check_elements<T>(ctx, 0, "x", "finite and 0 or more", x, finite_from_0);
  const T* shape = x.data<T>();
  draw_each<T>(ctx.input_box(0, x), key, out,
               [=](Stream& stream, int64_t i) { return draw_gamma(stream, static_cast<double>(shape[i])); });
}

/// Gamma variates divided by their sum. Where all shapes are small every variate may be too small for a double, but not
/// relative to the largest one.
template <class T>
void dirichlet(const OpContext& ctx, const DenseTensor& alpha, RandomKey key, DenseTensor& out) {
  check_elements<T>(ctx, 0, "alpha", "finite and above 0", alpha,
                    [](double value) { return value > 0 && std::isfinite(value); });
  const T* shape = alpha.data<T>();
  std::vector<double> logs(static_cast<size_t>(alpha.numel()));
  for_runs(ctx.input_box(0, alpha), alpha.dims(), [&](int64_t local, int64_t global, int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
      Stream stream(key, global + j);
      logs[static_cast<size_t>(local + j)] = draw_log_gamma(stream, static_cast<double>(shape[local + j]));
    }
  });
  if (alpha.numel() == 0) return;
  const int64_t categories = alpha.dims()[alpha.dims().rank() - 1];
  T* to = out.data<T>();
  parallel_for(alpha.numel() / categories, 16 * categories, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      double* const first = logs.data() + row * categories;
      const double largest = *std::max_element(first, first + categories);
      double sum = 0;
      for (int64_t j = 0; j < categories; ++j) sum += first[j] = exp_of(first[j] - largest);
      for (int64_t j = 0; j < categories; ++j) to[row * categories + j] = static_cast<T>(first[j] / sum);
    }
  });
}

/// Throws invalid_argument where a row has fewer categories of a positive weight than are drawn.
template <class T>
void check_categories(const OpContext& ctx, const DenseTensor& x, int64_t categories, int64_t least) {
  for (int64_t i = 0; i < x.numel(); i += categories) {
    const T* row = x.data<T>() + i;
    const int64_t possible = std::count_if(row, row + categories, [](T w) { return static_cast<double>(w) > 0; });
    if (possible < least) {
      fail_check(
          ErrorCode::invalid_argument,
          "[{}] the row of x that begins at element {} of {} has {} weights above 0, but {} must be drawn from it; "
          "draw fewer, or with replacement",
          ctx.op, index_text(ctx, 0, x, i), global_text(ctx, 0, x), possible, least);
    }
  }
}

/// Where the sums of weights up to each category pass the number of element `first` + i, for each sample i.
template <class T>
void draw_replaced(RandomKey key, const T* weights, int64_t categories, int64_t first, int64_t samples, int64_t* to) {
  std::vector<double> sums;
  std::vector<int64_t> possible;  // rounding must not select a category of weight 0
  double sum = 0;
  for (int64_t k = 0; k < categories; ++k) {
    if (!(static_cast<double>(weights[k]) > 0)) continue;
    sums.push_back(sum += static_cast<double>(weights[k]));
    possible.push_back(k);
  }
  for (int64_t i = 0; i < samples; ++i) {
    const double at = Stream(key, first + i).fraction() * sum;
    const auto passed = static_cast<size_t>(std::upper_bound(sums.begin(), sums.end() - 1, at) - sums.begin());
    to[i] = possible[passed];
  }
}

/// The categories whose exponential times, of the rates `weights`, are the first: an order of drawing without
/// replacement. Category k uses the number of element `first` + k.
template <class T>
void draw_unreplaced(RandomKey key, const T* weights, int64_t categories, int64_t first, int64_t samples, int64_t* to) {
  std::vector<std::pair<double, int64_t>> times;
  for (int64_t k = 0; k < categories; ++k) {
    const auto weight = static_cast<double>(weights[k]);
    if (!(weight > 0)) continue;
    Stream stream(key, first + k);
    times.emplace_back(-log_fraction(stream) / weight, k);
  }
  std::partial_sort(times.begin(), times.begin() + samples, times.end());
  for (int64_t i = 0; i < samples; ++i) to[i] = times[static_cast<size_t>(i)].second;
}

template <class T>
void multinomial(const OpContext& ctx, const DenseTensor& x, bool replacement, RandomKey key, DenseTensor& out) {
  const int last = x.dims().rank() - 1;
  const int64_t categories = x.dims()[last], samples = out.dims()[last];
  const int64_t rows = last == 0 ? 1 : x.dims()[0];
  if (rows > 0 && categories == 0) {
    fail_check(ErrorCode::invalid_argument, "[{}] x is {}, but each row needs a category to draw", ctx.op,
               global_text(ctx, 0, x));
  }
  check_elements<T>(ctx, 0, "x", "finite and 0 or more", x, finite_from_0);
  check_categories<T>(ctx, x, categories, replacement ? 1 : samples);
  const int64_t before = last == 0 ? 0 : ctx.input_box(0, x).begin[0];  // rows of other shards
  parallel_for(rows, 16 * (categories + samples), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* weights = x.data<T>() + row * categories;
      int64_t* to = out.data<int64_t>() + row * samples;
      if (replacement) draw_replaced(key, weights, categories, (before + row) * samples, samples, to);
      else draw_unreplaced(key, weights, categories, (before + row) * categories, samples, to);
    }
  });
}

/// The category of a row with which the sum of the likeliest ones exceeds `fraction` of `most`, or of the sum of all if
/// that is smaller; not one below `least` unless it is the likeliest.
template <class T>
int64_t draw_likely(double fraction, const T* row, int64_t categories, double most, double least) {
  const auto after = [=](int64_t a, int64_t b) { return row[a] < row[b] || (row[a] == row[b] && a > b); };
  std::vector<int64_t> rest(static_cast<size_t>(categories));  // a heap: few of them are taken
  double total = 0, sum = 0;
  for (int64_t k = 0; k < categories; ++k) {
    rest[static_cast<size_t>(k)] = k;
    total += static_cast<double>(row[k]);
  }
  std::make_heap(rest.begin(), rest.end(), after);
  const double end = fraction * std::min(most, total);
  int64_t chosen = rest.front();
  while (!rest.empty() && sum <= end) {
    const int64_t next = rest.front();
    const auto probability = static_cast<double>(row[next]);
    if (next != chosen && (probability < least || probability == 0)) break;
    chosen = next;
    sum += probability;
    std::pop_heap(rest.begin(), rest.end(), after);
    rest.pop_back();
  }
  return chosen;
}

template <class T>
void top_p_sampling(const OpContext& ctx, const DenseTensor& x, const DenseTensor& ps, const DenseTensor& threshold,
                    int seed, RandomKey drawn, DenseTensor& out, DenseTensor& ids) {
  const int64_t rows = x.dims()[0], categories = x.dims()[1];
  check_elements<T>(ctx, 0, "x", "finite and 0 or more", x, finite_from_0);
  check_elements<T>(ctx, 1, "ps", "finite and 0 or more", ps, finite_from_0);
  if (threshold.defined())
    check_elements<T>(ctx, 2, "threshold", "a number", threshold, [](double least) { return !std::isnan(least); });
  for (int64_t row = 0; row < rows; ++row) {
    const T* first = x.data<T>() + row * categories;
    if (std::any_of(first, first + categories, [](T p) { return static_cast<double>(p) > 0; })) continue;
    fail_check(ErrorCode::invalid_argument,
               "[{}] the row of x that begins at element {} of {} has no probability above 0, so nothing can be drawn",
               ctx.op, index_text(ctx, 0, x, row * categories), global_text(ctx, 0, x));
  }
  const RandomKey key = seed < 0 ? drawn : RandomKey{static_cast<uint64_t>(seed), 0};
  const int64_t before = ctx.input_box(0, x).begin[0];  // rows of other shards
  parallel_for(rows, 16 * categories, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* first = x.data<T>() + row * categories;
      const double least = threshold.defined() ? static_cast<double>(threshold.data<T>()[row]) : 0;
      const int64_t id = draw_likely(Stream(key, before + row).fraction(), first, categories,
                                     static_cast<double>(ps.data<T>()[row]), least);
      ids.data<int64_t>()[row] = id;
      out.data<T>()[row] = first[id];
    }
  });
}

/// Normal numbers, drawn until one is within two standard deviations: 95 of 100 are.
template <class T>
void truncated_gaussian(const OpContext& ctx, float mean, float std, int seed, RandomKey drawn, DenseTensor& out) {
  draw_each<T>(ctx.output_box(0, out), key_of(seed, drawn), out,
               [=](Stream& stream, int64_t) { return double{mean} + double{std} * draw_near_normal(stream); });
}

}  // namespace

void register_distributions() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("poisson", kBackend, dtype_of<T>, &poisson<T>);
    register_kernel("binomial", kBackend, dtype_of<T>, &binomial<T>);
    register_kernel("standard_gamma", kBackend, dtype_of<T>, &standard_gamma<T>);
    register_kernel("dirichlet", kBackend, dtype_of<T>, &dirichlet<T>);
    register_kernel("multinomial", kBackend, dtype_of<T>, &multinomial<T>);
    register_kernel("top_p_sampling", kBackend, dtype_of<T>, &top_p_sampling<T>);
    register_kernel("truncated_gaussian_random", kBackend, dtype_of<T>, &truncated_gaussian<T>);
  });
}

}  // namespace shard::cpu
