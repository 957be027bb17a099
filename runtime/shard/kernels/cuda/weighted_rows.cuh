// Rows of consecutive elements with numbers for each column, which all rows share: scales and offsets. Threads keep the numbers of their
// columns in registers while they take one row after the other, and may add up something for each column as well.
//
// An op is a struct that is a kernel argument, with `Element`, `kInputs`, `in` and `out` as in lines.cuh, and
//   static constexpr int kThreads;   of a multiprocessor, so that registers and partial sums are in proportion
//   template <class Plan> struct Work;
// A Work is made of the op and the size of rows by each thread of a block. work(row) does a row, and work.finish() comes after the last.
#pragma once

#include <algorithm>

#include "shard/kernels/cuda/lines.cuh"

namespace shard::cuda {

/// `Threads` threads share a row, and each has Chunks accesses of Width elements of it, as in Row. With `keeps` it has as many of
/// whatever there is for each column.
template <class T, int Threads_, int Width_, int Chunks_, bool keeps>
struct RowPlan {
  using Element = T;
  static constexpr int kThreads = Threads_, kWidth = Width_, kChunks = Chunks_;
  static constexpr bool kKeeps = keeps;
  static constexpr int kTogether = kThreads == kWarp ? 8 : 1;  // rows of a block
  static constexpr int kKept = keeps ? kChunks : 1;
};

/// Elements [at, at + N), of which all blocks read the same.
template <int N, class T>
__device__ void load_shared_by_blocks(const T* from, int64_t at, math_t<T> (&numbers)[N]) {
  using Word = AccessWord<N* static_cast<int>(sizeof(T))>;
  constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  T values[N];
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const Word word = __ldg(reinterpret_cast<const Word*>(from + at) + w);
    memcpy(reinterpret_cast<char*>(values) + w * sizeof(Word), &word, sizeof(Word));
  }
#pragma unroll
  for (int k = 0; k < N; ++k) numbers[k] = load(values[k]);
}

/// A number for each column in the dtype of rows or in that of their statistics; `otherwise` where the tensor is absent.
template <class T>
struct ColumnNumbers {
  const void* data;
  bool wide;
  math_t<T> otherwise;

  ColumnNumbers(const DenseTensor& tensor, float otherwise)
      : data(tensor.defined() ? tensor.raw() : nullptr), wide(tensor.defined() && size_of(tensor.dtype()) != sizeof(T)),
        otherwise(otherwise) {}

  template <int N>
  __device__ void read(int64_t at, math_t<T> (&numbers)[N]) const {
    if (data == nullptr) {
#pragma unroll
      for (int k = 0; k < N; ++k) numbers[k] = otherwise;
    } else if (wide) {
      load_shared_by_blocks(static_cast<const math_t<T>*>(data), at, numbers);
    } else {
      load_shared_by_blocks(static_cast<const T*>(data), at, numbers);
    }
  }
};

/// Those of the columns of a thread.
template <class Plan>
class MyNumbers {
  using T = typename Plan::Element;

 public:
  __device__ MyNumbers(const ColumnNumbers<T>& from, int64_t size) : from_(from) {
    if constexpr (Plan::kKeeps) {
#pragma unroll
      for (int c = 0; c < Plan::kChunks; ++c) {
        const int64_t at = (int64_t{c} * Plan::kThreads + threadIdx.x) * Plan::kWidth;
        if (at < size) from.read(at, kept_[c]);
      }
    }
  }
  __device__ void get(int64_t at, int chunk, math_t<T> (&numbers)[Plan::kWidth]) const {
    if constexpr (Plan::kKeeps) {
#pragma unroll
      for (int w = 0; w < Plan::kWidth; ++w) numbers[w] = kept_[chunk][w];
    } else {
      from_.read(at, numbers);
    }
  }

 private:
  ColumnNumbers<T> from_;
  math_t<T> kept_[Plan::kKept][Plan::kWidth];
};

/// Sums over the rows of a block, for the columns of a thread.
template <class Plan>
class MySums {
  using M = math_t<typename Plan::Element>;

 public:
  __device__ MySums() {
#pragma unroll
    for (int c = 0; c < Plan::kKept; ++c) {
#pragma unroll
      for (int w = 0; w < Plan::kWidth; ++w) sums_[c][w] = 0;
    }
  }
  __device__ void add(int chunk, int w, M value) { sums_[chunk][w] += value; }

