// The CPU kernel of nanmedian: the elements in the middle of those that are numbers.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// Some of the dims of a tensor, with their strides.
struct SomeDims {
  Dims sizes, strides;

  /// Where element i of these dims, in row-major order, is in the tensor.
  int64_t place(int64_t i) const {
    int64_t at = 0;
    for (int d = sizes.rank() - 1; d >= 0; --d) {
      at += i % sizes[d] * strides[d];
      i /= sizes[d];
    }
    return at;
  }
};

/// The reduced dims of x, all where `axis` is empty, and the others.
struct SplitDims {
  SomeDims reduced, kept;
};

SplitDims split_dims(const OpContext& ctx, const Dims& dims, const IntArray& axis) {
  std::vector<char> is_reduced(static_cast<size_t>(std::max(dims.rank(), 1)), axis.empty() ? 1 : 0);
  for (const int64_t a : axis) is_reduced[static_cast<size_t>(normalize_axis(ctx.op, "axis", a, dims.rank()))] = 1;
  SplitDims split;
  for (int d = 0; d < dims.rank(); ++d) {
    SomeDims& some = is_reduced[static_cast<size_t>(d)] != 0 ? split.reduced : split.kept;
    some.sizes.push_back(dims[d]);
    some.strides.push_back(dims.numel(d + 1, dims.rank()));
  }
  return split;
}

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/median.inc"
#undef SHARD_FORMULA_INLINE

template <class T>
void nanmedian(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, const std::string& mode,
               DenseTensor& out, DenseTensor& medians) {
  using C = Compute<T>;
  using Entry = std::pair<T, int64_t>;  // an element, and its place among those that are reduced with it
  const SplitDims dims = split_dims(ctx, x.dims(), axis);
  const bool two = mode == "avg";
  std::vector<int64_t> places(static_cast<size_t>(dims.reduced.sizes.numel()));
  for (size_t k = 0; k < places.size(); ++k) places[k] = dims.reduced.place(static_cast<int64_t>(k));
  const auto before = [](const Entry& a, const Entry& b) {
    const C left = static_cast<C>(a.first), right = static_cast<C>(b.first);
    return left != right ? left < right : a.second < b.second;
  };
  const auto write = [&](int64_t i, T median, int64_t low, int64_t high) {
    out.data<T>()[i] = median;
    medians.data<int64_t>()[two ? 2 * i : i] = low;
    if (two) medians.data<int64_t>()[2 * i + 1] = high;
  };
  parallel_for(out.numel(), 8 * dims.reduced.sizes.numel(), [&](int64_t first, int64_t last) {
    std::vector<Entry> line;
    for (int64_t i = first; i < last; ++i) {
      const T* const from = x.data<T>() + dims.kept.place(i);
      line.clear();
      for (size_t k = 0; k < places.size(); ++k) {
        const C value = static_cast<C>(from[places[k]]);
        if (value == value) line.emplace_back(from[places[k]], static_cast<int64_t>(k));
      }
      if (line.empty()) {
        write(i, static_cast<T>(std::numeric_limits<C>::quiet_NaN()), -1, -1);
        continue;
      }
      const auto middle = line.begin() + static_cast<int64_t>((line.size() - 1) / 2);
      std::nth_element(line.begin(), middle, line.end(), before);
      if (line.size() % 2 == 1 || !two) {
        write(i, middle->first, middle->second, middle->second);
      } else {
        const auto next = std::min_element(middle + 1, line.end(), before);
        const C mean = mean_of(static_cast<C>(middle->first), static_cast<C>(next->first));
        write(i, static_cast<T>(mean), middle->second, next->second);
      }
    }
  });
}

}  // namespace

void register_nanmedian() {
  for_types(NumberTypes{},
            []<class T>(TypeTag<T>) { register_kernel("nanmedian", kBackend, dtype_of<T>, &nanmedian<T>); });
}

}  // namespace shard::cpu
