// CPU kernels of special functions of one tensor: Bessel functions, the inverse of the error function. They are computed
// element by element in double; digamma is in gamma.cc.
#include <cmath>
#include <limits>
#include <numbers>

#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

#define SHARD_FORMULA_INLINE inline
#define SHARD_FORMULA_TABLE constexpr

namespace shard::cpu {
namespace {

#include "shard/kernels/formulas/special.inc"

template <double (*function)(double), class T>
void special(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  const auto loop = [](const Row& row) {
    const T* from = static_cast<const T*>(row.in[0]);
    T* to = static_cast<T*>(row.out);
    for (int64_t i = 0; i < row.n; ++i)
      to[i] = static_cast<T>(static_cast<Compute<T>>(function(static_cast<double>(from[i]))));
  };
  run_unary(loop, x, out);
}

template <double (*function)(double)>
void add_special(const char* name) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &special<function, T>); });
}

}  // namespace

void register_special() {
  add_special<erfinv_of>("erfinv");
  add_special<i0_of>("i0");
  add_special<i0e_of>("i0e");
  add_special<i1_of>("i1");
  add_special<i1e_of>("i1e");
}

}  // namespace shard::cpu
