// The instruction sets for which kernels are compiled: the baseline, AVX2 and AVX3 (others would
// only cost compile time). Included before hwy/foreach_target.h by each .cc that compiles itself
// once per instruction set.
#pragma once

#include "hwy/detect_compiler_arch.h"

#ifndef SHARD_LEFT_OUT  // in some builds (SHARD_INSTRUCTION_SETS in runtime/CMakeLists.txt)
#define SHARD_LEFT_OUT 0
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | SHARD_LEFT_OUT)

#ifndef SHARD_FORMULA_INLINE  // begins the functions of kernels/formulas, which devices compile too
#define SHARD_FORMULA_INLINE HWY_INLINE
#endif
