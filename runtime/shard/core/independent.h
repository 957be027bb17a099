// A hint for loops that compilers vectorise.
#pragma once

/// Before a loop: no iteration reads or writes what another one writes, though the compiler cannot see it, as where it knows
/// nothing of several pointers. GCC checks few pointers for overlap at run time and leaves loops with more of them scalar; Clang checks as many
/// as there are, and does not know the pragma.
#ifdef __clang__
#define SHARD_INDEPENDENT
#else
#define SHARD_INDEPENDENT _Pragma("GCC ivdep")
#endif
