// CPU kernels whose number of output rows depends on data: nonzero, masked_select, unique. They
// allocate those outputs themselves.
#include <algorithm>
#include <numeric>
#include <vector>

#include "shard/kernels/cpu/order.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

template <class T>
bool is_set(T value) {
  if constexpr (is_half<T>) return static_cast<float>(value) != 0;
  else return value != T(0);
}

/// Increments a row-major index within `dims`, starting at the last dim.
void advance(Dims& index, const Dims& dims) {
  for (int d = dims.rank() - 1; d >= 0; --d) {
    if (++index[d] < dims[d]) return;
    index[d] = 0;
  }
}

/// Calls body(first, last, before) for parts of `count` elements, concurrently; `before` is how many elements of earlier parts
/// are chosen. allocate(chosen) is called once before.
template <class Chosen, class Allocate, class Body>
void each_part(int64_t count, const Chosen& chosen, const Allocate& allocate, const Body& body) {
  const int64_t parts = (count + kGrain - 1) / kGrain;
  const auto begin = [&](int64_t part) { return count * part / parts; };
  std::vector<int64_t> before(static_cast<size_t>(parts) + 1);
  parallel_for(parts, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      int64_t found = 0;
      for (int64_t i = begin(p); i < begin(p + 1); ++i) found += chosen(i) ? 1 : 0;
      before[static_cast<size_t>(p) + 1] = found;
    }
  });
  std::partial_sum(before.begin(), before.end(), before.begin());
  allocate(before.back());
  parallel_for(parts, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) body(begin(p), begin(p + 1), before[static_cast<size_t>(p)]);
  });
}

template <class T>
void nonzero(const OpContext& ctx, const DenseTensor& condition, DenseTensor& out) {
  const T* values = condition.data<T>();
  const Dims& dims = condition.dims();
  const Box box = ctx.input_box(0, condition);
  const auto allocate = [&](int64_t count) {
    out = DenseTensor::allocate(condition.device(), {Dims{count, dims.rank()}, DType::int64});
  };
  each_part(
      condition.numel(), [=](int64_t i) { return is_set(values[i]); }, allocate,
      [&](int64_t first, int64_t last, int64_t before) {
        int64_t* row = out.data<int64_t>() + before * dims.rank();
        Dims index = Dims::filled(dims.rank(), 0);
        int64_t rest = first;
        for (int d = dims.rank() - 1; d >= 0; rest /= dims[d--]) index[d] = rest % dims[d];
        for (int64_t i = first; i < last; ++i, advance(index, dims)) {
          if (!is_set(values[i])) continue;
          for (int d = 0; d < dims.rank(); ++d) *row++ = box.begin[d] + index[d];
        }
      });
}

template <class T>
void masked_select(const OpContext&, const DenseTensor& x, const DenseTensor& mask, DenseTensor& out) {
  const bool* chosen = mask.data<bool>();
  const T* from = x.data<T>();
  const auto allocate = [&](int64_t count) { out = DenseTensor::allocate(x.device(), {Dims{count}, x.dtype()}); };
  each_part(
      x.numel(), [=](int64_t i) { return chosen[i]; }, allocate,
      [&](int64_t first, int64_t last, int64_t before) {
        T* to = out.data<T>() + before;
        for (int64_t i = first; i < last; ++i) {
          if (chosen[i]) *to++ = from[i];
        }
      });
}

template <class T, class Index>
void unique_as(const DenseTensor& x, bool return_index, bool return_inverse, bool return_counts, DenseTensor& out,
               DenseTensor& indices, DenseTensor& inverse, DenseTensor& counts) {
  const T* values = x.data<T>();
  std::vector<int64_t> order(static_cast<size_t>(x.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return is_less(values[a], values[b]); });
  std::vector<int64_t> firsts;  // positions in `order` where a new value begins
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || is_less(values[order[i - 1]], values[order[i]])) firsts.push_back(static_cast<int64_t>(i));
  }
  const auto n = static_cast<int64_t>(firsts.size());
  const auto rows = [&](int64_t size, DType dtype) { return DenseTensor::allocate(x.device(), {Dims{size}, dtype}); };
  out = rows(n, x.dtype());
  indices = rows(return_index ? n : 0, dtype_of<Index>);
  counts = rows(return_counts ? n : 0, dtype_of<Index>);
  for (int64_t k = 0; k < n; ++k) {
    const int64_t first = firsts[static_cast<size_t>(k)];
    const int64_t end = k + 1 < n ? firsts[static_cast<size_t>(k + 1)] : x.numel();
    out.data<T>()[k] = values[order[static_cast<size_t>(first)]];
    if (return_index) indices.data<Index>()[k] = static_cast<Index>(order[static_cast<size_t>(first)]);
    if (return_counts) counts.data<Index>()[k] = static_cast<Index>(end - first);
    for (int64_t i = first; return_inverse && i < end; ++i)
      inverse.data<Index>()[order[static_cast<size_t>(i)]] = static_cast<Index>(k);
  }
}

template <class T>
void unique(const OpContext&, const DenseTensor& x, bool return_index, bool return_inverse, bool return_counts,
            DType dtype, DenseTensor& out, DenseTensor& indices, DenseTensor& inverse, DenseTensor& counts) {
  const auto run = dtype == DType::int32 ? unique_as<T, int32_t> : unique_as<T, int64_t>;
  run(x, return_index, return_inverse, return_counts, out, indices, inverse, counts);
}

}  // namespace

void register_dynamic() {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("nonzero", kBackend, dtype_of<T>, &nonzero<T>);
    register_kernel("masked_select", kBackend, dtype_of<T>, &masked_select<T>);
    register_kernel("unique", kBackend, dtype_of<T>, &unique<T>);
  });
}

}  // namespace shard::cpu
