// SLEEF's functions of vectors of AVX2. Compiled for it as a whole, so nothing that other files
// compile too may be included. The variants "finz" compute the same bits in vectors of any width.
#ifdef __AVX2__
#include <sleef.h>

#include "shard/kernels/cpu/vector_functions.h"

namespace shard::cpu::avx2 {

#define SHARD_DEFINE(name, ulps)                                                 \
  void name(const float* x, float* out) {                                        \
    _mm256_store_ps(out, Sleef_finz_##name##f8_##ulps##avx2(_mm256_load_ps(x))); \
  }                                                                              \
  void name(const double* x, double* out) {                                      \
    _mm256_store_pd(out, Sleef_finz_##name##d4_##ulps##avx2(_mm256_load_pd(x))); \
  }
#define SHARD_DEFINE_OF_TWO(name, ulps)                                                             \
  void name(const float* x, const float* y, float* out) {                                           \
    _mm256_store_ps(out, Sleef_finz_##name##f8_##ulps##avx2(_mm256_load_ps(x), _mm256_load_ps(y))); \
  }                                                                                                 \
  void name(const double* x, const double* y, double* out) {                                        \
    _mm256_store_pd(out, Sleef_finz_##name##d4_##ulps##avx2(_mm256_load_pd(x), _mm256_load_pd(y))); \
  }
SHARD_VECTOR_FUNCTIONS(SHARD_DEFINE)
SHARD_VECTOR_FUNCTIONS_OF_TWO(SHARD_DEFINE_OF_TWO)

}  // namespace shard::cpu::avx2
#endif
