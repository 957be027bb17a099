// CPU kernels that sort, select and count along one axis, and that gather and sum elements by
// indices along it.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/order.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/parts.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// One element of a line, with its index in it.
template <class T>
using Entry = std::pair<T, int64_t>;

template <class T>
bool in_order(const Entry<T>& a, const Entry<T>& b, bool descending) {
  if (descending ? is_less(b.first, a.first) : is_less(a.first, b.first)) return true;
  if (descending ? is_less(a.first, b.first) : is_less(b.first, a.first)) return false;
  return a.second < b.second;
}

AxisView view_of(const OpContext& ctx, const DenseTensor& x, int axis) {
  return axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
}

/// The work of sorting a line of so many elements.
int64_t sorting_cost(int64_t size) {
  int64_t levels = 1;
  while (size >> levels) ++levels;
  return size * levels;
}

/// Calls body(line, line number) with each line of x along the axis, as a vector that it may change.
template <class T, class Body>
void for_lines(const DenseTensor& x, const AxisView& view, const Body& body) {
  parallel_for(view.outer * view.inner, sorting_cost(view.size), [&](int64_t first, int64_t last) {
    std::vector<Entry<T>> line(static_cast<size_t>(view.size));
    for (int64_t i = first; i < last; ++i) {
      const T* from = x.data<T>() + i / view.inner * view.size * view.inner + i % view.inner;
      for (int64_t k = 0; k < view.size; ++k) line[static_cast<size_t>(k)] = {from[k * view.inner], k};
      body(line, i);
    }
  });
}

/// Writes the first `count` elements of `line` and their indices into line number i of both outputs.
template <class T>
void store(const std::vector<Entry<T>>& line, int64_t count, int64_t i, int64_t inner, DenseTensor& out,
           DenseTensor& indices) {
  const int64_t base = i / inner * count * inner + i % inner;
  for (int64_t k = 0; k < count; ++k) {
    out.data<T>()[base + k * inner] = line[static_cast<size_t>(k)].first;
    indices.data<int64_t>()[base + k * inner] = line[static_cast<size_t>(k)].second;
  }
}

/// Sorts the first `count` elements of `line`, which are those that come first in order.
template <class Line, class Before>
void sort_first(Line& line, int64_t count, const Before& before) {
  if (count < static_cast<int64_t>(line.size()))
    std::nth_element(line.begin(), line.begin() + (count - 1), line.end(), before);
  std::sort(line.begin(), line.begin() + count, before);
}

/// The type in which numbers of at most 32 bits are compared.
template <class T>
using Comparable = std::conditional_t<is_float<T>, float, int32_t>;

/// Whether x comes neither first nor together with `bound`. NaN never does.
template <bool descending, class V>
auto is_behind(V x, V bound) {
  if constexpr (descending) return x < bound;
  else return x > bound;
}

/// A bound that at least `count` of the numbers, or all, are not behind, and few others: the best but count - 1 of the
/// best numbers of groups. `best` is scratch.
template <bool descending, class C>
C bound_of(const C* x, int64_t size, int64_t count, std::vector<C>& best) {
  const auto groups = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(4 * count, 64))));
  best.assign(static_cast<size_t>(groups), descending ? lowest<C>() : highest<C>());
  C* const top = best.data();
  for (int64_t begin = 0; begin < size; begin += groups) {
    const C* const from = x + begin;
    const int64_t n = std::min(groups, size - begin);
    for (int64_t j = 0; j < n; ++j) top[j] = is_behind<descending>(top[j], from[j]) ? from[j] : top[j];
  }
  const auto at = best.begin() + (count - 1);
  std::nth_element(best.begin(), at, best.end(), [](C a, C b) { return is_behind<descending>(b, a); });
  return *at;
}

