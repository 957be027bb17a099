// box_coder on CUDA: boxes relative to prior boxes. A thread has a box.
#include <math.h>

#include "shard/kernels/cuda/boxes.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"
#include "shard/meta/vision.h"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/box_coder.inc"

/// The attributes, and how the boxes of the result are numbered.
template <class C>
struct Coding {
  Four<C> variance;  // of all prior boxes, where each has none
  C unit;
  bool encodes, prior_by_row;
  int64_t columns;
};

template <class T>
__device__ __forceinline__ Four<math_t<T>> four(const T* boxes, int64_t i) {
  Four<math_t<T>> box;
  load_box(boxes, i, box.of);
  return box;
}

template <class T>
__global__ void box_coder_kernel(T* out, const T* priors, const T* variances, const T* targets, int64_t count,
                                 Coding<math_t<T>> coding) {
  using C = math_t<T>;
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t row = i / coding.columns, prior = coding.prior_by_row ? row : i - row * coding.columns;
    const Four<C> box = centered(four(priors, prior), coding.unit);
    const Four<C> variance = variances != nullptr ? four(variances, prior) : coding.variance;
    const Four<C> target = four(targets, coding.encodes ? row : i);
    const Four<C> result =
        coding.encodes ? encoded(box, variance, target, coding.unit) : decoded(box, variance, target, coding.unit);
    store_box(out, i, result.of);
  }
}

template <class E>
void box_coder(const OpContext& ctx, const DenseTensor& prior_box, const DenseTensor& prior_box_var,
               const DenseTensor& target_box, const std::string& code_type, bool box_normalized, int axis,
               const std::vector<float>& variance, DenseTensor& output_box) {
  using T = device_t<E>;
  using C = math_t<T>;
  Coding<C> coding{{{1, 1, 1, 1}}, C(box_normalized ? 0 : 1), meta::encodes(ctx.op, code_type), false, 0};
  coding.prior_by_row = !coding.encodes && axis == 1;
  coding.columns = output_box.dims()[1];
  for (size_t i = 0; i < variance.size(); ++i) coding.variance.of[i] = variance[i];
  if (output_box.numel() == 0) return;
  const DeviceScope scope(output_box.device().index);
  const int64_t count = output_box.numel() / 4;
  launch(ctx, box_coder_kernel<T>, grid_for(count, 256), 256, elements<T>(output_box), elements<const T>(prior_box),
         prior_box_var.defined() ? elements<const T>(prior_box_var) : nullptr, elements<const T>(target_box), count,
         coding);
}

}  // namespace

void register_box_coder(int backend) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("box_coder", backend, dtype_of<T>, box_coder<T>); });
}

}  // namespace shard::cuda
