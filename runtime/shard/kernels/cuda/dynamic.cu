// Ops on CUDA whose number of output rows depends on data: nonzero, masked_select, unique, unique_consecutive_rows. They allocate
// those outputs themselves, and wait once for the device to learn their size.
#include "shard/kernels/cuda/compaction.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/device_sort.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// An int32 or int64 output of indices; null where it is empty.
Integers output_of(const DenseTensor& tensor) {
  return {tensor.numel() == 0 ? nullptr : tensor.raw(), tensor.dtype() == DType::int64};
}

template <class D>
struct IsSet {
  const D* x;
  __device__ bool operator()(int64_t i) const { return load(x[i]) != math_t<D>(0); }
};

/// Writes the index of an element in the whole tensor, of which there is a box here.
struct WriteIndex {
  int64_t* out;
  int rank;
  int64_t sizes[kMaxRank], begin[kMaxRank];

  __device__ void operator()(int64_t i, int64_t number, bool is_chosen) const {
    if (!is_chosen) return;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t rest = i / sizes[d];
      out[number * rank + d] = begin[d] + (i - rest * sizes[d]);
      i = rest;
    }
  }
};

template <class T>
void nonzero(const OpContext& ctx, const DenseTensor& condition, DenseTensor& out) {
  using D = std::conditional_t<std::is_same_v<T, bool>, uint8_t, device_t<T>>;
  const DeviceScope scope(condition.device().index);
  const Compaction numbers(ctx, condition.numel(), IsSet<D>{elements<const D>(condition)});
  const Dims& dims = condition.dims();
  out = DenseTensor::allocate(condition.device(), {Dims{numbers.count(), dims.rank()}, DType::int64});
  if (out.numel() == 0) return;
  WriteIndex write{elements<int64_t>(out), dims.rank(), {}, {}};
  const Box box = ctx.input_box(0, condition);
  for (int d = 0; d < dims.rank(); ++d) {
    write.sizes[d] = dims[d];
    write.begin[d] = box.begin[d];
  }
  numbers.write(ctx, write);
}

template <class W>
struct CopyChosen {
  W* out;
  const W* x;
  __device__ void operator()(int64_t i, int64_t number, bool is_chosen) const {
    if (is_chosen) out[number] = x[i];
  }
};

void masked_select(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mask, DenseTensor& out) {
  const DeviceScope scope(x.device().index);
  const Compaction numbers(ctx, x.numel(), IsSet<uint8_t>{elements<const uint8_t>(mask)});
  out = DenseTensor::allocate(x.device(), {Dims{numbers.count()}, x.dtype()});
  if (out.numel() == 0) return;
  visit_word(static_cast<int>(size_of(x.dtype())), [&]<class W>(TypeTag<W>) {
    numbers.write(ctx, CopyChosen<W>{static_cast<W*>(out.raw()), static_cast<const W*>(x.raw())});
  });
}

/// The sizes of runs of `size` elements, from the first one of each.
__global__ void sizes_of_runs_kernel(const int64_t* firsts, int64_t runs, int64_t size, Integers sizes) {
  for (int64_t k = grid_first<int64_t>(); k < runs; k += grid_step<int64_t>())
    sizes.set(k, (k + 1 < runs ? firsts[k + 1] : size) - firsts[k]);
}
void write_sizes(const OpContext& ctx, const int64_t* firsts, int64_t runs, int64_t size, const DenseTensor& sizes) {
  if (sizes.numel() == 0) return;
  launch(ctx, sizes_of_runs_kernel, grid_for(runs, kThreads), kThreads, firsts, runs, size, output_of(sizes));
}

/// Whether a sorted key is another than the one before it.
template <class K>
struct IsNewKey {
  const K* keys;
  __device__ bool operator()(int64_t i) const { return i == 0 || keys[i] != keys[i - 1]; }
};

template <class D>
struct WriteUnique {
  const D* x;
  Integers order;
  D* out;
  Integers indices, inverse;  // null where they are not wanted
  int64_t* firsts;

  __device__ void operator()(int64_t i, int64_t number, bool is_first) const {
    const int64_t from = order[i];
    if (inverse.data != nullptr) inverse.set(from, number);
    if (!is_first) return;
    out[number] = x[from];
    firsts[number] = i;
    if (indices.data != nullptr) indices.set(number, from);
  }
};