/// Calls body(k) for each number that is not behind `bound`, in their order. Most are, so that blocks of 16 are compared at
/// once.
template <bool descending, class C, class Body>
void each_not_behind(const C* x, int64_t size, C bound, const Body& body) {
  typedef C Pack __attribute__((vector_size(16)));
  constexpr int64_t kWidth = 16 / sizeof(C), kBlock = 4 * kWidth;
  const Pack bounds = bound - Pack{};
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, size);
    if (end == begin + kBlock) {
      Pack block[4];
      std::memcpy(block, x + begin, sizeof(block));
      const auto behind = is_behind<descending>(block[0], bounds) & is_behind<descending>(block[1], bounds) &
                          is_behind<descending>(block[2], bounds) & is_behind<descending>(block[3], bounds);
      const auto halves = std::bit_cast<std::array<uint64_t, 2>>(behind);
      if ((halves[0] & halves[1]) == ~uint64_t{0}) continue;
    }
    for (int64_t k = begin; k < end; ++k) {
      if (!is_behind<descending>(x[k], bound)) body(k);
    }
  }
}

/// Selects the first elements of lines of numbers of at most 32 bits, which are sorted as integers, with their index in the
/// lower half: this takes half as long as pairs.
template <class T>
class Selector {
 public:
  Selector(int64_t size, int64_t step, int64_t count, bool descending)
      : size_(size), step_(step), count_(count), descending_(descending) {}

  /// The indices of the first elements of the line at `from` in the lower halves.
  const uint64_t* select(const T* from) {
    line_.clear();
    const auto add = [&](int64_t k) {
      const uint32_t rank = rank_of(from[k * step_]);
      line_.push_back(uint64_t{descending_ ? ~rank : rank} << 32 | static_cast<uint64_t>(k));
    };
    if (count_ * 16 > size_) {
      for (int64_t k = 0; k < size_; ++k) add(k);
    } else {
      const Comparable<T>* const x = contiguous(from);
      if (descending_) each_not_behind<true>(x, size_, bound_of<true>(x, size_, count_, best_), add);
      else each_not_behind<false>(x, size_, bound_of<false>(x, size_, count_, best_), add);
    }
    sort_first(line_, count_, std::less<>());
    return line_.data();
  }

 private:
  const Comparable<T>* contiguous(const T* from) {
    if constexpr (std::is_same_v<T, Comparable<T>>) {
      if (step_ == 1) return from;
    }
    numbers_.resize(static_cast<size_t>(size_));
    for (int64_t k = 0; k < size_; ++k) numbers_[static_cast<size_t>(k)] = static_cast<Comparable<T>>(from[k * step_]);
    return numbers_.data();
  }

  int64_t size_, step_, count_;
  bool descending_;
  std::vector<uint64_t> line_;
  std::vector<Comparable<T>> numbers_, best_;
};

/// The first `count` elements of each line in order.
template <class T>
void first_in_order(const DenseTensor& x, const AxisView& view, int64_t count, bool descending, DenseTensor& out,
                    DenseTensor& indices) {
  if constexpr (sizeof(T) <= 4) {
    if (view.size <= std::numeric_limits<uint32_t>::max()) {
      return parallel_for(view.outer * view.inner, sorting_cost(view.size), [&](int64_t first, int64_t last) {
        Selector<T> selector(view.size, view.inner, count, descending);
        for (int64_t i = first; i < last; ++i) {
          const T* const from = x.data<T>() + i / view.inner * view.size * view.inner + i % view.inner;
          const uint64_t* const line = selector.select(from);
          const int64_t base = i / view.inner * count * view.inner + i % view.inner;
          for (int64_t k = 0; k < count; ++k) {
            const auto at = static_cast<int64_t>(line[k] & 0xFFFFFFFFu);
            out.data<T>()[base + k * view.inner] = from[at * view.inner];
            indices.data<int64_t>()[base + k * view.inner] = at;
          }
        }
      });
    }
  }
  for_lines<T>(x, view, [&](std::vector<Entry<T>>& line, int64_t i) {
    sort_first(line, count, [&](const Entry<T>& a, const Entry<T>& b) { return in_order(a, b, descending); });
    store(line, count, i, view.inner, out, indices);
  });
}

