// Products on CUDA that cuBLASLt does not have: those of integers, and sums of columns.
#include "shard/kernels/cuda/product.cuh"

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {
namespace {

constexpr int kProductTile = 64;  // rows and columns of a block's part of the result
constexpr int kDepth = 16;        // terms that are in shared memory at once
constexpr int kThreadSide = 16;   // threads along either side of it
constexpr int kThreadTile = kProductTile / kThreadSide;
constexpr int kProductThreads = kThreadSide * kThreadSide;
constexpr int64_t kLeastTerms = 256;  // of a part of a sum

/// Numbers of one thread, which one or two accesses read.
template <class C>
struct alignas(16) Run {
  C values[kThreadTile];
};

template <class C>
__device__ __forceinline__ Run<C> read_run(const C* from) {
  const Run<C>& there = *reinterpret_cast<const Run<C>*>(from);
  Run<C> run;
#pragma unroll
  for (int i = 0; i < kThreadTile; ++i) run.values[i] = there.values[i];
  return run;
}

/// A part of a factor in shared memory, [term][row].
template <class C>
struct alignas(16) FactorTile {
  C lines[kDepth][kProductTile + kThreadTile];
};

/// A matrix whose element (i, j) is at i * row + j * column.
template <class T>
struct Steps {
  const T* data;
  int64_t row, column;
};

/// Copies rows [first, first + kProductTile) and terms [begin, begin + kDepth) of x, whose terms are its columns. Neighbouring threads
/// read neighbouring elements along the dim without gaps.
template <class C, class T>
__device__ void load_tile(FactorTile<C>& to, const Steps<T>& x, int64_t first, int64_t rows, int64_t begin,
                          int64_t end) {
  const bool along_terms = x.column == 1;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kProductTile * kDepth; i += kProductThreads) {
    const int row = along_terms ? i / kDepth : i % kProductTile, term = along_terms ? i % kDepth : i / kProductTile;
    const bool is_inside = first + row < rows && begin + term < end;
    to.lines[term][row] = is_inside ? static_cast<C>(x.data[(first + row) * x.row + (begin + term) * x.column]) : C(0);
  }
}

/// What one block multiplies.
struct ProductPart {
  int64_t m, n, row, column, begin, end;
};

/// The sums of one tile of the result over the terms [begin, end), in registers.
template <class C, class T>
__device__ void multiply_tile(const Steps<T>& x, const Steps<T>& y, const ProductPart& part,
                              C (&sums)[kThreadTile][kThreadTile]) {
  SHARD_SHARED(rows, FactorTile<C>);
  SHARD_SHARED(columns, FactorTile<C>);
  const int row = static_cast<int>(threadIdx.x) / kThreadSide * kThreadTile,
            column = static_cast<int>(threadIdx.x) % kThreadSide * kThreadTile;
  for (int64_t begin = part.begin; begin < part.end; begin += kDepth) {
    __syncthreads();  // the last terms have been read
    load_tile(rows, x, part.row, part.m, begin, part.end);
    load_tile(columns, y, part.column, part.n, begin, part.end);
    __syncthreads();
#pragma unroll
    for (int term = 0; term < kDepth; ++term) {
      const Run<C> a = read_run(&rows.lines[term][row]);
      const Run<C> b = read_run(&columns.lines[term][column]);
#pragma unroll
      for (int i = 0; i < kThreadTile; ++i) {
#pragma unroll
        for (int j = 0; j < kThreadTile; ++j) sums[i][j] += a.values[i] * b.values[j];
      }
    }
  }
}

/// A block has a tile of the result of one product of a batch, or a part of the terms of its sums: `parts` results follow each
/// other. C is the unsigned type of sums, R that of results.
template <class C, class T, class R>
__global__ void __launch_bounds__(kProductThreads)
    multiply_kernel(Product p, const T* x, const T* y, R* out, int64_t terms, int64_t parts) {
  const int64_t row_tiles = (p.m + kProductTile - 1) / kProductTile,
                column_tiles = (p.n + kProductTile - 1) / kProductTile;
  const int64_t blocks = row_tiles * column_tiles * p.batch * parts;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t column = block % column_tiles, row = block / column_tiles % row_tiles;
    const int64_t matrix = block / column_tiles / row_tiles, b = matrix % p.batch, number = matrix / p.batch;
    const Steps<T> xs{x + b * p.x_step, p.transpose_x ? 1 : p.k, p.transpose_x ? p.m : 1};
    const Steps<T> ys{y + b * p.y_step, p.transpose_y ? p.k : 1, p.transpose_y ? 1 : p.n};  // rows are columns of y
    const int64_t begin = number * terms, end = begin + terms < p.k ? begin + terms : p.k;
    C sums[kThreadTile][kThreadTile] = {};
    const ProductPart part{p.m, p.n, row * kProductTile, column * kProductTile, begin, end};
    multiply_tile(xs, ys, part, sums);
    const int64_t first_row = part.row + static_cast<int>(threadIdx.x) / kThreadSide * kThreadTile,
                  first_column = part.column + static_cast<int>(threadIdx.x) % kThreadSide * kThreadTile;
    for (int i = 0; i < kThreadTile && first_row + i < p.m; ++i) {
      for (int j = 0; j < kThreadTile && first_column + j < p.n; ++j)
        out[(matrix * p.m + first_row + i) * p.n + first_column + j] = static_cast<R>(sums[i][j]);
    }
  }
}

