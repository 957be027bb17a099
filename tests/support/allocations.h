// Counts the allocations of a thread. One file of a test program includes it, because it replaces the functions for the
// whole program, including libraries. It needs glibc, which lets a program replace malloc. Sanitizers replace the
// functions themselves: there nothing is counted, and tests that count report that they are skipped.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <ostream>
#include <utility>

#include "shard/core/thread_state.h"
#include "support/sanitized.h"

namespace shard::test {

struct Allocations {
  int64_t objects = 0;  // by new
  int64_t buffers = 0;  // by malloc and its kin, as each tensor and its buffer are
  bool operator==(const Allocations&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Allocations& counts) {
  return out << counts.objects << " objects, " << counts.buffers << " buffers";
}

inline thread_local Allocations allocations;

/// The allocations of `call` on this thread. The thread uses none of the blocks that it has kept, which would hide some.
template <class F>
Allocations allocated(F&& call) {
  free_block(allocate_block(1), 1);  // its first one lets the thread keep blocks
  const SmallBlocks kept = std::exchange(this_thread.blocks, SmallBlocks());
  const Allocations before = allocations;
  call();
  const Allocations after = allocations;
  this_thread.blocks = kept;
  return {after.objects - before.objects, after.buffers - before.buffers};
}

/// True, and says so, where allocations cannot be counted.
inline bool counting_is_skipped() {
  if (kSanitized) skip_kept_memory();
  return kSanitized;
}

}  // namespace shard::test

#ifndef SHARD_TEST_SANITIZED
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) noexcept {
  ++shard::test::allocations.buffers;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) noexcept {
  ++shard::test::allocations.buffers;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) noexcept {
  ++shard::test::allocations.buffers;
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) noexcept {
  ++shard::test::allocations.buffers;
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  *memory = memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

void* operator new(size_t bytes) {
  ++shard::test::allocations.objects;
  if (void* memory = __libc_malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  ++shard::test::allocations.objects;
  if (void* memory = __libc_memalign(static_cast<size_t>(alignment), bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// Inlined into code that calls operator new, they would look like a mismatch to GCC.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