/// One of the first elements of a rank's part of a line, with its index in the whole line; -1 where the part has fewer.
template <class T>
struct Candidate {
  int64_t index = -1;
  T value{};
};

/// The first `count` elements of each rank's part of the lines.
template <class T>
std::vector<Candidate<T>> candidates(const DenseTensor& x, const AxisView& view, int64_t offset, int64_t count,
                                     bool descending) {
  const int64_t kept = std::min(count, view.size), lines = view.outer * view.inner;
  std::vector<Candidate<T>> all(static_cast<size_t>(lines * count));
  if (kept == 0) return all;
  const Dims dims{view.outer, kept, view.inner};
  DenseTensor values = DenseTensor::allocate(kCpu, {dims, x.dtype()}),
              places = DenseTensor::allocate(kCpu, {dims, DType::int64});
  first_in_order<T>(x, view, kept, descending, values, places);
  for (int64_t i = 0; i < lines; ++i) {
    for (int64_t k = 0; k < kept; ++k) {
      const int64_t at = (i / view.inner * kept + k) * view.inner + i % view.inner;
      all[static_cast<size_t>(i * count + k)] = {offset + places.data<int64_t>()[at], values.data<T>()[at]};
    }
  }
  return all;
}

/// The first elements of a line are among the first of its parts. Of equal ones the lower index is first, in each part
/// and among them, so the result is that of whole lines, bit for bit.
template <class T>
void topk(const OpContext& ctx, const DenseTensor& x, int axis, bool largest, DenseTensor& out, DenseTensor& indices) {
  const AxisView view = view_of(ctx, x, axis);
  const int64_t count = view_of(ctx, out, axis).size, lines = view.outer * view.inner;
  if (ctx.reducer() == nullptr) return first_in_order<T>(x, view, count, largest, out, indices);
  const int64_t offset = ctx.input_box(0, x).begin[normalize_axis(ctx.op, "axis", axis, x.dims().rank())];
  const auto parts = gather_parts(ctx, candidates<T>(x, view, offset, count, largest));
  parallel_for(lines, sorting_cost(parts.count() * count), [&](int64_t first, int64_t last) {
    std::vector<Entry<T>> line;
    for (int64_t i = first; i < last; ++i) {
      line.clear();
      for (int64_t part = 0; part < parts.count(); ++part) {
        const Candidate<T>* mine = parts.of(part) + i * count;
        for (int64_t k = 0; k < count && mine[k].index >= 0; ++k) line.emplace_back(mine[k].value, mine[k].index);
      }
      sort_first(line, count, [&](const Entry<T>& a, const Entry<T>& b) { return in_order(a, b, largest); });
      store(line, count, i, view.inner, out, indices);
    }
  });
}

/// The size of Candidate<T> does not depend on T.
void topk_dry(const OpContext& ctx, const DenseTensor& x, int axis, bool, DenseTensor& out, DenseTensor&) {
  const AxisView view = view_of(ctx, x, axis);
  gather_parts_dry(ctx, view.outer * view.inner * view_of(ctx, out, axis).size, sizeof(Candidate<double>));
}

template <class T>
void argsort(const OpContext& ctx, const DenseTensor& x, int axis, bool descending, DenseTensor& out,
             DenseTensor& indices) {
  const AxisView view = view_of(ctx, x, axis);
  first_in_order<T>(x, view, view.size, descending, out, indices);
}

template <class T>
bool ascending(const Entry<T>& a, const Entry<T>& b) {
  return in_order(a, b, false);
}

template <class T>
void kthvalue(const OpContext& ctx, const DenseTensor& x, int k, int axis, DenseTensor& out, DenseTensor& indices) {
  for_lines<T>(x, view_of(ctx, x, axis), [&](std::vector<Entry<T>>& line, int64_t i) {
    std::nth_element(line.begin(), line.begin() + (k - 1), line.end(), ascending<T>);
    std::tie(out.data<T>()[i], indices.data<int64_t>()[i]) = line[static_cast<size_t>(k - 1)];
  });
}

