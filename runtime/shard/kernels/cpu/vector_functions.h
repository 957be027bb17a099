// SLEEF's functions of one vector of an instruction set, behind pointers: compilers pass vectors in
// registers only between functions of files that are compiled for their instruction set as a whole,
// as vector_functions_*.cc are. Use vector_math.h.
#pragma once

/// The functions, and the variants of SLEEF's: within 1 ulp, erfc within 1.5.
// clang-format off
#define SHARD_VECTOR_FUNCTIONS(ROW) \
  ROW(exp, u10) ROW(expm1, u10) ROW(log, u10) ROW(log1p, u10) ROW(log2, u10) ROW(log10, u10) \
  ROW(sin, u10) ROW(cos, u10) ROW(tan, u10) ROW(asin, u10) ROW(acos, u10) ROW(atan, u10) \
  ROW(sinh, u10) ROW(cosh, u10) ROW(tanh, u10) ROW(asinh, u10) ROW(acosh, u10) ROW(atanh, u10) \
  ROW(erf, u10) ROW(erfc, u15) ROW(lgamma, u10)
// clang-format on
#define SHARD_VECTOR_FUNCTIONS_OF_TWO(ROW) ROW(pow, u10) ROW(atan2, u10)

/// x, y and out are aligned vectors, and may be one.
#define SHARD_DECLARE(name, ulps)        \
  void name(const float* x, float* out); \
  void name(const double* x, double* out);
#define SHARD_DECLARE_OF_TWO(name, ulps)                 \
  void name(const float* x, const float* y, float* out); \
  void name(const double* x, const double* y, double* out);

namespace shard::cpu::avx2 {
SHARD_VECTOR_FUNCTIONS(SHARD_DECLARE)
SHARD_VECTOR_FUNCTIONS_OF_TWO(SHARD_DECLARE_OF_TWO)
}  // namespace shard::cpu::avx2

namespace shard::cpu::avx3 {
SHARD_VECTOR_FUNCTIONS(SHARD_DECLARE)
SHARD_VECTOR_FUNCTIONS_OF_TWO(SHARD_DECLARE_OF_TWO)
}  // namespace shard::cpu::avx3

#undef SHARD_DECLARE
#undef SHARD_DECLARE_OF_TWO
