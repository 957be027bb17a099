// CPU kernels of the functions of formulas/transcendental.inc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/transcendental.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_exp.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE Vector<float> erf_of(Vector<float> x) { return fast_erf(x); }
HWY_INLINE Vector<double> erf_of(Vector<double> x) { return erf(x); }

#include "shard/kernels/formulas/transcendental.inc"

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_transcendental_formulas);
void register_transcendental() { HWY_DYNAMIC_DISPATCH(register_transcendental_formulas)(); }
}  // namespace shard::cpu
#endif
