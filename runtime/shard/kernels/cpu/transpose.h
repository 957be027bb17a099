// Copies of matrices with rows and columns exchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace shard::cpu {

/// How a kernel writes results that it does not read again.
enum class Store {
  cached,
  streamed,  // past the caches, which is faster for whole cache lines that they have no room for
};

/// How to write a result of so many bytes.
inline Store store_of(size_t bytes) { return bytes >= (size_t{4} << 20) ? Store::streamed : Store::cached; }

namespace detail {
/// transpose_matrix for the unsigned integers of 1, 2, 4 and 8 bytes.
template <class Bits>
void transpose_bits(const Bits* in, int64_t in_step, Bits* out, int64_t out_step, int64_t rows, int64_t columns,
                    Store store);
extern template void transpose_bits(const uint8_t*, int64_t, uint8_t*, int64_t, int64_t, int64_t, Store);
extern template void transpose_bits(const uint16_t*, int64_t, uint16_t*, int64_t, int64_t, int64_t, Store);
extern template void transpose_bits(const uint32_t*, int64_t, uint32_t*, int64_t, int64_t, int64_t, Store);
extern template void transpose_bits(const uint64_t*, int64_t, uint64_t*, int64_t, int64_t, int64_t, Store);
}  // namespace detail

/// out[c * out_step + r] = in[r * in_step + c] for each r below `rows` and c below `columns`.
template <class T>
void transpose_matrix(const T* in, int64_t in_step, T* out, int64_t out_step, int64_t rows, int64_t columns,
                      Store store = Store::cached) {
  using Bits = std::conditional_t<
      sizeof(T) == 1, uint8_t,
      std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
  static_assert(sizeof(T) == sizeof(Bits) && std::is_trivially_copyable_v<T>);
  detail::transpose_bits(reinterpret_cast<const Bits*>(in), in_step, reinterpret_cast<Bits*>(out), out_step, rows,
                         columns, store);
}

}  // namespace shard::cpu