template <class T>
void mode(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices) {
  for_lines<T>(x, view_of(ctx, x, axis), [&](std::vector<Entry<T>>& line, int64_t i) {
    std::sort(line.begin(), line.end(), ascending<T>);
    size_t best = 0, most = 0;
    for (size_t begin = 0, end = 0; begin < line.size(); begin = end) {
      while (end < line.size() && !is_less(line[begin].first, line[end].first)) ++end;
      if (end - begin <= most) continue;
      most = end - begin;
      best = end - 1;
    }
    std::tie(out.data<T>()[i], indices.data<int64_t>()[i]) = line[best];
  });
}

template <class T>
void searchsorted(const OpContext&, const DenseTensor& sequence, const DenseTensor& values, bool right,
                  DenseTensor& out) {
  const Dims &rows = sequence.dims(), &dims = values.dims();
  const int64_t size = rows[rows.rank() - 1];
  // One sequence for all values, or one for each row of them.
  const int64_t row =
      rows.rank() == 1 ? std::max<int64_t>(values.numel(), 1) : std::max<int64_t>(dims[dims.rank() - 1], 1);
  parallel_for(values.numel(), 16, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const T* begin = sequence.data<T>() + i / row * size;
      const T value = values.data<T>()[i];
      const T* at = right ? std::upper_bound(begin, begin + size, value, is_less<T>)
                          : std::lower_bound(begin, begin + size, value, is_less<T>);
      if (out.dtype() == DType::int64) out.data<int64_t>()[i] = at - begin;
      else out.data<int32_t>()[i] = static_cast<int32_t>(at - begin);
    }
  });
}

template <class T>
void histogram(const OpContext& ctx, const DenseTensor& input, int64_t bins, int min, int max, DenseTensor& out) {
  const T* values = input.data<T>();
  const auto number = [&](int64_t i) { return static_cast<double>(static_cast<Compute<T>>(values[i])); };
  double low = min, high = max;
  if (min == max && input.numel() > 0) {
    low = high = number(0);
    for (int64_t i = 0; i < input.numel(); ++i) {
      const double value = number(i);
      if (!std::isfinite(value)) {
        fail_check(ErrorCode::invalid_argument,
                   "[{}] input is {} at element {}, but the range of its elements must be finite; set min and max",
                   ctx.op, value, index_text(ctx, 0, input, i));
      }
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (low == high) {
    const double step = std::max(1.0, std::abs(low) * 0x1p-51);  // as large as a rounding of a large number
    low -= step;
    high += step;
  }
  int64_t* counts = out.data<int64_t>();
  std::fill_n(counts, bins, 0);
  for (int64_t i = 0; i < input.numel(); ++i) {
    const double value = number(i);
    if (!(value >= low && value <= high)) continue;
    double at = (value - low) * static_cast<double>(bins) / (high - low);
    if (!std::isfinite(at)) at = (value / 2 - low / 2) / (high / 2 - low / 2) * static_cast<double>(bins);
    ++counts[at < static_cast<double>(bins) ? static_cast<int64_t>(at) : bins - 1];
  }
}

}  // namespace

void register_sort() {
  register_dry_kernel("topk", &topk_dry);
  for_types(AllTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("topk", kBackend, dtype_of<T>, &topk<T>);
    register_kernel("argsort", kBackend, dtype_of<T>, &argsort<T>);
    register_kernel("kthvalue", kBackend, dtype_of<T>, &kthvalue<T>);
    register_kernel("mode", kBackend, dtype_of<T>, &mode<T>);
  });
  for_types(NumberTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("searchsorted", kBackend, dtype_of<T>, &searchsorted<T>);
    register_kernel("histogram", kBackend, dtype_of<T>, &histogram<T>);
  });
}

}  // namespace shard::cpu
