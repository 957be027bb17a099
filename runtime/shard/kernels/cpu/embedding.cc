// CPU kernels that look up rows or columns by index, and their gradients: embedding, gather,
// scatter; one_hot.
#include <algorithm>
#include <cstring>
#include <vector>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/row_sums.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// Rows that another rank holds are zeros here: the result is the sum of the contributions of all
/// ranks.
void embedding(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weight, int64_t padding_idx,
               DenseTensor& out) {
  const Box box = ctx.input_box(1, weight);
  check_indices(ctx, 0, "x", x, 0, box.global[0]);
  const size_t bytes = static_cast<size_t>(weight.dims()[1]) * size_of(weight.dtype());
  const int64_t first_row = box.begin[0];
  const int64_t rows = weight.dims()[0];
  const char* from = weight.data<char>();
  char* to = out.data<char>();
  parallel_for(x.numel(), weight.dims()[1], [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t id = integer_at(x, i);
      const int64_t row = id - first_row;
      char* target = to + static_cast<size_t>(i) * bytes;
      if (row < 0 || row >= rows || (padding_idx != -1 && id == padding_idx)) std::memset(target, 0, bytes);
      else std::memcpy(target, from + static_cast<size_t>(row) * bytes, bytes);
    }
  });
}

/// For each row that this rank holds, adds up its gradients in the order of x, in double.
template <class T>
void embedding_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weight, const DenseTensor& out_grad,
                    int64_t padding_idx, DenseTensor& weight_grad) {
  const Box box = ctx.input_box(1, weight);
  check_indices(ctx, 0, "x", x, 0, box.global[0]);
  const int64_t rows = weight.dims()[0], width = weight.dims()[1], count = x.numel();
  const auto row_of = [&](int64_t i) {
    const int64_t id = integer_at(x, i), row = id - box.begin[0];
    return row < 0 || row >= rows || (padding_idx != -1 && id == padding_idx) ? int64_t{-1} : row;
  };
  const Positions places = positions_of(rows, count, row_of);
  parallel_for(rows, 2 * width * (1 + count / std::max<int64_t>(rows, 1)), [&](int64_t first, int64_t last) {
    std::vector<double> sums(static_cast<size_t>(width));
    for (int64_t row = first; row < last; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t i = places.begin[size_t(row)]; i < places.begin[size_t(row) + 1]; ++i) {
        const T* from = out_grad.data<T>() + places.at[size_t(i)] * width;
        for (int64_t c = 0; c < width; ++c)
          sums[static_cast<size_t>(c)] += static_cast<double>(static_cast<Compute<T>>(from[c]));
      }
      T* to = weight_grad.data<T>() + row * width;
      for (int64_t c = 0; c < width; ++c) to[c] = T(static_cast<Compute<T>>(sums[static_cast<size_t>(c)]));
    }
  });
}

/// The slices at `rows` of each line of x, of `bytes` bytes each, or, where that is not 0, of `fixed`, so that each of them
/// is moved by one instruction.
template <size_t fixed>
void gather_rows(const char* x, const std::vector<int64_t>& rows, const AxisView& view, size_t bytes, char* out) {
  const size_t size = fixed == 0 ? bytes : fixed;
  const auto count = static_cast<int64_t>(rows.size());
  parallel_for(view.outer * count, view.inner, [&](int64_t first, int64_t last) {
    for (int64_t i = first, n = 0; i < last; i += n) {
      const int64_t begin = i % count;
      n = std::min(count - begin, last - i);
      const char* const line = x + static_cast<size_t>(i / count * view.size) * size;
      char* const to = out + static_cast<size_t>(i) * size;
      for (int64_t j = 0; j < n; ++j) {
        const auto row = static_cast<size_t>(rows[static_cast<size_t>(begin + j)]);
        std::memcpy(to + static_cast<size_t>(j) * size, line + row * size, size);
      }
    }
  });
}

