// CPU kernels in which the position of an element decides what it becomes: roll, pad, unfold and fold,
// triangle_indices, fill_diagonal; and shape and shard_index.
#include <algorithm>
#include <cstring>
#include <limits>

#include "shard/core/convert.h"
#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/meta/window.h"

namespace shard::cpu {
namespace {

/// The dims that move are whole on each rank.
void roll(const OpContext& ctx, const DenseTensor& x, const IntArray& shifts, const IntArray& axis, DenseTensor& out) {
  if (x.numel() == 0) return;
  const Dims dims = axis.empty() ? Dims{x.numel()} : x.dims();
  Dims moved = Dims::filled(dims.rank(), 0);
  for (size_t i = 0; i < shifts.size(); ++i) {
    const int d = axis.empty() ? 0 : normalize_axis(ctx.op, "an axis", axis[i], dims.rank());
    const int64_t by = shifts[i] % dims[d];
    moved[d] = (moved[d] + by + dims[d]) % dims[d];
  }
  int last = dims.rank() - 1;
  while (last > 0 && moved[last] == 0) --last;
  const int64_t run = dims.numel(std::max(last, 0), dims.rank());  // elements of a row
  const size_t row_bytes = static_cast<size_t>(run) * size_of(x.dtype());
  const size_t head = last < 0 ? 0 : row_bytes / static_cast<size_t>(dims[last]) * static_cast<size_t>(moved[last]);
  parallel_for(x.numel() / run, run, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      int64_t from = 0, rest = row, step = 1;
      for (int d = last - 1; d >= 0; --d) {
        from += (rest % dims[d] - moved[d] + dims[d]) % dims[d] * step;
        rest /= dims[d];
        step *= dims[d];
      }
      const char* source = x.data<char>() + static_cast<size_t>(from) * row_bytes;
      char* target = out.data<char>() + static_cast<size_t>(row) * row_bytes;
      std::memcpy(target + head, source, row_bytes - head);
      std::memcpy(target, source + (row_bytes - head), head);
    }
  });
}

/// The dims that grow are whole on each rank.
template <class T>
void pad(const OpContext&, const DenseTensor& x, const IntArray& paddings, const Scalar& pad_value, DenseTensor& out) {
  const T value = pad_value.to<T>();
  const Dims &from = x.dims(), &to = out.dims();
  const auto before = [&](int d) { return paddings[2 * static_cast<size_t>(d)]; };
  int last = to.rank() - 1;
  while (last > 0 && from[last] == to[last]) --last;
  last = std::max(last, 0);
  const int64_t inner = to.numel(std::min(last + 1, to.rank()), to.rank());
  const int64_t run = to.rank() == 0 ? 1 : to[last] * inner;
  const int64_t copied = to.rank() == 0 ? 1 : from[last] * inner, head = to.rank() == 0 ? 0 : before(last) * inner;
  parallel_for(run == 0 ? 0 : out.numel() / run, run, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      int64_t source = 0, rest = row, step = 1;
      bool inside = true;
      for (int d = last - 1; d >= 0; --d) {
        const int64_t at = rest % to[d] - before(d);
        inside = inside && at >= 0 && at < from[d];
        source += at * step;
        rest /= to[d];
        step *= from[d];
      }
      T* target = out.data<T>() + row * run;
      if (!inside) {
        std::fill_n(target, run, value);
        continue;
      }
      std::fill_n(target, head, value);
      std::copy_n(x.data<T>() + source * copied, copied, target + head);
      std::fill_n(target + head + copied, run - head - copied, value);
    }
  });
}

/// The two windows of unfold and fold over an image [n, c, h, w].
struct Blocks {
  meta::Windows windows;
  const meta::Window &rows = windows[1], &columns = windows[2];
  int64_t c, h, w, down = rows.out, across = columns.out;  // down * across blocks

  Blocks(const Dims& image, const IntArray& kernel_sizes, const IntArray& strides, const IntArray& paddings,
         const IntArray& dilations)
      : windows(meta::unfold_windows(image[2], image[3], kernel_sizes, strides, paddings, dilations)), c(image[1]),
        h(image[2]), w(image[3]) {}
  Blocks(const Blocks&) = delete;
};

template <class T>
void unfold(const OpContext&, const DenseTensor& x, const IntArray& kernel_sizes, const IntArray& strides,
            const IntArray& paddings, const IntArray& dilations, DenseTensor& out) {
  const Blocks b(x.dims(), kernel_sizes, strides, paddings, dilations);
  const int64_t size = b.rows.size * b.columns.size;
  parallel_for(x.dims()[0] * b.c * size, b.down * b.across, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      const T* plane = x.data<T>() + line / size * b.h * b.w;
      const int64_t kr = line % size / b.columns.size, kc = line % b.columns.size;
      T* to = out.data<T>() + line * b.down * b.across;
      for (int64_t p = 0; p < b.down; ++p) {
        const int64_t r = b.rows.element(p, kr);
        for (int64_t q = 0; q < b.across; ++q) {
          const int64_t c = b.columns.element(q, kc);
          *to++ = r >= 0 && r < b.h && c >= 0 && c < b.w ? plane[r * b.w + c] : T(Compute<T>(0));
        }
      }
    }
  });
}

