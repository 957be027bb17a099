// The CPU kernel of box_coder, which writes boxes relative to prior boxes, or decodes them.
#include <math.h>

#include <string>
#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_vision.h"
#include "shard/kernels/cpu/value.h"
#include "shard/meta/vision.h"

namespace shard::cpu {
namespace {

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/box_coder.inc"
#undef SHARD_FORMULA_INLINE

template <class T>
Four<Compute<T>> four(const T* x) {
  using C = Compute<T>;
  return {{static_cast<C>(x[0]), static_cast<C>(x[1]), static_cast<C>(x[2]), static_cast<C>(x[3])}};
}

template <class T>
void box_coder(const OpContext& ctx, const DenseTensor& prior_box, const DenseTensor& prior_box_var,
               const DenseTensor& target_box, const std::string& code_type, bool box_normalized, int axis,
               const std::vector<float>& variance, DenseTensor& output_box) {
  using C = Compute<T>;
  const bool encode = meta::encodes(ctx.op, code_type), by_row = !encode && axis == 1;
  const C unit = box_normalized ? C(0) : C(1);
  const Four<C> of_all =
      variance.empty() ? Four<C>{{1, 1, 1, 1}} : Four<C>{{variance[0], variance[1], variance[2], variance[3]}};
  const int64_t columns = output_box.dims()[1];
  constexpr int64_t kCost = 64;  // of two logarithms or powers, and divisions
  parallel_for(output_box.dims()[0] * columns, kCost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / columns, prior = by_row ? row : i % columns;
      const Four<C> box = centered(four(prior_box.data<T>() + 4 * prior), unit);
      const Four<C> variances = prior_box_var.defined() ? four(prior_box_var.data<T>() + 4 * prior) : of_all;
      const Four<C> target = four(target_box.data<T>() + 4 * (encode ? row : i));
      const Four<C> result = encode ? encoded(box, variances, target, unit) : decoded(box, variances, target, unit);
      for (int64_t d = 0; d < 4; ++d) output_box.data<T>()[4 * i + d] = static_cast<T>(result.of[d]);
    }
  });
}

}  // namespace

void register_box_coder() {
  for_types(FloatTypes{},
            []<class T>(TypeTag<T>) { register_kernel("box_coder", kBackend, dtype_of<T>, &box_coder<T>); });
}

}  // namespace shard::cpu