template <class T>
void unique(const OpContext& ctx, const DenseTensor& x, bool return_index, bool return_inverse, bool return_counts,
            DType dtype, DenseTensor& out, DenseTensor& indices, DenseTensor& inverse, DenseTensor& counts) {
  using D = sortable_t<T>;
  const DeviceScope scope(x.device().index);
  const DeviceSort<D, Lines> sorted(ctx, elements<const D>(x), {1, x.numel(), 1}, false);
  const Compaction numbers(ctx, x.numel(), IsNewKey<Key<D>>{sorted.keys()});
  const int64_t found = numbers.count();
  const auto rows = [&](int64_t size, DType type) { return DenseTensor::allocate(x.device(), {Dims{size}, type}); };
  out = rows(found, x.dtype());
  indices = rows(return_index ? found : 0, dtype);
  counts = rows(return_counts ? found : 0, dtype);
  if (found == 0) return;
  const Scratch memory(static_cast<size_t>(found) * sizeof(int64_t));
  auto* const firsts = static_cast<int64_t*>(memory.data());
  const Integers none{nullptr, false};
  numbers.write(ctx, WriteUnique<D>{elements<const D>(x), sorted.places(), elements<D>(out), output_of(indices),
                                    return_inverse ? output_of(inverse) : none, firsts});
  write_sizes(ctx, firsts, found, x.numel(), counts);
}

/// Whether each row differs from the one before it, by as many threads of a warp for each. NaN differs from everything.
template <int Lanes, class D>
__global__ void mark_new_rows_kernel(const D* x, int64_t rows, int64_t width, uint8_t* is_new) {
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  for (int64_t row = grid_first<int64_t>() / Lanes; row < rows; row += grid_step<int64_t>() / Lanes) {
    bool differs = row == 0;
    for (int64_t i = row * width + lane; !differs && i < (row + 1) * width; i += Lanes)
      differs = !(load(x[i]) == load(x[i - width]));
    if constexpr (Lanes > 1) differs = __any_sync(kAllLanes, differs);
    if (lane == 0) is_new[row] = differs ? 1 : 0;
  }
}

struct WriteRun {
  int64_t* firsts;
  Integers index;  // null where it is not wanted

  __device__ void operator()(int64_t i, int64_t number, bool is_first) const {
    if (is_first) firsts[number] = i;
    if (index.data != nullptr) index.set(i, number);
  }
};

/// Rows of `width` words of x, which `rows` names.
template <class W, class N>
__global__ void copy_rows_kernel(W* out, const W* x, const int64_t* rows, N words, N width) {
  for (N i = grid_first<N>(); i < words; i += grid_step<N>()) {
    const N row = i / width;
    out[i] = x[rows[row] * static_cast<int64_t>(width) + static_cast<int64_t>(i - row * width)];
  }
}

void copy_rows(const OpContext& ctx, const DenseTensor& x, const int64_t* rows, const DenseTensor& out) {
  if (out.numel() == 0) return;
  const uint64_t row = out.meta().bytes() / static_cast<uint64_t>(out.dims()[0]);
  const int word = word_size({row, address(x.raw()), address(out.raw())});
  const int64_t width = static_cast<int64_t>(row) / word, words = out.dims()[0] * width;
  visit_word_and_index(word, words, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, copy_rows_kernel<W, N>, grid_for(words, kThreads), kThreads, static_cast<W*>(out.raw()),
           static_cast<const W*>(x.raw()), rows, static_cast<N>(words), static_cast<N>(width));
  });
}

template <class T>
void unique_consecutive_rows(const OpContext& ctx, const DenseTensor& x, bool, bool return_counts, DType dtype,
                             DenseTensor& out, DenseTensor& index, DenseTensor& counts) {
  using D = sortable_t<T>;
  const DeviceScope scope(x.device().index);
  const int64_t rows = x.dims()[0], width = x.dims().numel(1, x.dims().rank());
  const Scratch marks(static_cast<size_t>(rows));
  auto* const is_new = static_cast<uint8_t*>(marks.data());
  const int lanes = width < 16 ? 1 : kWarp;
  const unsigned blocks = grid_for(rows * lanes, kThreads);
  const auto mark = lanes == 1 ? mark_new_rows_kernel<1, D> : mark_new_rows_kernel<kWarp, D>;
  if (rows != 0) launch(ctx, mark, blocks, kThreads, elements<const D>(x), rows, width, is_new);
  const Compaction numbers(ctx, rows, IsSet<uint8_t>{is_new});
  const int64_t found = numbers.count();
  Dims dims = x.dims();
  dims[0] = found;
  out = DenseTensor::allocate(x.device(), {dims, x.dtype()});
  counts = DenseTensor::allocate(x.device(), {Dims{return_counts ? found : 0}, dtype});
  if (found == 0) return;
  const Scratch memory(static_cast<size_t>(found) * sizeof(int64_t));
  auto* const firsts = static_cast<int64_t*>(memory.data());
  numbers.write(ctx, WriteRun{firsts, output_of(index)});
  copy_rows(ctx, x, firsts, out);
  write_sizes(ctx, firsts, found, rows, counts);
}

}  // namespace

void register_dynamic(int backend) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("nonzero", backend, dtype_of<T>, &nonzero<T>);
    register_kernel("masked_select", backend, dtype_of<T>, &masked_select);
    register_kernel("unique", backend, dtype_of<T>, &unique<T>);
    register_kernel("unique_consecutive_rows", backend, dtype_of<T>, &unique_consecutive_rows<T>);
  });
}

}  // namespace shard::cuda