template <class T>
void fold(const OpContext&, const DenseTensor& x, const IntArray&, const IntArray& kernel_sizes,
          const IntArray& strides, const IntArray& paddings, const IntArray& dilations, DenseTensor& out) {
  using C = Compute<T>;
  const Blocks b(out.dims(), kernel_sizes, strides, paddings, dilations);
  const int64_t size = b.rows.size * b.columns.size;
  parallel_for(out.dims()[0] * b.c, size * b.down * b.across + b.h * b.w, [&](int64_t first, int64_t last) {
    std::vector<C> plane(static_cast<size_t>(b.h * b.w));
    for (int64_t i = first; i < last; ++i) {
      std::fill(plane.begin(), plane.end(), C(0));
      const T* from = x.data<T>() + i * size * b.down * b.across;
      for (int64_t k = 0; k < size; ++k) {
        for (int64_t p = 0; p < b.down; ++p) {
          const int64_t r = b.rows.element(p, k / b.columns.size);
          for (int64_t q = 0; q < b.across; ++q, ++from) {
            const int64_t c = b.columns.element(q, k % b.columns.size);
            if (r < 0 || r >= b.h || c < 0 || c >= b.w) continue;
            C& sum = plane[static_cast<size_t>(r * b.w + c)];
            sum = wrap_add(sum, static_cast<C>(*from));
          }
        }
      }
      for (int64_t e = 0; e < b.h * b.w; ++e) out.data<T>()[i * b.h * b.w + e] = static_cast<T>(plane[size_t(e)]);
    }
  });
}

/// Any box of the result, of which each row of the matrix fills a run of columns.
template <class T>
void triangle_indices(const OpContext& ctx, int rows, int columns, int offset, bool lower, DenseTensor& out) {
  const Dims begin = ctx.output_box(0, out).begin;
  const int64_t width = out.dims()[1];
  int64_t at = -begin[1];  // of the row's first element, in this box
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t border = std::clamp<int64_t>(r + offset + (lower ? 1 : 0), 0, columns);
    const int64_t first = lower ? 0 : border, count = lower ? border : columns - border;
    const int64_t from = std::clamp<int64_t>(at, 0, width), to = std::clamp<int64_t>(at + count, 0, width);
    for (int64_t line = 0; line < out.dims()[0]; ++line) {
      T* target = out.data<T>() + line * width;
      for (int64_t i = from; i < to; ++i) target[i] = static_cast<T>(begin[0] + line == 0 ? r : first + i - at);
    }
    at += count;
  }
}

/// A local shard of x: the positions on the diagonal are global.
template <class T>
void fill_diagonal(const OpContext& ctx, const DenseTensor& x, float value, int offset, bool wrap, DenseTensor& out) {
  const Box box = ctx.input_box(0, x);
  const int rank = x.dims().rank();
  if (x.data<T>() != out.data<T>()) std::copy_n(x.data<T>(), x.numel(), out.data<T>());
  if (x.numel() == 0) return;
  const int64_t columns = box.global[rank - 1];
  // Without wrap a position on the diagonal has equal indices; with it every (columns + 1)-th element
  // of a matrix is one.
  const int64_t count =
      wrap && rank == 2 ? (box.global[0] * columns + columns) / (columns + 1) : std::min(box.global[0], columns);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = wrap && rank == 2 ? i * (columns + 1) / columns : i;
    const int64_t column = wrap && rank == 2 ? i * (columns + 1) % columns : i;
    if (column + offset < 0 || column + offset >= columns) continue;
    int64_t element = 0;
    bool here = true;
    for (int d = 0; d < rank; ++d) {
      const int64_t at = (d == rank - 1 ? column + offset : row) - box.begin[d];
      here = here && at >= 0 && at < x.dims()[d];
      element = element * x.dims()[d] + at;
    }
    if (here) out.data<T>()[element] = convert<T>(static_cast<double>(value));
  }
}

void shape(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  const Dims dims = ctx.input_box(0, x).global;
  for (int d = 0; d < dims.rank(); ++d) out.data<int32_t>()[d] = static_cast<int32_t>(dims[d]);
}

template <class T>
void shard_index(const OpContext& ctx, const DenseTensor& x, int index_num, int nshards, int shard_id, int ignore_value,
                 DenseTensor& out) {
  check_indices(ctx, 0, "input", x, 0, index_num);
  const int64_t size = (int64_t{index_num} + nshards - 1) / nshards, first = size * shard_id;
  parallel_for(x.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = x.data<T>()[i] - first;
      out.data<T>()[i] = static_cast<T>(at >= 0 && at < size ? at : ignore_value);
    }
  });
}

}  // namespace

void register_positions() {
  register_for_all("roll", &roll);
  register_for_all("shape", &shape);
  for_types(AllTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("pad", kBackend, dtype_of<T>, &pad<T>);
    register_kernel("fill_diagonal", kBackend, dtype_of<T>, &fill_diagonal<T>);
  });
  for_types(NumberTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("unfold", kBackend, dtype_of<T>, &unfold<T>);
    register_kernel("fold", kBackend, dtype_of<T>, &fold<T>);
  });
  for_types(Types<int32_t, int64_t>{}, []<class T>(TypeTag<T>) {
    register_kernel("triangle_indices", kBackend, dtype_of<T>, &triangle_indices<T>);
    register_kernel("shard_index", kBackend, dtype_of<T>, &shard_index<T>);
  });
}

}  // namespace shard::cpu
