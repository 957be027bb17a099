// The CPU kernel of roi_pool: the largest elements in the parts of boxes.
#include <math.h>

#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_vision.h"
#include "shard/kernels/cpu/roi.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/roi.inc"
#undef SHARD_FORMULA_INLINE

template <class T>
void roi_pool(const OpContext& ctx, const DenseTensor& x, const DenseTensor& boxes, const DenseTensor& boxes_num,
              float spatial_scale, DenseTensor& out, DenseTensor& arg_max) {
  using C = Compute<T>;
  const std::vector<int64_t> image = images_of_boxes<T>(ctx, boxes, boxes_num, spatial_scale);
  const int64_t channels = x.dims()[1], height = x.dims()[2], width = x.dims()[3];
  const auto scale = static_cast<double>(spatial_scale);
  const int64_t down = out.dims()[2], across = out.dims()[3], parts = down * across;
  parallel_for(boxes.dims()[0] * channels, height * width + 8 * parts, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t box = i / channels;
      const auto corner = [&](int64_t k) { return static_cast<double>(static_cast<C>(boxes.data<T>()[4 * box + k])); };
      const T* const from = x.data<T>() + (image[static_cast<size_t>(box)] * channels + i % channels) * height * width;
      for (int64_t p = 0; p < parts; ++p) {
        const Elements rows = elements_of(corner(1), corner(3), scale, p / across, down, height),
                       columns = elements_of(corner(0), corner(2), scale, p % across, across, width);
        int64_t best = -1;
        for (int64_t h = rows.first; h < rows.end; ++h) {
          for (int64_t at = h * width + columns.first; at < h * width + columns.end; ++at) {
            const C value = static_cast<C>(from[at]), largest = best < 0 ? value : static_cast<C>(from[best]);
            if (best < 0 || value > largest || (value != value && largest == largest)) best = at;
          }
        }
        out.data<T>()[i * parts + p] = best < 0 ? T(0) : from[best];
        arg_max.data<int64_t>()[i * parts + p] = best;
      }
    }
  });
}

}  // namespace

void register_roi_pool() {
  for_types(FloatTypes{},
            []<class T>(TypeTag<T>) { register_kernel("roi_pool", kBackend, dtype_of<T>, &roi_pool<T>); });
}

}  // namespace shard::cpu
