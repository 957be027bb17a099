// cast on CUDA, between all dtypes. Conversions are those of the CPU kernel: towards zero, clamped,
// NaN becomes 0.
#include "shard/kernels/cuda/convert.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

template <class To, class From>
struct CastBody {
  static constexpr int kInputs = 1, kPack = kTogether<To, From>;
  const From* x;
  To* out;

  __device__ void run(const ResultPack<kPack, kInputs>& pack) const {
    From values[kPack];
    To results[kPack];
    pack.read(0, x, values);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (pack.has(k)) results[k] = convert_element<To>(values[k]);
    }
    pack.write(out, results);
  }
};

template <class T>
void cast(const OpContext& ctx, const DenseTensor& x, DType, DenseTensor& out) {
  if (out.numel() == 0) return;
  const DenseTensor* const input = &x;
  constexpr auto alone = [](const OpContext& its_ctx, const LoopCall&, std::span<const DenseTensor> in,
                            DenseTensor& result) { cast<T>(its_ctx, in[0], result.dtype(), result); };
  if (loop_is_open() &&
      join_loop({.op = ctx.op, .name = "convert_element", .inputs = {&input, 1}, .out = &out, .launch_alone = alone}))
    return;
  const DeviceScope scope(out.device().index);
  visit_dtype(out.dtype(), [&]<class To>(TypeTag<To>) {
    using D = device_t<To>;
    map_broadcast(ctx, out, {&x}, CastBody<D, device_t<T>>{elements<const device_t<T>>(x), elements<D>(out)});
  });
}

template <class... T>
void register_all(int backend, Types<T...>) {
  (register_kernel("cast", backend, dtype_of<T>, cast<T>), ...);
}

}  // namespace

void register_cast(int backend) { register_all(backend, AllTypes{}); }

}  // namespace shard::cuda
