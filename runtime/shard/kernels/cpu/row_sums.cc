// Sums of rows that an index selects.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/row_sums.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>

#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/row_sums.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void add_rows_of(const T* first, const T* from, const int64_t* rows, int64_t n, int64_t width, T* to) {
  using C = Compute<T>;
  constexpr int64_t kBlock = 256;
  C sum[kBlock];
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    const int64_t columns = std::min(kBlock, width - begin);
    widen((first != nullptr ? first : from + rows[0] * width) + begin, columns, sum);
    for (int64_t r = first != nullptr ? 0 : 1; r < n; ++r) {
      const WideLine<T> row(from + rows[r] * width + begin, columns);
      const C* const line = row.get();
      for (int64_t c = 0; c < columns; ++c) sum[c] = wrap_add(sum[c], static_cast<C>(line[c]));
    }
    narrow(sum, columns, to + begin);
  }
}

void add_rows_for_target(DType dtype, const void* first, const void* from, const int64_t* rows, int64_t n,
                         int64_t width, void* to) {
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    add_rows_of(static_cast<const T*>(first), static_cast<const T*>(from), rows, n, width, static_cast<T*>(to));
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(add_rows_for_target);
void add_rows(DType dtype, const void* first, const void* from, const int64_t* rows, int64_t n, int64_t width,
              void* to) {
  HWY_DYNAMIC_DISPATCH(add_rows_for_target)(dtype, first, from, rows, n, width, to);
}
}  // namespace shard::cpu
#endif
