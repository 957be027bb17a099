// CPU kernels of the gradients of elementwise functions of one tensor: of a saved tensor (the input
// or the output, whichever the formula needs) and the gradient of the output, with the formulas of
// unary_grad.inc. Gradients that are composites of other ops are in runtime/shard/gradients/.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/unary_grad.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/binary_row.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// A formula of single numbers, whose loop compilers vectorise.
template <class Op>
void add_plain(const char* name) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, T>); });
}

#include "shard/kernels/formulas/unary_grad.inc"

template <class T>
void clip_grad(const OpContext&, const DenseTensor& x, const DenseTensor& out_grad, const Scalar& min,
               const Scalar& max, DenseTensor& x_grad) {
  using C = Compute<T>;
  const Numbers<C> bounds{min.to<C>(), max.to<C>()};
  run_binary(&vector_row<ClipGrad, T, 0, 1>, x, out_grad, x_grad, &bounds);
}

template <class T>
void pow_grad(const OpContext&, const DenseTensor& x, const DenseTensor& out_grad, const Scalar& y,
              DenseTensor& x_grad) {
  using C = Compute<T>;
  const C exponent = y.to<C>();
  const Numbers<C> params{exponent, exponent - C(1)};
  RowLoop loop = &vector_row<PowGrad, T, 0, 1>;
  if (exponent == C(0) || exponent == C(1)) loop = &vector_row<LinearGrad, T, 0, 1>;
  else if (exponent == C(2)) loop = &binary_row<SquareGrad, T, T>;
  else if (exponent == C(3)) loop = &vector_row<CubeGrad, T, 0, 1>;
  run_binary(loop, x, out_grad, x_grad, &params);
}

void register_unary_grad_for_target() {
  register_unary_grad_formulas();
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("clip_grad", kBackend, dtype_of<T>, &clip_grad<T>);
    register_kernel("pow_grad", kBackend, dtype_of<T>, &pow_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_unary_grad_for_target);
void register_unary_grad() { HWY_DYNAMIC_DISPATCH(register_unary_grad_for_target)(); }
}  // namespace shard::cpu
#endif
