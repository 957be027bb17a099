// Special functions on CUDA, in double whatever the dtype, with the formulas of formulas/special.inc and
// formulas/gamma.inc.
#include <cmath>
#include <limits>
#include <numbers>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

#define SHARD_FORMULA_TABLE __device__ constexpr

namespace shard::cuda {
namespace {

namespace bessel {
#include "shard/kernels/formulas/special.inc"
}  // namespace bessel

namespace gamma {
__device__ inline bool any(bool condition) { return condition; }

#include "shard/kernels/formulas/gamma.inc"
}  // namespace gamma

template <class Formula, class V, class T>
void run(const OpContext& ctx, const DenseTensor& x, DenseTensor& out, const Numbers<V>& numbers) {
  using D = device_t<T>;
  run_elementwise<Formula, V, D, D, 1>(ctx, {&x}, out, numbers);
}

#define SHARD_FUNCTION(Name, function)                                       \
  struct Name {                                                              \
    static __device__ double apply(double x) { return bessel::function(x); } \
  };
SHARD_FUNCTION(Erfinv, erfinv_of)
SHARD_FUNCTION(I0, i0_of)
SHARD_FUNCTION(I0e, i0e_of)
SHARD_FUNCTION(I1, i1_of)
SHARD_FUNCTION(I1e, i1e_of)
#undef SHARD_FUNCTION

template <class Formula, class T>
void special(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  run<Formula, double, T>(ctx, x, out, {});
}
template <class Formula>
void add_special(const char* name) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, backend_id(), dtype_of<T>, &special<Formula, T>); });
}

template <class T>
void digamma(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  run<gamma::Digamma, Number<double>, T>(ctx, x, out, {});
}

/// The numbers are the order plus one, and the factor.
struct Polygamma {
  static __device__ double apply(double x, const Numbers<double>& p) {
    return p.second * gamma::hurwitz_zeta(p.first, x);
  }
};
template <class T>
void polygamma(const OpContext& ctx, const DenseTensor& x, int n, DenseTensor& out) {
  if (n == 0) return digamma<T>(ctx, x, out);
  if (n == 1) return run<gamma::Trigamma, Number<double>, T>(ctx, x, out, {});
  run<Polygamma, double, T>(ctx, x, out, Numbers<double>{n + 1.0, gamma::polygamma_factor(n)});
}

}  // namespace

void register_special(int backend) {
  add_special<Erfinv>("erfinv");
  add_special<I0>("i0");
  add_special<I0e>("i0e");
  add_special<I1>("i1");
  add_special<I1e>("i1e");
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("digamma", backend, dtype_of<T>, &digamma<T>);
    register_kernel("polygamma", backend, dtype_of<T>, &polygamma<T>);
  });
}

}  // namespace shard::cuda
