#include "comm/reduce.h"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace shard {
namespace {

// 16-bit floats are summed in float, bools and bytes of any/all as they are.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>, float, T>;

/// One step of a reduction of type kType. avg adds; its division comes last.
template <ReduceType kType, class A>
A combine(A a, A b) {
  constexpr bool kBool = std::is_same_v<A, bool>;
  if constexpr (kType == ReduceType::sum || kType == ReduceType::avg) {
    if constexpr (kBool) return a || b;
    else return static_cast<A>(a + b);
  } else if constexpr (kType == ReduceType::prod) {
    if constexpr (kBool) return a && b;
    else return static_cast<A>(a * b);
  } else if constexpr (kType == ReduceType::max) {
    return a != a || a > b ? a : b;  // NaN wins, as in the max and min kernels
  } else if constexpr (kType == ReduceType::min) {
    return a != a || a < b ? a : b;
  } else if constexpr (kType == ReduceType::any) {
    return static_cast<A>(a != A(0) || b != A(0));
  } else {
    return static_cast<A>(a != A(0) && b != A(0));
  }
}

/// The type is known when this is compiled, so that its loops become vector instructions.
template <ReduceType kType, class T>
void reduce_typed(T* out, std::span<const void* const> inputs, int64_t count) {
  using A = Accumulator<T>;
  constexpr int64_t kBlock = 512;
  A block[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    const T* first = static_cast<const T*>(inputs[0]) + start;
    for (int64_t i = 0; i < length; ++i) block[i] = static_cast<A>(first[i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const T* next = static_cast<const T*>(inputs[k]) + start;
      for (int64_t i = 0; i < length; ++i) block[i] = combine<kType, A>(block[i], static_cast<A>(next[i]));
    }
    if constexpr (kType == ReduceType::avg && !std::is_same_v<A, bool>) {
      for (int64_t i = 0; i < length; ++i) block[i] = static_cast<A>(block[i] / static_cast<A>(inputs.size()));
    }
    for (int64_t i = 0; i < length; ++i) out[start + i] = static_cast<T>(block[i]);
  }
}

template <class T>
void reduce_by_type(T* out, std::span<const void* const> inputs, int64_t count, ReduceType type) {
  switch (type) {
    case ReduceType::sum: return reduce_typed<ReduceType::sum>(out, inputs, count);
    case ReduceType::avg: return reduce_typed<ReduceType::avg>(out, inputs, count);
    case ReduceType::prod: return reduce_typed<ReduceType::prod>(out, inputs, count);
    case ReduceType::max: return reduce_typed<ReduceType::max>(out, inputs, count);
    case ReduceType::min: return reduce_typed<ReduceType::min>(out, inputs, count);
    case ReduceType::any: return reduce_typed<ReduceType::any>(out, inputs, count);
    case ReduceType::all: return reduce_typed<ReduceType::all>(out, inputs, count);
  }
  fail(ErrorCode::internal, "reduce type {} does not exist", static_cast<int>(type));
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
