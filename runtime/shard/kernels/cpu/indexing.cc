// CPU kernels that read and write elements at positions of their own, from a tensor of indices: gather_nd,
// scatter_nd_add, index_add, take_along_axis, put_along_axis. Lookups of whole slices along one dim are in
// embedding.cc.
#include <cstring>
#include <string>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/row_sums.h"
#include "shard/kernels/put.h"

namespace shard::cpu {
namespace {

/// The rows of an index [.., k], each of which names a slice of x by positions in its first k dims.
struct Rows {
  const DenseTensor& index;
  const Box& box;     // of x
  const Dims& local;  // the dims of x on this rank
  const int64_t k;
  const int64_t count;

  Rows(const DenseTensor& index, const Box& box, const Dims& local)
      : index(index), box(box), local(local), k(index.dims()[index.dims().rank() - 1]),
        count(index.dims().numel(0, index.dims().rank() - 1)) {}

  void check(const OpContext& ctx) const {
    const auto size = [&](int64_t i) { return box.global[static_cast<int>(i % k)]; };
    const int64_t i = first_where(count * k, 4, [&](int64_t element) {
      const int64_t value = integer_at(index, element);
      return value < -size(element) || value >= size(element);
    });
    if (i == count * k) return;
    fail_check(ErrorCode::out_of_range, "{}",
               row_outside_text(ctx.op, ArgumentPlace(ctx, 1, index), box.global, k, i, integer_at(index, i)));
  }
  /// The number of the slice that row i names, among those of this rank; -1 where another rank has it.
  int64_t operator()(int64_t i) const {
    int64_t slice = 0;
    for (int64_t d = 0; d < k; ++d) {
      const auto dim = static_cast<int>(d);
      int64_t at = integer_at(index, i * k + d);
      at += (at < 0 ? box.global[dim] : 0) - box.begin[dim];
      if (at < 0 || at >= local[dim]) return -1;
      slice = slice * local[dim] + at;
    }
    return slice;
  }
};

void gather_nd(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, DenseTensor& out) {
  const Box box = ctx.input_box(0, x);
  const Rows rows(index, box, x.dims());
  rows.check(ctx);
  const int64_t width = x.dims().numel(static_cast<int>(rows.k), x.dims().rank());
  const size_t bytes = static_cast<size_t>(width) * size_of(x.dtype());
  parallel_for(bytes == 0 ? 0 : rows.count, width, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      std::memcpy(out.data<char>() + static_cast<size_t>(i) * bytes,
                  x.data<char>() + static_cast<size_t>(rows(i)) * bytes, bytes);
  });
}

/// A thread computes whole slices, so that their sums are in the order of updates.
template <class T>
void scatter_nd_add(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const DenseTensor& updates,
                    DenseTensor& out) {
  const Box box = ctx.input_box(0, x);
  const Rows rows(index, box, x.dims());
  rows.check(ctx);
  const auto chosen = static_cast<int>(rows.k);
  const int64_t slices = x.dims().numel(0, chosen), width = x.dims().numel(chosen, x.dims().rank());
  const Positions positions = positions_of(slices, rows.count, rows);
  parallel_for(slices, width * (2 + rows.count / std::max<int64_t>(slices, 1)), [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      const int64_t begin = positions.begin[size_t(s)], n = positions.begin[size_t(s) + 1] - begin;
      add_rows(x.data<T>() + s * width, updates.data<T>(), positions.at.data() + begin, n, width,
               out.data<T>() + s * width);
    }
  });
}

/// As scatter_nd_add. Slices of other ranks are skipped.
template <class T>
void index_add(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const DenseTensor& add_value,
               int axis, DenseTensor& out) {
  const Box box = ctx.input_box(0, x);
  const int along = normalize_axis(ctx.op, "axis", axis, x.dims().rank());
  const int64_t size = box.global[along], count = index.numel();
  check_indices(ctx, 1, "index", index, -size, size);
  const AxisView view = axis_view(x.dims(), along);
  const Positions positions = positions_of(view.size, count, [&](int64_t i) {
    const int64_t at = integer_at(index, i), row = (at < 0 ? at + size : at) - box.begin[along];
    return row < view.size ? row : -1;
  });
  const int64_t cost = view.inner * (2 + count / std::max<int64_t>(view.size, 1));
  parallel_for(view.outer * view.size, cost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const auto row = static_cast<size_t>(i % view.size);
      const int64_t begin = positions.begin[row], n = positions.begin[row + 1] - begin;
      add_rows(x.data<T>() + i * view.inner, add_value.data<T>() + i / view.size * count * view.inner,
               positions.at.data() + begin, n, view.inner, out.data<T>() + i * view.inner);
    }
  });
}

