// The CPU kernel of nms, which keeps the boxes that overlap no better one. It allocates its output itself.
#include <algorithm>
#include <array>
#include <vector>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_vision.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// x1, y1, x2, y2.
template <class C>
using Corners = std::array<C, 4>;

template <class C>
C area(const Corners<C>& box) {
  return (box[2] - box[0]) * (box[3] - box[1]);
}

template <class C>
bool overlap(const Corners<C>& a, const Corners<C>& b, C threshold) {
  const C width = std::min(a[2], b[2]) - std::max(a[0], b[0]), height = std::min(a[3], b[3]) - std::max(a[1], b[1]);
  const C both = std::max(width, C(0)) * std::max(height, C(0));
  return both / (area(a) + area(b) - both) > threshold;
}

template <class T>
void nms(const OpContext&, const DenseTensor& x, float threshold, DenseTensor& out) {
  using C = Compute<T>;
  const int64_t count = x.dims()[0];
  std::vector<Corners<C>> boxes(static_cast<size_t>(count));
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t k = 0; k < 4; ++k) boxes[i][k] = static_cast<C>(x.data<T>()[4 * i + k]);
  }
  std::vector<char> dropped(boxes.size());
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < count; ++i) {
    if (dropped[static_cast<size_t>(i)] != 0) continue;
    kept.push_back(i);
    // Whether a later box is dropped depends on no other later one.
    parallel_for(count - i - 1, 8, [&](int64_t first, int64_t last) {
      for (auto j = static_cast<size_t>(i + 1 + first); j < static_cast<size_t>(i + 1 + last); ++j) {
        if (overlap(boxes[static_cast<size_t>(i)], boxes[j], static_cast<C>(threshold))) dropped[j] = 1;
      }
    });
  }
  out = DenseTensor::allocate(x.device(), {Dims{static_cast<int64_t>(kept.size())}, DType::int64});
  std::copy(kept.begin(), kept.end(), out.data<int64_t>());
}

}  // namespace

void register_nms() {
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) { register_kernel("nms", kBackend, dtype_of<T>, &nms<T>); });
}

}  // namespace shard::cpu
