// A vector of trivially copyable values that stores the first N in place, so that hot paths
// allocate nothing.
#pragma once

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace shard {

template <class T, size_t N>
class SmallVec {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SmallVec() = default;
  SmallVec(std::initializer_list<T> values) { append(values.begin(), values.size()); }
  explicit SmallVec(std::span<const T> values) { append(values.data(), values.size()); }
  SmallVec(size_t count, T value) {
    for (size_t i = 0; i < count; ++i) push_back(value);
  }
  SmallVec(const SmallVec& other) { append(other.data(), other.size()); }
  SmallVec(SmallVec&& other) noexcept { take(other); }
  SmallVec& operator=(const SmallVec& other) {
    if (this != &other) {
      clear();
      append(other.data(), other.size());
    }
    return *this;
  }
  SmallVec& operator=(SmallVec&& other) noexcept {
    if (this == &other) return *this;
    free_heap();
    take(other);
    return *this;
  }
  ~SmallVec() { free_heap(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }
  operator std::span<const T>() const { return {data(), size_}; }

  void clear() { size_ = 0; }
  void push_back(T value) {
    if (size_ == capacity_) grow(size_ + 1);
    data_[size_++] = value;
  }
  void pop_back() { --size_; }
  void append(const T* values, size_t count) {
    if (count == 0) return;
    if (size_ + count > capacity_) grow(size_ + count);
    std::memcpy(static_cast<void*>(data() + size_), values, count * sizeof(T));
    size_ += count;
  }

  bool operator==(const SmallVec& other) const {
    if (size_ != other.size_) return false;
    for (size_t i = 0; i < size_; ++i) {
      if (!((*this)[i] == other[i])) return false;
    }
    return true;
  }

 private:
  void grow(size_t needed) {
    const size_t capacity = needed > 2 * capacity_ ? needed : 2 * capacity_;
    std::unique_ptr<T[]> bigger(new T[capacity]);
    std::memcpy(static_cast<void*>(bigger.get()), data_, size_ * sizeof(T));
    free_heap();
    data_ = bigger.release();
    capacity_ = capacity;
  }
  /// Takes the elements of `other`; those of this vector have been freed.
  void take(SmallVec& other) {
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, N);
    const bool inside = other.data_ == other.inline_;
    data_ = inside ? inline_ : std::exchange(other.data_, other.inline_);
    if (inside) std::memcpy(static_cast<void*>(inline_), other.inline_, size_ * sizeof(T));
  }
  void free_heap() {
    if (data_ != inline_) delete[] data_;
  }

  size_t size_ = 0;
  size_t capacity_ = N;
  T* data_ = inline_;
  T inline_[N];
};

}  // namespace shard
