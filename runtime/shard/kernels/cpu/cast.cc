// The CPU kernel of cast, from every dtype to every dtype.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/cast.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/core/convert.h"
#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

template <class From, class To>
void cast_row(const Row& row) {
  using C = Compute<From>;
  const From* x = static_cast<const From*>(row.in[0]);
  To* out = static_cast<To*>(row.out);
  for (int64_t i = 0, n = row.n; i < n; ++i) out[i] = convert<To>(static_cast<C>(x[i]));
}

template <class From>
RowLoop loop_from(DType to) {
  return visit_dtype(to, []<class To>(TypeTag<To>) -> RowLoop { return &cast_row<From, To>; });
}
RowLoop cast_loop(DType from, DType to) {
  return visit_dtype(from, [to]<class From>(TypeTag<From>) { return loop_from<From>(to); });
}

template <class From>
void cast(const OpContext&, const DenseTensor& x, DType dtype, DenseTensor& out) {
  run_unary(loop_from<From>(dtype), x, out);
}

void register_cast_for_target() {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("cast", kBackend, dtype_of<T>, &cast<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(cast_loop);
void convert_elements(DType from, const void* x, DType to, void* out, int64_t count) {
  const size_t sizes[] = {size_of(from)};
  run_parallel(HWY_DYNAMIC_DISPATCH(cast_loop)(from, to), {{x, nullptr, nullptr}, {1, 0, 0}, out, count, nullptr},
               sizes, size_of(to));
}

HWY_EXPORT(register_cast_for_target);
void register_cast() { HWY_DYNAMIC_DISPATCH(register_cast_for_target)(); }
}  // namespace shard::cpu
#endif
