// Counts the allocations of a thread. One file of a test program includes it, because it replaces
// the operators for the whole program, including libraries. Sanitizers replace them themselves:
// that file is called allocation_test.cc, which tests/CMakeLists.txt leaves out there. It needs
// glibc, which lets a program replace malloc.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <ostream>

namespace shard::test {

struct Allocations {
  int64_t objects = 0;  // by new
  int64_t buffers = 0;  // by malloc, as each Storage is
  bool operator==(const Allocations&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Allocations& counts) {
  return out << counts.objects << " objects, " << counts.buffers << " buffers";
}

inline thread_local Allocations allocations;

/// The allocations of `call` on this thread.
template <class F>
Allocations allocated(F&& call) {
  const Allocations before = allocations;
  call();
  return {allocations.objects - before.objects, allocations.buffers - before.buffers};
}

}  // namespace shard::test

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* malloc(size_t bytes) noexcept {
  ++shard::test::allocations.buffers;
  return __libc_malloc(bytes);
}

void* operator new(size_t bytes) {
  ++shard::test::allocations.objects;
  if (void* memory = __libc_malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
