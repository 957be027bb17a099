// The register functions of the CPU kernel families, and a helper for kernels that move bytes.
#pragma once

#include "shard/kernels/registry.h"

namespace shard::cpu {

inline constexpr int kBackend = 0;

/// Registers one function for every dtype: for kernels that only copy bytes.
template <class... Args>
void register_for_all(const char* name, void (*function)(Args...)) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, function); });
}

void register_binary();
void register_logic();
void register_unary();
void register_unary_grad();
void register_transcendental();
void register_special();
void register_gamma();
void register_activation();
void register_activation_grad();
void register_scalar();
void register_cast();
void register_reduce();
void register_scan();
void register_matmul();
void register_softmax();
void register_statistics();
void register_norm();
void register_norm_grad();
void register_attention();
void register_packed_attention();
void register_rope();
void register_embedding();
void register_indexing();
void register_positions();
void register_move();
void register_concat();
void register_random();
void register_distributions();
void register_optim();
void register_running_state();
void register_creation();
void register_dynamic();
void register_counting();
void register_sort();
void register_nanmedian();
void register_running();
void register_linalg();

}  // namespace shard::cpu
