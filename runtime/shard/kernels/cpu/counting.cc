// CPU kernels that count equal elements: unique_consecutive_rows and bincount. They allocate the outputs whose number
// of rows depends on data.
#include <algorithm>
#include <vector>

#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/meta/check.h"

namespace shard::cpu {
namespace {

/// The rows of x, of `width` elements, that differ from the row before them. NaN differs from everything.
template <class T>
std::vector<int64_t> first_rows(const DenseTensor& x, int64_t width) {
  const int64_t rows = x.dims()[0];
  std::vector<char> is_first(static_cast<size_t>(rows));
  parallel_for(rows, 2 * width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* const row = x.data<T>() + i * width;
      const auto equal = [](T a, T b) { return static_cast<Compute<T>>(a) == static_cast<Compute<T>>(b); };
      is_first[static_cast<size_t>(i)] = i == 0 || !std::equal(row, row + width, row - width, equal) ? 1 : 0;
    }
  });
  std::vector<int64_t> firsts;
  for (int64_t i = 0; i < rows; ++i) {
    if (is_first[static_cast<size_t>(i)] != 0) firsts.push_back(i);
  }
  return firsts;
}

/// Writes the number of each run of rows to all of its rows, and its size.
template <class Index>
void write_runs(const std::vector<int64_t>& firsts, int64_t rows, DenseTensor& index, DenseTensor& counts) {
  for (size_t k = 0; k < firsts.size(); ++k) {
    const int64_t first = firsts[k], end = k + 1 < firsts.size() ? firsts[k + 1] : rows;
    if (index.numel() > 0) std::fill_n(index.data<Index>() + first, end - first, static_cast<Index>(k));
    if (counts.numel() > 0) counts.data<Index>()[k] = static_cast<Index>(end - first);
  }
}

template <class T>
void unique_consecutive_rows(const OpContext&, const DenseTensor& x, bool, bool return_counts, DType dtype,
                             DenseTensor& out, DenseTensor& index, DenseTensor& counts) {
  const int64_t width = x.dims().numel(1, x.dims().rank());
  const std::vector<int64_t> firsts = first_rows<T>(x, width);
  const auto found = static_cast<int64_t>(firsts.size());
  Dims dims = x.dims();
  dims[0] = found;
  out = DenseTensor::allocate(x.device(), {dims, x.dtype()});
  counts = DenseTensor::allocate(x.device(), {Dims{return_counts ? found : 0}, dtype});
  parallel_for(found, width, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k)
      std::copy_n(x.data<T>() + firsts[static_cast<size_t>(k)] * width, width, out.data<T>() + k * width);
  });
  const auto write = dtype == DType::int32 ? write_runs<int32_t> : write_runs<int64_t>;
  write(firsts, x.dims()[0], index, counts);
}

/// Adds up weight(i) at x[i], into `size` sums. Parts of x have sums of their own, as many as its size alone decides, so
/// that results do not depend on the number of threads.
template <class Sum, class Weight>
std::vector<Sum> sums_at(const DenseTensor& x, int64_t size, const Weight& weight) {
  constexpr int64_t kMostParts = 16;
  const int64_t count = x.numel();
  const int64_t parts = std::clamp<int64_t>(count / std::max<int64_t>(size, kGrain), 1, kMostParts);
  const auto bins = static_cast<size_t>(size);
  std::vector<Sum> sums = scratch<Sum>(parts * size);
  parallel_for(parts, 2 * count / parts, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      Sum* const own = sums.data() + p * size;
      for (int64_t i = count * p / parts; i < count * (p + 1) / parts; ++i) own[integer_at(x, i)] += weight(i);
    }
  });
  for (size_t p = 1; p < static_cast<size_t>(parts); ++p) {
    for (size_t k = 0; k < bins; ++k) sums[k] += sums[p * bins + k];
  }
  sums.resize(bins);
  return sums;
}

double weight_at(const DenseTensor& weights, int64_t i) {
  switch (weights.dtype()) {
    case DType::float32: return static_cast<double>(weights.data<float>()[i]);
    case DType::float64: return weights.data<double>()[i];
    default: return static_cast<double>(integer_at(weights, i));
  }
}

void bincount(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weights, const Scalar& minlength,
              DenseTensor& out) {
  const bool weighted = weights.defined();
  const DType dtype = !weighted ? DType::int64 : weights.dtype() == DType::float32 ? DType::float32 : DType::float64;
  check_indices(ctx, 0, "x", x, 0, meta::most_rows(x.dtype(), 1, dtype));
  int64_t size = minlength.to<int64_t>();
  for (int64_t i = 0; i < x.numel(); ++i) size = std::max(size, integer_at(x, i) + 1);
  out = DenseTensor::allocate(x.device(), {Dims{size}, dtype});
  if (!weighted) {
    const std::vector<int64_t> sums = sums_at<int64_t>(x, size, [](int64_t) { return int64_t{1}; });
    std::copy(sums.begin(), sums.end(), out.data<int64_t>());
    return;
  }
  const std::vector<double> sums = sums_at<double>(x, size, [&](int64_t i) { return weight_at(weights, i); });
  if (dtype == DType::float64) std::copy(sums.begin(), sums.end(), out.data<double>());
  else std::transform(sums.begin(), sums.end(), out.data<float>(), [](double sum) { return static_cast<float>(sum); });
}

}  // namespace

void register_counting() {
  for_types(AllTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("unique_consecutive_rows", kBackend, dtype_of<T>, &unique_consecutive_rows<T>);
  });
  for_types(Types<int32_t, int64_t>{},
            []<class T>(TypeTag<T>) { register_kernel("bincount", kBackend, dtype_of<T>, &bincount); });
}

}  // namespace shard::cpu
