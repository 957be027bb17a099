// The register functions of the CPU kernel families, and helpers to register one template for several dtypes.
#pragma once

#include "kernels/registry.h"

namespace shard::cpu {

inline constexpr int kBackend = 0;

template <class... Ts>
struct Types {};
using FloatTypes = Types<float, double, bfloat16, float16>;
using IntTypes = Types<int32_t, int64_t, uint8_t>;
using NumberTypes = Types<float, double, bfloat16, float16, int32_t, int64_t, uint8_t>;
using AllTypes = Types<float, double, bfloat16, float16, int32_t, int64_t, uint8_t, bool>;

/// Calls add(TypeTag<T>{}) for each type.
template <class... Ts, class Add>
void for_types(Types<Ts...>, Add add) {
  (add(TypeTag<Ts>{}), ...);
}

/// Registers one function for every dtype: for kernels that only copy bytes.
template <class... Args>
void register_for_all(const char* name, void (*function)(Args...)) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, function); });
}

void register_binary();
void register_logic();
void register_unary();
void register_unary_grad();
void register_activation_grad();
void register_scalar();
void register_cast();
void register_reduce();
void register_scan();
void register_matmul();
void register_softmax();
void register_norm();
void register_norm_grad();
void register_attention();
void register_rope();
void register_embedding();
void register_move();
void register_pieces();
void register_random();
void register_optim();
void register_creation();
void register_dynamic();

}  // namespace shard::cpu