/// Elements are copied as integers of their size.
template <class T, class I>
void take_rows(const AxisView& view, int64_t count, const T* from, const I* indices, T* to) {
  const int64_t size = view.size;
  const auto place = [=](int64_t index) { return index < 0 ? index + size : index; };
  if (view.inner == 1) {  // elements of one line
    parallel_for(view.outer * count, 2, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last;) {
        const int64_t line = i / count, end = std::min((line + 1) * count, last);
        const T* const elements = from + line * size;
        for (; i < end; ++i) to[i] = elements[place(indices[i])];
      }
    });
    return;
  }
  parallel_for(view.outer * count, 2 * view.inner, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* const slab = from + row / count * view.size * view.inner;
      for (int64_t c = 0; c < view.inner; ++c) {
        const int64_t i = row * view.inner + c;
        to[i] = slab[place(indices[i]) * view.inner + c];
      }
    }
  });
}

template <class T>
void take_elements(const DenseTensor& arr, const DenseTensor& indices, int along, DenseTensor& out) {
  visit_index(indices, [&](const auto* values) {
    take_rows(axis_view(arr.dims(), along), indices.dims()[along], arr.data<T>(), values, out.data<T>());
  });
}

void take_along_axis(const OpContext& ctx, const DenseTensor& arr, const DenseTensor& indices, int axis,
                     DenseTensor& out) {
  const int along = normalize_axis(ctx.op, "axis", axis, arr.dims().rank());
  const int64_t size = ctx.input_box(0, arr).global[along];
  check_indices(ctx, 1, "indices", indices, -size, size);
  switch (size_of(arr.dtype())) {
    case 1: return take_elements<uint8_t>(arr, indices, along, out);
    case 2: return take_elements<uint16_t>(arr, indices, along, out);
    case 4: return take_elements<uint32_t>(arr, indices, along, out);
    default: return take_elements<uint64_t>(arr, indices, along, out);
  }
}

template <class C>
C identity_of(Put put) {
  switch (put) {
    case Put::multiply: return C(1);
    case Put::amax: return lowest<C>();
    case Put::amin: return highest<C>();
    default: return C(0);
  }
}

template <class C>
C put_into(Put put, C old, C value) {
  switch (put) {
    case Put::assign: return value;
    case Put::add:
    case Put::mean: return wrap_add(old, value);
    case Put::multiply: return wrap_mul(old, value);
    case Put::amax: return value > old || value != value ? value : old;
    case Put::amin: return value < old || value != value ? value : old;
  }
  return value;
}

/// The mean of n integers is rounded down.
template <class C>
C mean_of(C sum, int64_t n) {
  if constexpr (std::is_integral_v<C>) return static_cast<C>(int64_t{sum} / n - (int64_t{sum} % n < 0 ? 1 : 0));
  else return sum / static_cast<C>(n);
}

/// What a thread needs for neighbouring columns of arr along the axis.
template <class C>
struct Lanes {
  std::vector<C> values;
  std::vector<int64_t> counts;  // of the values that were put there
};

/// Indices and values of the columns from `first` on are those of arr, at most one block of them; rows of other ranks
/// are skipped. `each` gets the position in the block and the index of the value.
template <class Each>
void for_each_put(const DenseTensor& indices, const AxisView& view, int64_t begin, int64_t global, int64_t slab,
                  int64_t count, int64_t first, int64_t columns, const Each& each) {
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = (slab * count + k) * view.inner + first + c, at = integer_at(indices, i);
      const int64_t row = (at < 0 ? at + global : at) - begin;
      if (row >= 0 && row < view.size) each(static_cast<size_t>(row * columns + c), i);
    }
  }
}

