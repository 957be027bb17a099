// CPU kernels of my_ops.yaml. On a mesh they get each rank's local shard; they do not depend on the
// mesh.
#include "kernels.h"

#include <cmath>

#include <shard/kernel.h>

using namespace shard;

namespace {

template <class T>
void swish_scale(const OpContext&, const DenseTensor& x, float beta, DenseTensor& out) {
  const T* in = x.data<T>();
  T* to = out.data<T>();
  cpu::parallel_for(out.numel(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = in[i] / (T(1) + std::exp(-static_cast<T>(beta) * in[i]));
  });
}

/// `out` may be `x` itself: the op has `elementwise : true`.
template <class T>
void scale_shift(const OpContext&, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& shift,
                 DenseTensor& out) {
  const T* in = x.data<T>();
  const T* a = scale.data<T>();
  const T* b = shift.data<T>();
  T* to = out.data<T>();
  const int64_t columns = scale.numel();
  for (int64_t i = 0; i < out.numel(); ++i) to[i] = in[i] * a[i % columns] + b[i % columns];
}

template <class T>
void register_for() {
  register_kernel("swish_scale", kCpu.backend, dtype_of<T>, &swish_scale<T>);
  register_kernel("scale_shift", kCpu.backend, dtype_of<T>, &scale_shift<T>);
}

}  // namespace

void register_my_kernels() {
  register_for<float>();
  register_for<double>();
}
