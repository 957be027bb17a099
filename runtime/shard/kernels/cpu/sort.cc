// CPU kernels that sort, select and count along one axis, and that gather and sum elements by
// indices along it.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/order.h"
#include "shard/kernels/cpu/parallel.h"
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

template <class T>
void topk(const OpContext& ctx, const DenseTensor& x, int axis, bool largest, DenseTensor& out, DenseTensor& indices) {
  const AxisView view = view_of(ctx, x, axis);
  const int64_t count = view_of(ctx, out, axis).size;
  for_lines<T>(x, view, [&](std::vector<Entry<T>>& line, int64_t i) {
    const auto before = [&](const Entry<T>& a, const Entry<T>& b) { return in_order(a, b, largest); };
    std::nth_element(line.begin(), line.begin() + (count - 1), line.end(), before);
    std::sort(line.begin(), line.begin() + count, before);
    store(line, count, i, view.inner, out, indices);
  });
}

template <class T>
void argsort(const OpContext& ctx, const DenseTensor& x, int axis, bool descending, DenseTensor& out,
             DenseTensor& indices) {
  const AxisView view = view_of(ctx, x, axis);
  for_lines<T>(x, view, [&](std::vector<Entry<T>>& line, int64_t i) {
    std::sort(line.begin(), line.end(),
              [&](const Entry<T>& a, const Entry<T>& b) { return in_order(a, b, descending); });
    store(line, view.size, i, view.inner, out, indices);
  });
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
