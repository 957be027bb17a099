// The CPU kernel of unpool: elements at given places of larger images.
#include <algorithm>

#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_vision.h"

namespace shard::cpu {
namespace {

template <class T>
void unpool(const OpContext& ctx, const DenseTensor& x, const DenseTensor& indices, DenseTensor& out) {
  const int64_t size = out.dims().numel(2, 4), count = x.dims().numel(2, 4);
  const int64_t wrong =
      visit_index(indices, [&](const auto* places) { return first_outside(places, indices.numel(), 0, size); });
  if (wrong < indices.numel()) {
    fail_check(ErrorCode::out_of_range, "{}",
               image_place_text(ctx.op, ArgumentPlace(ctx, 1, indices), wrong, integer_at(indices, wrong),
                                out.dims()[2], out.dims()[3]));
  }
  parallel_for(x.dims().numel(0, 2), size + 2 * count, [&](int64_t first, int64_t last) {
    for (int64_t image = first; image < last; ++image) {
      T* const to = out.data<T>() + image * size;
      std::fill(to, to + size, T(0));
      for (int64_t i = image * count; i < (image + 1) * count; ++i) to[integer_at(indices, i)] = x.data<T>()[i];
    }
  });
}

}  // namespace

void register_unpool() {
  const auto add = []<class T>(TypeTag<T>) { register_kernel("unpool", kBackend, dtype_of<T>, &unpool<T>); };
  for_types(FloatTypes{}, add);
  for_types(Types<int32_t, int64_t>{}, add);
}

}  // namespace shard::cpu
