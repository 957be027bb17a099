// Memory for numbers that kernels need for a while, which threads keep for their next calls: the system would have to
// give it anew, page by page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

}  // namespace shard::cpu
