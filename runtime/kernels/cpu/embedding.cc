// CPU kernels that look rows up by index: embedding, gather.
#include <cstring>

#include "kernels/cpu/axis.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/register.h"

namespace shard::cpu {
namespace {

int64_t index_at(const DenseTensor& index, int64_t i) {
  return index.dtype() == DType::int64 ? index.data<int64_t>()[i] : index.data<int32_t>()[i];
}

void check_indices(const OpContext& ctx, const char* name, const DenseTensor& index, int64_t low, int64_t high) {
  for (int64_t i = 0; i < index.numel(); ++i) {
    const int64_t value = index_at(index, i);
    if (value >= low && value < high) continue;
    fail(ErrorCode::out_of_range, "[{}] {} is {} at element {}, but must be from {} to {}", ctx.op, name, value, i, low, high - 1);
  }
}

/// Rows that another rank holds are zeros here: the contributions of all ranks add up to the result.
void embedding(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weight, int64_t padding_idx, DenseTensor& out) {
  const Box box = ctx.input_box(1, weight);
  check_indices(ctx, "x", x, 0, box.global[0]);
  const size_t bytes = static_cast<size_t>(weight.dims()[1]) * size_of(weight.dtype());
  const int64_t first_row = box.begin[0];
  const int64_t rows = weight.dims()[0];
  const char* from = weight.data<char>();
  char* to = out.data<char>();
  parallel_for(x.numel(), weight.dims()[1], [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t id = index_at(x, i);
      const int64_t row = id - first_row;
      char* target = to + static_cast<size_t>(i) * bytes;
      if (row < 0 || row >= rows || (padding_idx != -1 && id == padding_idx)) std::memset(target, 0, bytes);
      else std::memcpy(target, from + static_cast<size_t>(row) * bytes, bytes);
    }
  });
}

void gather(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const Scalar& axis, DenseTensor& out) {
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()));
  check_indices(ctx, "index", index, -view.size, view.size);
  const int64_t count = index.numel();
  const size_t bytes = static_cast<size_t>(view.inner) * size_of(x.dtype());
  const char* from = x.data<char>();
  char* to = out.data<char>();
  parallel_for(view.outer * count, view.inner, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = index_at(index, i % count);
      const int64_t row = i / count * view.size + (at < 0 ? at + view.size : at);
      std::memcpy(to + static_cast<size_t>(i) * bytes, from + static_cast<size_t>(row) * bytes, bytes);
    }
  });
}

}  // namespace

void register_embedding() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("embedding", kBackend, dtype_of<T>, &embedding); });
  register_for_all("gather", &gather);
}

}  // namespace shard::cpu
