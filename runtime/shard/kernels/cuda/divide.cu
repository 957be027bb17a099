// Divisions of integers on CUDA: divide, remainder, floor_divide. A divisor of 0 is reported without a synchronisation.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/map.cuh"

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

/// The result for element `position` of y; 0 where that is 0.
template <class Op, class T>
__device__ T quotient(T a, T b, int64_t position, const DivisorCheck& check) {
  if (b != T(0)) return Op::apply(a, b);
  check.report(position, 0);
  return T(0);
}

/// Tensors of one shape.
template <class Op, class T>
struct DivideBody {
  using IsDataCheck = void;
  const T *x, *y;
  T* out;
  DivisorCheck check;

  template <int N>
  __device__ void run(int64_t i) const {
    T a[N], b[N];
    load_elements<N>(x, i, a);
    load_elements<N>(y, i, b);
#pragma unroll
    for (int k = 0; k < N; ++k) a[k] = quotient<Op>(a[k], b[k], i * N + k, check);
    store_elements<N>(out, i, a);
  }
};

template <class Op, class T, class N>
__global__ void divide_broadcast(N count, Strided<2> shape, const T* x, const T* y, T* out, DivisorCheck check) {
  for (N i = grid_first<N>(); i < count; i += grid_step<N>()) {
    int64_t at[2];
    shape.locate(i, at);
    out[i] = quotient<Op>(x[at[0]], y[at[1]], at[1], check);
  }
}

template <class Op, class T>
void divide_integers(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  const DivisorCheck check(ZeroDivisor{ctx.op, ArgumentPlace(ctx, 1, y)});
  const T *from = elements<const T>(x), *divisors = elements<const T>(y);
  T* const to = elements<T>(out);
  if (x.dims() == out.dims() && y.dims() == out.dims())
    return map(ctx, count, DivideBody<Op, T>{from, divisors, to, check}, from, divisors, static_cast<const T*>(to));
  const Strided<2> shape = broadcast_shape<2>(out.dims(), {&x, &y});
  const unsigned grid = grid_for(count, kElementThreads);
  if (count < int64_t{1} << 31) {
    launch(ctx, divide_broadcast<Op, T, uint32_t>, grid, kElementThreads, static_cast<uint32_t>(count), shape, from,
           divisors, to, check);
  } else {
    launch(ctx, divide_broadcast<Op, T, int64_t>, grid, kElementThreads, count, shape, from, divisors, to, check);
  }
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
