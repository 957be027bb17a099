#include "comm/reduce.h"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace shard {
namespace {

// 16-bit floats are summed in float, bools and bytes of any/all as they are.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>, float, T>;

template <class A>
A combine(A a, A b, ReduceType type) {
  switch (type) {
    case ReduceType::avg:
    case ReduceType::sum:
      if constexpr (std::is_same_v<A, bool>) return a || b;
      else return static_cast<A>(a + b);
    case ReduceType::prod:
      if constexpr (std::is_same_v<A, bool>) return a && b;
      else return static_cast<A>(a * b);
    // NaN wins, as in the max and min kernels.
    case ReduceType::max: return a != a || a > b ? a : b;
    case ReduceType::min: return a != a || a < b ? a : b;
    case ReduceType::any: return static_cast<A>(a != A(0) || b != A(0));
    case ReduceType::all: return static_cast<A>(a != A(0) && b != A(0));
  }
  fail(ErrorCode::internal, "reduce type {} does not exist", static_cast<int>(type));
}

template <class T>
void reduce_typed(T* out, std::span<const void* const> inputs, int64_t count, ReduceType type) {
  using A = Accumulator<T>;
  constexpr int64_t kBlock = 512;
  A block[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    const T* first = static_cast<const T*>(inputs[0]) + start;
    for (int64_t i = 0; i < length; ++i) block[i] = static_cast<A>(first[i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const T* next = static_cast<const T*>(inputs[k]) + start;
      for (int64_t i = 0; i < length; ++i) block[i] = combine<A>(block[i], static_cast<A>(next[i]), type);
    }
    if constexpr (!std::is_same_v<A, bool>) {
      if (type == ReduceType::avg) {
        for (int64_t i = 0; i < length; ++i) block[i] = static_cast<A>(block[i] / static_cast<A>(inputs.size()));
      }
    }
    for (int64_t i = 0; i < length; ++i) out[start + i] = static_cast<T>(block[i]);
  }
}

template <class T>
T identity(ReduceType type) {
  using A = Accumulator<T>;
  using Limits = std::numeric_limits<A>;
  switch (type) {
    case ReduceType::sum:
    case ReduceType::avg:
    case ReduceType::any: return static_cast<T>(A(0));
    case ReduceType::prod:
    case ReduceType::all: return static_cast<T>(A(1));
    case ReduceType::max: return static_cast<T>(Limits::has_infinity ? static_cast<A>(-Limits::infinity()) : Limits::lowest());
    case ReduceType::min: return static_cast<T>(Limits::has_infinity ? Limits::infinity() : Limits::max());
  }
  fail(ErrorCode::internal, "reduce type {} does not exist", static_cast<int>(type));
}

}  // namespace

void reduce_in_order(void* out, std::span<const void* const> inputs, int64_t count, DType dtype, ReduceType type) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    reduce_typed(static_cast<T*>(out), inputs, count, type);
  });
}

void fill_identity(void* data, int64_t count, DType dtype, ReduceType type) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::fill_n(static_cast<T*>(data), count, identity<T>(type));
  });
}

}  // namespace shard
