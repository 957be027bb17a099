// Memory for numbers that kernels need for a while, which threads keep for their next calls: the system would have to
// give it anew, page by page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "shard/core/host_cache.h"

namespace shard::cpu {

/// At least `bytes` bytes from the beginning of a line of the caches on, which the same thread is to give back.
void* take_scratch(size_t bytes);
void give_scratch(void* data, size_t bytes);

/// Numbers in such memory. They are arbitrary at first.
template <class F>
class Scratch {
 public:
  explicit Scratch(int64_t size)
      : data_(static_cast<F*>(take_scratch(static_cast<size_t>(size) * sizeof(F))),
              Give{static_cast<size_t>(size) * sizeof(F)}) {}
  F* get() const { return data_.get(); }

 private:
  struct Give {
    void operator()(F* data) const { give_scratch(data, bytes); }
    size_t bytes;
  };
  std::unique_ptr<F, Give> data_;
};

/// Takes memory as tensors do, and leaves numbers arbitrary where no value is given.
template <class F>
struct HostAllocator {
  using value_type = F;
  HostAllocator() = default;
  template <class G>
  HostAllocator(const HostAllocator<G>&) {}
  friend bool operator==(const HostAllocator&, const HostAllocator&) { return true; }

  F* allocate(size_t count) {
    void* const data = allocate_host(count * sizeof(F));
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<F*>(data);
  }
  void deallocate(F* data, size_t) { free_host(data); }
  template <class G>
  void construct(G* at) {
    ::new (static_cast<void*>(at)) G;
  }
  template <class G, class... Arguments>
  void construct(G* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) G(static_cast<Arguments&&>(arguments)...);
  }
};

/// A vector of many numbers that are arbitrary at first unless a value is given: std::vector would set zeros, in pages that are
/// new in each call.
template <class F>
using Numbers = std::vector<F, HostAllocator<F>>;

}  // namespace shard::cpu