/// Puts values into lines of neighbours, without a copy of them in the type of arithmetic: those that are assigned, or added
/// up in T itself.
template <class T>
void put_into_lines(const AxisView& view, const DenseTensor& arr, const DenseTensor& indices, const T* values,
                    int64_t begin, int64_t global, bool adds, DenseTensor& out) {
  const int64_t count = indices.numel() / std::max<int64_t>(view.outer, 1);
  visit_index(indices, [&](const auto* all) {
    parallel_for(view.outer, view.size + 3 * count, [&](int64_t first, int64_t last) {
      for (int64_t line = first; line < last; ++line) {
        const auto* const at = all + line * count;
        const T *const from = values + line * count, *const old = arr.data<T>() + line * view.size;
        T* const to = out.data<T>() + line * view.size;
        if (to != old) std::copy_n(old, view.size, to);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t place = (at[i] < 0 ? at[i] + global : at[i]) - begin;
          if (place < 0 || place >= view.size) continue;  // another rank's
          if constexpr (!is_half<T>) to[place] = adds ? wrap_add(to[place], from[i]) : from[i];
          else to[place] = from[i];
        }
      }
    });
  });
}

/// A thread computes whole columns, so that values are put in their order.
template <class T>
void put_along_axis(const OpContext& ctx, const DenseTensor& arr, const DenseTensor& indices, const DenseTensor& values,
                    int axis, const std::string& reduce, bool include_self, DenseTensor& out) {
  // Sums of which a mean is taken do not wrap in the dtype.
  using C = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int64_t, Compute<T>>;
  const Box box = ctx.input_box(0, arr);
  const int along = normalize_axis(ctx.op, "axis", axis, arr.dims().rank());
  const int64_t global = box.global[along], count = indices.dims()[along];
  check_indices(ctx, 1, "indices", indices, -global, global);
  const AxisView view = axis_view(arr.dims(), along);
  const Put put = put_named(reduce);
  const bool adds = put == Put::add && include_self && !is_half<T>;
  if (view.inner == 1 && (put == Put::assign || adds))
    return put_into_lines(view, arr, indices, values.data<T>(), box.begin[along], global, adds, out);
  constexpr int64_t kBlock = 4096;  // elements of a block, unless one column has more
  const int64_t width =
      std::clamp<int64_t>(kBlock / std::max<int64_t>(view.size, 1), 1, std::max<int64_t>(view.inner, 1));
  const int64_t blocks = (view.inner + width - 1) / width;
  parallel_for(view.outer * blocks, 3 * width * (view.size + count), [&](int64_t from, int64_t to) {
    Lanes<C> lanes;
    for (int64_t job = from; job < to; ++job) {
      const int64_t slab = job / blocks, first = job % blocks * width, columns = std::min(width, view.inner - first);
      const int64_t corner = slab * view.size * view.inner + first;
      lanes.values.resize(static_cast<size_t>(view.size * columns));
      for (int64_t r = 0; r < view.size; ++r)
        std::copy_n(arr.data<T>() + corner + r * view.inner, columns, lanes.values.data() + r * columns);
      const auto each = [&](const auto& body) {
        for_each_put(indices, view, box.begin[along], global, slab, count, first, columns, body);
      };
      if (!include_self && put != Put::assign)
        each([&](size_t at, int64_t) { lanes.values[at] = identity_of<C>(put); });
      each([&](size_t at, int64_t i) {
        lanes.values[at] = put_into(put, lanes.values[at], static_cast<C>(values.data<T>()[i]));
      });
      if (put == Put::mean) {
        lanes.counts.assign(lanes.values.size(), 0);
        each([&](size_t at, int64_t) { ++lanes.counts[at]; });
        for (size_t at = 0; at < lanes.counts.size(); ++at) {
          if (lanes.counts[at] == 0) continue;
          const int64_t n = lanes.counts[at] + (include_self ? 1 : 0);
          lanes.values[at] = mean_of(lanes.values[at], n);
        }
      }
      for (int64_t r = 0; r < view.size; ++r) {
        T* target = out.data<T>() + corner + r * view.inner;
        for (int64_t c = 0; c < columns; ++c)
          target[c] = static_cast<T>(lanes.values[static_cast<size_t>(r * columns + c)]);
      }
    }
  });
}

}  // namespace

void register_indexing() {
  register_for_all("gather_nd", &gather_nd);
  register_for_all("take_along_axis", &take_along_axis);
  for_types(NumberTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("scatter_nd_add", kBackend, dtype_of<T>, &scatter_nd_add<T>);
    register_kernel("index_add", kBackend, dtype_of<T>, &index_add<T>);
    register_kernel("put_along_axis", kBackend, dtype_of<T>, &put_along_axis<T>);
  });
}

}  // namespace shard::cpu
