// CPU kernels of the activations of formulas/activation.inc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/activation.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

#include "shard/kernels/formulas/activation.inc"

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_activation_formulas);
void register_activation() { HWY_DYNAMIC_DISPATCH(register_activation_formulas)(); }
}  // namespace shard::cpu
#endif