/// out[i] = the sum of number i of all parts, plus that of `added` unless it is null.
template <class C, class R>
__global__ void add_parts_kernel(R* out, const C* sums, int64_t parts, int64_t count, const R* added) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    C sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[part * count + i];
    if (added != nullptr) sum += static_cast<C>(load(added[i]));
    out[i] = store<R>(static_cast<math_t<R>>(sum));
  }
}

/// How many parts a sum of `terms` terms has, so that `blocks` blocks for each part fill the device.
int64_t parts_of(int64_t blocks, int64_t terms) {
  const int64_t wanted = 2 * multiprocessors() / std::max<int64_t>(blocks, 1), most = terms / kLeastTerms;
  return std::max<int64_t>(1, std::min(wanted, most));
}

unsigned grid_of(int64_t blocks) { return static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX)); }

template <class T>
void multiply_of(const OpContext& ctx, const Product& p, const T* x, const T* y, T* out) {
  using C = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  const int64_t blocks = (p.m + kProductTile - 1) / kProductTile * ((p.n + kProductTile - 1) / kProductTile) * p.batch;
  const int64_t wanted = parts_of(blocks, p.k), terms = (p.k + wanted - 1) / wanted, parts = (p.k + terms - 1) / terms;
  if (parts == 1)
    return launch(ctx, multiply_kernel<C, T, T>, grid_of(blocks), kProductThreads, p, x, y, out, p.k, int64_t{1});
  const int64_t count = p.batch * p.m * p.n;
  const Scratch scratch(static_cast<size_t>(parts * count) * sizeof(C));
  C* const sums = static_cast<C*>(scratch.data());
  launch(ctx, multiply_kernel<C, T, C>, grid_of(blocks * parts), kProductThreads, p, x, y, sums, terms, parts);
  launch(ctx, add_parts_kernel<C, T>, grid_for(count, 256), 256, out, sums, parts, count,
         static_cast<const T*>(nullptr));
}

constexpr int kRows = 16;  // rows of x that a block reads at once, for kWarp columns

/// sums[part] = those of the columns of x over the rows of the part, which are `rows` or fewer.
template <class C, class T>
__global__ void __launch_bounds__(kWarp* kRows)
    sum_columns_kernel(C* sums, const T* x, int64_t all_rows, int64_t n, int64_t rows, int64_t parts) {
  SHARD_SHARED(of_threads, C[kRows][kWarp]);
  const int lane = static_cast<int>(threadIdx.x), line = static_cast<int>(threadIdx.y);
  const int64_t column_blocks = (n + kWarp - 1) / kWarp;
  for (int64_t block = blockIdx.x; block < column_blocks * parts; block += gridDim.x) {
    const int64_t part = block / column_blocks, column = block % column_blocks * kWarp + lane;
    const int64_t end = (part + 1) * rows < all_rows ? (part + 1) * rows : all_rows;
    C sum = 0;
    for (int64_t row = part * rows + line; column < n && row < end; row += kRows) sum += load(x[row * n + column]);
    __syncthreads();  // the last sums have been read
    of_threads[line][lane] = sum;
    __syncthreads();
    if (line != 0 || column >= n) continue;
    for (int i = 1; i < kRows; ++i) sum += of_threads[i][lane];
    sums[part * n + column] = sum;
  }
}

template <class T, class R>
void sum_columns_of(const OpContext& ctx, const DenseTensor& x, const DenseTensor& added, DenseTensor& out) {
  using D = device_t<T>;
  using C = math_t<D>;
  const int64_t n = out.numel(), rows = x.numel() / n;
  const int64_t blocks = (n + kWarp - 1) / kWarp, wanted = parts_of(blocks, rows);
  const int64_t of_part = (rows + wanted - 1) / wanted, parts = of_part == 0 ? 0 : (rows + of_part - 1) / of_part;
  const Scratch scratch(static_cast<size_t>(std::max<int64_t>(parts * n, 1)) * sizeof(C));
  C* const sums = static_cast<C*>(scratch.data());
  if (parts > 0) {
    launch(ctx, sum_columns_kernel<C, D>, grid_of(blocks * parts), dim3(kWarp, kRows), sums, elements<const D>(x), rows,
           n, of_part, parts);
  }
  launch(ctx, add_parts_kernel<C, device_t<R>>, grid_for(n, 256), 256, elements<device_t<R>>(out), sums, parts, n,
         added.defined() ? elements<const device_t<R>>(added) : nullptr);
}

}  // namespace

void multiply_integers(const OpContext& ctx, const Product& p, size_t bytes, const void* x, const void* y, void* out) {
  const auto of = [&]<class T>(TypeTag<T>) {
    multiply_of(ctx, p, static_cast<const T*>(x), static_cast<const T*>(y), static_cast<T*>(out));
  };
  switch (bytes) {
    case 1: return of(TypeTag<uint8_t>());
    case 4: return of(TypeTag<uint32_t>());
    default: return of(TypeTag<uint64_t>());
  }
}

void sum_columns(const OpContext& ctx, const DenseTensor& x, const DenseTensor& added, DenseTensor& out) {
  if (out.numel() == 0) return;
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    if (x.dtype() != dtype_of<T>) return;
    if (out.dtype() == x.dtype()) sum_columns_of<T, T>(ctx, x, added, out);
    else if constexpr (sizeof(T) == 2) sum_columns_of<T, float>(ctx, x, added, out);
  });
}

}  // namespace shard::cuda
