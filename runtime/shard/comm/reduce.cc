#include "shard/comm/reduce.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "shard/core/error.h"
#include "shard/core/independent.h"

#define SHARD_FORMULA_INLINE inline

namespace shard {
namespace {

#include "shard/kernels/formulas/reduction.inc"

/// to[i] = a[i] (+) b[i], divided by `divisor` at the last step of an average. `to` may be `a` or
/// `b`. The type is a template argument, so that the loop is vectorised.
template <ReduceType kType, bool kLast, class To, class From, class T>
void combine_all(To* to, const From* a, const T* b, int64_t count, size_t divisor) {
  using A = Compute<T>;
  SHARD_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    A value = combine<kType, A>(static_cast<A>(a[i]), static_cast<A>(b[i]));
    if constexpr (kLast && kType == ReduceType::avg && !std::is_same_v<A, bool>)
      value = static_cast<A>(value / static_cast<A>(divisor));
    to[i] = static_cast<To>(value);
  }
}

/// Works in blocks, whose intermediate results stay in the nearest cache. Only the last step writes
/// `out`, which may be one of the inputs.
template <ReduceType kType, class T>
void reduce_typed(T* out, std::span<const void* const> inputs, int64_t count) {
  using A = Compute<T>;
  constexpr int64_t kBlock = 512;
  A block[kBlock];
  const size_t n = inputs.size();
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    const auto input = [&](size_t k) { return static_cast<const T*>(inputs[k]) + start; };
    T* to = out + start;
    if (n == 1) {
      if (to != input(0)) std::copy_n(input(0), length, to);
    } else if (n == 2) {
      combine_all<kType, true>(to, input(0), input(1), length, n);
    } else {
      combine_all<kType, false>(block, input(0), input(1), length, n);
      for (size_t k = 2; k + 1 < n; ++k) combine_all<kType, false>(block, block, input(k), length, n);
      combine_all<kType, true>(to, block, input(n - 1), length, n);
    }
  }
}

template <class T>
void reduce_by_type(T* out, std::span<const void* const> inputs, int64_t count, ReduceType type) {
  switch (type) {
#define SHARD_ROW(name, ...) \
  case ReduceType::name: return reduce_typed<ReduceType::name>(out, inputs, count);
    SHARD_REDUCE_TYPES(SHARD_ROW)
#undef SHARD_ROW
  }
  fail(ErrorCode::internal, "unknown reduce type {}", static_cast<int>(type));
}

}  // namespace

void reduce_in_order(void* out, std::span<const void* const> inputs, int64_t count, DType dtype, ReduceType type) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    reduce_by_type(static_cast<T*>(out), inputs, count, type);
  });
}

void fill_identity(void* data, int64_t count, DType dtype, ReduceType type) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::fill_n(static_cast<T*>(data), count, identity<T>(type));
  });
}

}  // namespace shard
