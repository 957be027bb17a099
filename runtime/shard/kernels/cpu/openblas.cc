#include "shard/kernels/cpu/openblas.h"

#include <cblas.h>

#include <cstdlib>
#include <cstring>

// OpenBLAS built for one processor (without DYNAMIC_ARCH) does not have these.
extern "C" [[gnu::weak]] void gotoblas_dynamic_init();
extern "C" [[gnu::weak]] void gotoblas_dynamic_quit();

namespace shard::cpu {

namespace {

constexpr char kCoreVariable[] = "OPENBLAS_CORETYPE";

#if defined(__x86_64__)
/// The kernels for a processor that OpenBLAS does not know; nullptr where those that it took will do.
const char* better_core() {
  if (std::getenv(kCoreVariable)) return nullptr;  // the user's choice
  if (std::strcmp(openblas_get_corename(), "Prescott") != 0) return nullptr;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : nullptr;
}
#else
const char* better_core() { return nullptr; }
#endif

/// A release of OpenBLAS takes its kernels for SSE3 on processors that came out after it, several times slower. It chooses by model number;
/// this makes it choose again, by what the processor can do.
void choose_kernels() {
  const char* core = better_core();
  if (!core || !gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
  setenv(kCoreVariable, core, 0);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv(kCoreVariable);
}

}  // namespace

void prepare_openblas() {
  choose_kernels();
  openblas_set_num_threads(1);
}

}  // namespace shard::cpu
