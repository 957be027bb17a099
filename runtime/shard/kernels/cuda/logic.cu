// The comparisons, logic and bits of formulas/logic.inc on CUDA.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

template <class Op>
void add_question(const char* name) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &SingleKernel<Op, T, bool>::unary);
  });
}

template <class Op>
void add_truth(const char* name) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &SingleKernel<Op, T, bool>::binary);
  });
}

/// A bool has the bits of a byte that is 0 or 1.
template <class Op>
void add_bits(const char* name) {
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &SingleKernel<Op, T, T>::binary);
  });
  register_kernel(name, backend_id(), DType::boolean, &SingleKernel<Op, uint8_t, uint8_t>::binary);
}

namespace logic {
#include "shard/kernels/formulas/logic.inc"
}  // namespace logic

template <class Arithmetic, class Logical, class T>
void shift(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool is_arithmetic, DenseTensor& out) {
  (is_arithmetic ? &SingleKernel<Arithmetic, T, T>::binary : &SingleKernel<Logical, T, T>::binary)(ctx, x, y, out);
}

}  // namespace

void register_logic(int backend) {
  logic::register_logic_formulas();
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("bitwise_left_shift", backend, dtype_of<T>, &shift<logic::LeftShift, logic::LeftShift, T>);
    register_kernel("bitwise_right_shift", backend, dtype_of<T>,
                    &shift<logic::RightShift, logic::UnsignedRightShift, T>);
    register_kernel("bitwise_not", backend, dtype_of<T>, &SingleKernel<logic::BitNot, T, T>::unary);
  });
  register_kernel("bitwise_not", backend, DType::boolean, &SingleKernel<logic::Not, bool, bool>::unary);
}

}  // namespace shard::cuda
