// Intrusive reference counting: references are one pointer wide, objects need one allocation.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "shard/core/small_blocks.h"

namespace shard {

/// Base of objects that Ref owns. The count is thread safe.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  static void* operator new(size_t bytes) {
    if (void* const block = allocate_block(bytes)) return block;
    throw std::bad_alloc();
  }
  static void* operator new(size_t, void* memory) { return memory; }
  static void operator delete(void* block, size_t bytes) { free_block(block, bytes); }
  static void operator delete(void*, void*) {}

  void retain() const { count_.fetch_add(1, std::memory_order_relaxed); }
  /// True when the caller has the only reference.
  bool unique() const { return count_.load(std::memory_order_acquire) == 1; }
  uint32_t use_count() const { return count_.load(std::memory_order_acquire); }
  /// True when this was the last reference.
  bool release() const {
    // A sole owner needs no read-modify-write, because no other thread can reach the object.
    return count_.load(std::memory_order_acquire) == 1 || count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  mutable std::atomic<uint32_t> count_{1};
};

/// Owns one reference to a T. T has `static void destroy(T*)`.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}  // NOLINT: an empty reference
  Ref(const Ref& other) : pointer_(other.pointer_) {
    if (pointer_) pointer_->retain();
  }
  Ref(Ref&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Ref() {
    if (pointer_ && pointer_->release()) T::destroy(pointer_);
  }
  /// Takes ownership of the reference with which a new object is created.
  static Ref adopt(T* pointer) {
    Ref ref;
    ref.pointer_ = pointer;
    return ref;
  }

  /// Transfers the reference to the caller, who has to release it.
  T* leak() { return std::exchange(pointer_, nullptr); }

  T* get() const { return pointer_; }
  T* operator->() const { return pointer_; }
  T& operator*() const { return *pointer_; }
  explicit operator bool() const { return pointer_ != nullptr; }
  bool operator==(const Ref& other) const { return pointer_ == other.pointer_; }

 private:
  T* pointer_ = nullptr;
};

}  // namespace shard