  /// Writes those of the block to its row of `to` [blocks, size]. All threads must call it.
  __device__ void write(M* to, int64_t size) {
    to += blockIdx.x * size;
#pragma unroll
    for (int c = 0; c < Plan::kChunks; ++c) {
      const int64_t at = (int64_t{c} * Plan::kThreads + threadIdx.x) * Plan::kWidth;
      if constexpr (Plan::kTogether > 1) add_up(sums_[c]);
      if (threadIdx.y == 0 && at < size) store_elements(to + at, 0, sums_[c]);
    }
  }

 private:
  /// Thread 0 of those that have a column gets the sum of all.
  static __device__ void add_up(M (&sums)[Plan::kWidth]) {
    SHARD_SHARED(of_rows, M[Plan::kTogether][Plan::kWidth][Plan::kThreads]);
    __syncthreads();  // the last call has read them
#pragma unroll
    for (int w = 0; w < Plan::kWidth; ++w) of_rows[threadIdx.y][w][threadIdx.x] = sums[w];
    __syncthreads();
    if (threadIdx.y != 0) return;
    for (int row = 1; row < Plan::kTogether; ++row) {
#pragma unroll
      for (int w = 0; w < Plan::kWidth; ++w) sums[w] += of_rows[row][w][threadIdx.x];
    }
  }

  M sums_[Plan::kKept][Plan::kWidth];
};

template <class Op, class Plan>
__global__ void __launch_bounds__(Plan::kThreads* Plan::kTogether)
    along_weighted_rows(Op op, int64_t rows, int64_t size) {
  typename Op::template Work<Plan> work(op, size);
  const int64_t step = int64_t{gridDim.x} * Plan::kTogether;
  for (int64_t row = int64_t{blockIdx.x} * Plan::kTogether + threadIdx.y; row < rows; row += step)
    work(Row<typename Op::Element, Op::kInputs, Plan::kThreads, Plan::kWidth, Plan::kChunks>(op.in, row, size));
  work.finish(size);
}

/// As many blocks of `threads` threads, each for `together` rows at once, as run at the same time.
inline unsigned blocks_for_rows(int64_t rows, int threads, int together, int threads_of_multiprocessor) {
  const int64_t most = int64_t{multiprocessors()} * std::max(1, threads_of_multiprocessor / (threads * together));
  return static_cast<unsigned>(std::clamp<int64_t>((rows + together - 1) / together, 1, most));
}

/// Calls body with a RowPlan for rows of `size` elements in accesses of Width. Per thread, N inputs and whatever else there is for each
/// column are kept of at most 16 elements.
template <class T, int N, int Width, class Body>
void visit_row_plans(int64_t size, const Body& body) {
  constexpr int kEach = sizeof(T) == 8 ? 8 : 16, kChunks = kEach / Width;
  constexpr int kAlone = 128 / N / static_cast<int>(sizeof(T));  // where nothing else is kept
  if (size <= kWarp * kEach) return body(RowPlan<T, kWarp, Width, kChunks, true>());
  if constexpr (Width > 1) {
    if (size <= 128 * kEach) return body(RowPlan<T, 128, Width, kChunks, true>());
  }
  if (size <= 256 * kEach) return body(RowPlan<T, 256, Width, kChunks, true>());
  if constexpr (Width > 1) {
    if (size <= 512 * kEach) return body(RowPlan<T, 512, Width, kChunks, true>());
    if (size <= 1024 * kAlone) return body(RowPlan<T, 1024, Width, kAlone / Width, false>());
  }
  body(RowPlan<T, 1024, Width, 0, false>());
}

/// As above, with accesses of 16 bytes where all these addresses allow it.
template <class T, int N, class Body>
void visit_row_plans(int64_t size, std::initializer_list<const void*> addresses, const Body& body) {
  constexpr int kWidth = Pack<T>::kSize;
  if (size % kWidth == 0 && std::all_of(addresses.begin(), addresses.end(), is_aligned))
    visit_row_plans<T, N, kWidth>(size, body);
  else visit_row_plans<T, N, 1>(size, body);
}

template <class Plan, class Op>
void launch_plan(const OpContext& ctx, const Op& op, unsigned blocks, int64_t rows, int64_t size) {
  launch(ctx, along_weighted_rows<Op, Plan>, blocks, dim3(Plan::kThreads, Plan::kTogether), op, rows, size);
}

}  // namespace shard::cuda