void gather(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const Scalar& axis,
            DenseTensor& out) {
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()));
  check_indices(ctx, 1, "index", index, -view.size, view.size);
  std::vector<int64_t> rows(static_cast<size_t>(index.numel()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t at = integer_at(index, static_cast<int64_t>(i));
    rows[i] = at < 0 ? at + view.size : at;
  }
  const size_t bytes = static_cast<size_t>(view.inner) * size_of(x.dtype());
  const auto run = bytes == 1   ? &gather_rows<1>
                   : bytes == 2 ? &gather_rows<2>
                   : bytes == 4 ? &gather_rows<4>
                   : bytes == 8 ? &gather_rows<8>
                                : &gather_rows<0>;
  run(x.data<char>(), rows, view, bytes, out.data<char>());
}

/// For each of the rows row_of(0), ... below `size`, whether it is the first of its kind.
template <class RowOf>
std::vector<uint8_t> first_of_rows(int64_t size, int64_t count, const RowOf& row_of) {
  std::vector<uint8_t> seen(static_cast<size_t>(size)), first(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    uint8_t& known = seen[static_cast<size_t>(row_of(i))];
    first[static_cast<size_t>(i)] = known == 0;
    known = 1;
  }
  return first;
}

/// Adds up the elements of each line of x, of `view`, by their rows in a line of the result, in their order.
template <class T>
void sum_lines(const AxisView& view, const T* x, const DenseTensor& index, int64_t size, T* out) {
  using C = Compute<T>;
  visit_index(index, [&](const auto* rows) {
    const auto row_of = [=](int64_t i) { return rows[i] < 0 ? rows[i] + size : int64_t{rows[i]}; };
    const std::vector<uint8_t> begins = first_of_rows(size, view.size, row_of);  // a sum, which may be -0
    parallel_for(view.outer, 2 * view.size + size, [&](int64_t first, int64_t last) {
      std::vector<C> sums(static_cast<size_t>(size));
      for (int64_t line = first; line < last; ++line) {
        std::fill(sums.begin(), sums.end(), C(0));
        const T* const from = x + line * view.size;
        for (int64_t i = 0; i < view.size; ++i) {
          C& sum = sums[static_cast<size_t>(row_of(i))];
          sum = begins[static_cast<size_t>(i)] != 0 ? static_cast<C>(from[i]) : wrap_add(sum, static_cast<C>(from[i]));
        }
        for (int64_t row = 0; row < size; ++row) out[line * size + row] = T(sums[static_cast<size_t>(row)]);
      }
    });
  });
}

/// A thread computes whole rows of the result, so that their sums are in the order of x, whatever
/// the number of threads.
template <class T>
void index_sum(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, int64_t size, int axis,
               DenseTensor& out) {
  check_indices(ctx, 1, "index", index, -size, size);
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  if (view.inner == 1) return sum_lines(view, x.data<T>(), index, size, out.data<T>());
  const Positions positions = positions_of(size, index.numel(), [&](int64_t i) {
    const int64_t at = integer_at(index, i);
    return at < 0 ? at + size : at;
  });
  const int64_t cost = view.inner * (1 + view.size / std::max<int64_t>(size, 1));
  parallel_for(view.outer * size, cost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const auto row = static_cast<size_t>(i % size);
      const T* from = x.data<T>() + i / size * view.size * view.inner;
      T* to = out.data<T>() + i * view.inner;
      const int64_t begin = positions.begin[row], n = positions.begin[row + 1] - begin;
      if (n == 0) std::fill_n(to, view.inner, T(Compute<T>(0)));
      else add_rows<T>(nullptr, from, positions.at.data() + begin, n, view.inner, to);
    }
  });
}

template <class I>
void one_hot(const OpContext& ctx, const DenseTensor& x, const Scalar& num_classes, DenseTensor& out) {
  const int64_t classes = num_classes.to<int64_t>();
  check_indices(ctx, 0, "x", x, 0, classes);
  const I* ids = x.data<I>();
  float* to = out.data<float>();
  parallel_for(x.numel(), classes, [&](int64_t first, int64_t last) {
    std::fill(to + first * classes, to + last * classes, 0.0f);
    for (int64_t i = first; i < last; ++i) to[i * classes + ids[i]] = 1.0f;
  });
}

