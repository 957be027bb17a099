#include "shard/kernels/cuda/mma_check.h"

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/mma.cuh"

namespace shard::cuda {
namespace {

constexpr int kTileSide = 16, kStep = kTileSide + 8;  // of a tile, and of its lines in shared memory

/// One warp multiplies two tiles in the way of attention: by copies to shared memory, reads of matrices, and products.
template <class T, bool Wide, bool Portable>
__global__ void multiply_tile_kernel(float* out, const uint16_t* x, const uint16_t* y) {
  SHARD_SHARED(tiles, Words[2][kTileSide * kStep / 8]);
  auto* const left = reinterpret_cast<uint16_t*>(tiles[0]);
  auto* const right = reinterpret_cast<uint16_t*>(tiles[1]);
  const int lane = static_cast<int>(threadIdx.x), line = lane / 2, column = lane % 2 * 8;
  for (const bool is_left : {true, false}) {
    uint16_t* const to = (is_left ? left : right) + line * kStep + column;
    const uint16_t* const from = (is_left ? x : y) + line * kTileSide + column;
    if constexpr (Portable) copy_16_bytes_portable(to, from, true);
    else copy_16_bytes(to, from, true);
  }
  wait_for_copies();
  __syncthreads();
  unsigned a[4], b[4];
  read_matrices<false, Portable>(left, kStep, a);
  read_matrices<true, Portable>(right, kStep, b);
  for (int half = 0; half < 2; ++half) {
    float sums[4] = {0, 0, 0, 0};
    if constexpr (Wide) {
      for (int part = 0; part < 2; ++part) {
        float of_rows[2][2], of_columns[2];
        unpack_pair<T>(a[2 * part], of_rows[0]);
        unpack_pair<T>(a[2 * part + 1], of_rows[1]);
        unpack_pair<T>(b[2 * half + part], of_columns);
        multiply_add<Portable>(sums, {of_rows[0][0], of_rows[0][1], of_rows[1][0], of_rows[1][1]}, of_columns);
      }
    } else {
      multiply_add<T, Portable>(sums, a, {b[2 * half], b[2 * half + 1]});
    }
    for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * kTileSide + half * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

template <class T, bool Wide>
void multiply_as(const DenseTensor& x, const DenseTensor& y, bool portable, const DenseTensor& out) {
  launch(OpContext{"multiply_tile"},
         portable ? multiply_tile_kernel<T, Wide, true> : multiply_tile_kernel<T, Wide, false>, 1, kWarp,
         elements<float>(out), static_cast<const uint16_t*>(x.raw()), static_cast<const uint16_t*>(y.raw()));
}

template <class T>
void multiply_as(const DenseTensor& x, const DenseTensor& y, bool wide, bool portable, const DenseTensor& out) {
  if (wide) multiply_as<T, true>(x, y, portable, out);
  else multiply_as<T, false>(x, y, portable, out);
}

}  // namespace

DenseTensor multiply_tile(const DenseTensor& x, const DenseTensor& y, bool wide, bool portable) {
  const DeviceScope scope(x.device().index);
  const DenseTensor out = DenseTensor::allocate(x.device(), {{kTileSide, kTileSide}, DType::float32});
  if (x.dtype() == DType::bfloat16) multiply_as<device_t<bfloat16>>(x, y, wide, portable, out);
  else multiply_as<device_t<float16>>(x, y, wide, portable, out);
  return out;
}

}  // namespace shard::cuda
