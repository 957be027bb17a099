// nms on CUDA, which keeps the boxes that overlap no better one. It allocates its output after a wait for the device. Compiled
// without fused operations, so that boxes overlap as they do on the CPU.
#include <algorithm>

#include "shard/kernels/cuda/boxes.cuh"
#include "shard/kernels/cuda/compaction.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int64_t kChunk = 1024;  // boxes whose overlaps with all later ones are in memory at once
constexpr int64_t kBits = 32;     // boxes of a word

/// x1, y1, x2, y2.
template <class C>
struct Corners {
  C x1, y1, x2, y2;
};

template <class D>
__device__ Corners<math_t<D>> corners_of(const D* boxes, int64_t i) {
  math_t<D> box[4];
  load_box(boxes, i, box);
  return {box[0], box[1], box[2], box[3]};
}

template <class C>
__device__ C area(const Corners<C>& box) {
  return (box.x2 - box.x1) * (box.y2 - box.y1);
}

/// As std::min and std::max, which return a where the numbers are not ordered.
template <class C>
__device__ C smaller(C a, C b) {
  return b < a ? b : a;
}
template <class C>
__device__ C larger(C a, C b) {
  return a < b ? b : a;
}

template <class C>
__device__ bool overlap(const Corners<C>& a, const Corners<C>& b, C threshold) {
  const C width = smaller(a.x2, b.x2) - larger(a.x1, b.x1), height = smaller(a.y2, b.y2) - larger(a.y1, b.y1);
  const C both = larger(width, C(0)) * larger(height, C(0));
  return both / (area(a) + area(b) - both) > threshold;
}

/// Bit j of the words of row i says that box first + i overlaps the later box j. Lanes have rows of their own, and compare them with the
/// same boxes.
template <class D>
__global__ void overlaps_kernel(const D* boxes, int64_t count, int64_t first, int64_t rows, int64_t words,
                                math_t<D> threshold, uint32_t* overlaps) {
  for (int64_t k = grid_first<int64_t>(); k < rows * words; k += grid_step<int64_t>()) {
    const int64_t word = k / rows, row = k - word * rows, begin = word * kBits, i = first + row;
    uint32_t bits = 0;
    if (begin + kBits > i + 1) {
      const auto box = corners_of(boxes, i);
      for (int64_t j = max(begin, i + 1); j < min(begin + kBits, count); ++j) {
        if (overlap(box, corners_of(boxes, j), threshold)) bits |= 1u << (j - begin);
      }
    }
    overlaps[row * words + word] = bits;
  }
}

/// Decides about the boxes of a chunk in their order, by one block: of those that are kept, the overlaps are dropped.
__global__ void drop_kernel(const uint32_t* overlaps, int64_t first, int64_t rows, int64_t words, uint32_t* dropped) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t i = first + row;
    const bool is_dropped = (dropped[i / kBits] >> (i % kBits) & 1u) != 0;
    __syncthreads();
    if (is_dropped) continue;
    for (int64_t w = i / kBits + threadIdx.x; w < words; w += kThreads) dropped[w] |= overlaps[row * words + w];
    __syncthreads();
  }
}

struct IsKept {
  const uint32_t* dropped;
  __device__ bool operator()(int64_t i) const { return (dropped[i / kBits] >> (i % kBits) & 1u) == 0; }
};

struct WriteNumber {
  int64_t* out;
  __device__ void operator()(int64_t i, int64_t number, bool is_chosen) const {
    if (is_chosen) out[number] = i;
  }
};

template <class T>
void nms(const OpContext& ctx, const DenseTensor& x, float threshold, DenseTensor& out) {
  using D = device_t<T>;
  const int64_t count = x.dims()[0], words = (count + kBits - 1) / kBits, most = std::min(count, kChunk);
  const DeviceScope scope(x.device().index);
  const Scratch drops(static_cast<size_t>(words) * sizeof(uint32_t)),
      table(static_cast<size_t>(most * words) * sizeof(uint32_t));
  auto *const dropped = static_cast<uint32_t*>(drops.data()), *const overlaps = static_cast<uint32_t*>(table.data());
  if (count != 0) check(cudaMemsetAsync(dropped, 0, words * sizeof(uint32_t), stream()), "cudaMemsetAsync");
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t rows = std::min(kChunk, count - first);
    launch(ctx, overlaps_kernel<D>, grid_for(rows * words, kThreads), kThreads, elements<const D>(x), count, first,
           rows, words, static_cast<math_t<D>>(threshold), overlaps);
    launch(ctx, drop_kernel, 1, kThreads, overlaps, first, rows, words, dropped);
  }
  const Compaction numbers(ctx, count, IsKept{dropped});
  out = DenseTensor::allocate(x.device(), {Dims{numbers.count()}, DType::int64});
  if (out.numel() != 0) numbers.write(ctx, WriteNumber{elements<int64_t>(out)});
}

}  // namespace

void register_nms(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("nms", backend, dtype_of<T>, &nms<T>); });
}

}  // namespace shard::cuda
