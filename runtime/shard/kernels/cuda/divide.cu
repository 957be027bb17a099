// Divisions of integers on CUDA: divide, remainder, floor_divide. A divisor of 0 is reported without a synchronisation.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/arithmetic.inc"

/// Describes an element of y that is 0.
struct alignas(8) ZeroDivisor {
  const char* op;
  ArgumentPlace y;

  [[noreturn]] void fail(int64_t position, int64_t) const {
    fail_check(ErrorCode::invalid_argument, "{}", zero_divisor_text(op, y, position));
  }
};
using DivisorCheck = DataCheck<ZeroDivisor>;

/// An element of the result is 0 where that of y is.
template <class Op, class T>
struct DivideBody {
  using IsDataCheck = void;
  static constexpr int kInputs = 2, kPack = kTogether<T>;
  const T *x, *y;
  T* out;
  DivisorCheck check;

  __device__ void run(const ResultPack<kPack, kInputs>& pack) const {
    T a[kPack], b[kPack];
    pack.read(0, x, a);
    pack.read(1, y, b);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (!pack.has(k)) continue;
      if (b[k] == T(0)) check.report(pack.place(1, k), 0);
      a[k] = b[k] == T(0) ? T(0) : Op::apply(a[k], b[k]);
    }
    pack.write(out, a);
  }
};

template <class Op, class T>
void divide_integers(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const DivisorCheck check(ZeroDivisor{ctx.op, ArgumentPlace(ctx, 1, y)});
  map_broadcast(ctx, out, {&x, &y},
                DivideBody<Op, T>{elements<const T>(x), elements<const T>(y), elements<T>(out), check});
}

}  // namespace

void register_divide(int backend) {
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("divide", backend, dtype_of<T>, &divide_integers<Divide, T>);
    register_kernel("remainder", backend, dtype_of<T>, &divide_integers<Remainder, T>);
    register_kernel("floor_divide", backend, dtype_of<T>, &divide_integers<FloorDivide, T>);
  });
}

}  // namespace shard::cuda
