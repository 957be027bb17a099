// The images that boxes belong to, for kernels of regions of images.
#pragma once

#include <cmath>
#include <vector>

#include "shard/kernels/cpu/lengths.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/data_text.h"

namespace shard::cpu {

/// The image of each box, from boxes, which are flat input 1, and the numbers of boxes of each image. Throws
/// out_of_range unless these add up, and invalid_argument for coordinates that, times `scale`, are not finite or too
/// large to count elements.
template <class T>
std::vector<int64_t> images_of_boxes(const OpContext& ctx, const DenseTensor& boxes, const DenseTensor& boxes_num,
                                     float scale) {
  const int64_t count = boxes.dims()[0];
  std::vector<int64_t> images;
  for (int64_t n = 0; n < boxes_num.numel(); ++n) {
    const int64_t here = integer_at(boxes_num, n);
    if (here < 0 || here > count - static_cast<int64_t>(images.size())) {
      fail_check(ErrorCode::out_of_range, "{}",
                 boxes_left_text(ctx.op, n, here, count - static_cast<int64_t>(images.size()), count));
    }
    images.insert(images.end(), static_cast<size_t>(here), n);
  }
  if (static_cast<int64_t>(images.size()) != count) {
    fail_check(ErrorCode::out_of_range, "{}", boxes_sum_text(ctx.op, static_cast<int64_t>(images.size()), count));
  }
  for (int64_t i = 0; i < boxes.numel(); ++i) {
    const auto value = static_cast<double>(static_cast<Compute<T>>(boxes.data<T>()[i]));
    if (std::fabs(value) < 1e15 && std::fabs(value * static_cast<double>(scale)) < 1e15) continue;
    fail_check(ErrorCode::invalid_argument, "{}", box_text(ctx.op, ArgumentPlace(ctx, 1, boxes), i, value));
  }
  return images;
}

}  // namespace shard::cpu