/// A thread computes whole rows, so that their sums are in the order of updates. Rows of other ranks are skipped.
template <class T>
void scatter(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const DenseTensor& updates,
             bool overwrite, DenseTensor& out) {
  const Box box = ctx.input_box(0, x);
  check_indices(ctx, 1, "index", index, 0, box.global[0]);
  const int64_t rows = x.dims()[0], width = x.dims().numel(1, x.dims().rank()), count = index.numel();
  const Positions positions = positions_of(rows, count, [&](int64_t i) {
    const int64_t row = integer_at(index, i) - box.begin[0];
    return row < rows ? row : -1;
  });
  parallel_for(rows, 2 * width * (1 + count / std::max<int64_t>(rows, 1)), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t begin = positions.begin[size_t(row)], n = positions.begin[size_t(row) + 1] - begin;
      const int64_t* const at = positions.at.data() + begin;
      const T* old = x.data<T>() + row * width;
      T* to = out.data<T>() + row * width;
      if (n > 0 && !overwrite) add_rows<T>(nullptr, updates.data<T>(), at, n, width, to);
      else if (n > 0) std::copy_n(updates.data<T>() + at[n - 1] * width, width, to);
      else if (old != to) std::copy_n(old, width, to);
    }
  });
}

/// Rows of updates that a later update replaced, or that another rank writes, get zeros here; so do
/// rows of x that were replaced.
void scatter_grad(const OpContext& ctx, const DenseTensor& index, const DenseTensor& out_grad, bool overwrite,
                  DenseTensor& x_grad, DenseTensor& updates_grad) {
  const Box box = ctx.input_box(1, out_grad);
  check_indices(ctx, 0, "index", index, 0, box.global[0]);
  const int64_t rows = out_grad.dims()[0], width = out_grad.dims().numel(1, out_grad.dims().rank()),
                count = index.numel();
  const size_t bytes = static_cast<size_t>(width) * size_of(out_grad.dtype());
  std::vector<int64_t> writer(static_cast<size_t>(rows), -1);  // the last update of each row
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = integer_at(index, i) - box.begin[0];
    if (row >= 0 && row < rows) writer[static_cast<size_t>(row)] = i;
  }
  parallel_for(count, width, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = integer_at(index, i) - box.begin[0];
      char* to = updates_grad.data<char>() + static_cast<size_t>(i) * bytes;
      const bool written = row >= 0 && row < rows && (!overwrite || writer[static_cast<size_t>(row)] == i);
      if (written) std::memcpy(to, out_grad.data<char>() + static_cast<size_t>(row) * bytes, bytes);
      else std::memset(to, 0, bytes);
    }
  });
  parallel_for(rows, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const char* from = out_grad.data<char>() + static_cast<size_t>(r) * bytes;
      char* to = x_grad.data<char>() + static_cast<size_t>(r) * bytes;
      if (writer[static_cast<size_t>(r)] >= 0) std::memset(to, 0, bytes);
      else if (from != to) std::memcpy(to, from, bytes);
    }
  });
}

}  // namespace

void register_embedding() {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("embedding", kBackend, dtype_of<T>, &embedding); });
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("embedding_grad", kBackend, dtype_of<T>, &embedding_grad<T>); });
  register_for_all("gather", &gather);
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("scatter", kBackend, dtype_of<T>, &scatter<T>); });
  for_types(NumberTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("index_sum", kBackend, dtype_of<T>, &index_sum<T>); });
  register_for_all("scatter_grad", &scatter_grad);
  for_types(Types<int32_t, int64_t>{},
            [&]<class I>(TypeTag<I>) { register_kernel("one_hot", kBackend, dtype_of<I>, &one_hot<I>); });
}

}  // namespace shard::cpu
