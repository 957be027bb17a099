// A contiguous row-major tensor on one device: meta, storage and byte offset. The value type below
// the Tensor handle.
#pragma once

#include "shard/core/dims.h"
#include "shard/core/export.h"
#include "shard/core/storage.h"

namespace shard {

/// A dense tensor is always contiguous and row-major; a view is another DenseTensor on the same Storage.
class DenseTensor {
 public:
  DenseTensor() {}  // undefined
  DenseTensor(Ref<Storage> storage, const Meta& meta, size_t offset = 0)
      : storage_(std::move(storage)), offset_(offset), meta_(meta) {}
  /// A new, uninitialised tensor on `device`. With `dry` it is storage-less and counted by that
  /// meter. `op` is for messages. Throws out_of_range for a shape with too many bytes to count,
  /// device where there is no memory.
  static DenseTensor allocate(Device device, const Meta& meta, MemoryMeter* dry = nullptr, const char* op = nullptr) {
    const size_t bytes = checked_bytes(meta, op);
    return {dry == nullptr ? Storage::allocate(device, bytes, op, meta) : Storage::unallocated(device, bytes, *dry),
            meta};
  }

  /// False for an absent optional argument.
  bool defined() const { return static_cast<bool>(storage_); }
  const Meta& meta() const { return meta_; }
  const Dims& dims() const { return meta_.dims; }
  DType dtype() const { return meta_.dtype; }
  int64_t numel() const { return meta_.numel(); }
  Device device() const { return storage_->device(); }

  const Ref<Storage>& storage() const { return storage_; }
  size_t offset() const { return offset_; }
  /// False for a tensor of a dry world, which has no elements.
  bool has_data() const { return storage_->has_data(); }
  void* raw() const { return static_cast<char*>(storage_->data()) + offset_; }
  /// The elements. T must be the C++ type of dtype(); on other devices this is a device address.
  template <class T>
  T* data() const {
    return static_cast<T*>(raw());
  }

  /// In a program that is being captured: the number of its value; 0 if it has none. Copies keep
  /// the number.
  uint32_t symbol() const { return symbol_; }
  void set_symbol(uint32_t symbol) { symbol_ = symbol; }

  /// The same bytes under another shape or dtype of equal byte size.
  DenseTensor reinterpret(const Meta& meta) const { return {storage_, meta, offset_}; }

 private:
  Ref<Storage> storage_;
  size_t offset_ = 0;
  Meta meta_;
  uint32_t symbol_ = 0;
};

/// How the byte ranges of two tensors overlap.
enum class Overlap { none, equal, partial };
SHARD_API Overlap overlap(const DenseTensor& a, const DenseTensor& b);

/// A new tensor with the same value on the same device. The clone of a tensor without data has no
/// data either.
SHARD_API DenseTensor clone(const DenseTensor& tensor);
/// A tensor of a floating dtype converted to another one, rounded once; `tensor` itself if it has
/// that dtype. Elements are converted on the host.
SHARD_API DenseTensor convert_floats(const DenseTensor& tensor, DType dtype);
/// The same for `count` elements in host memory. Does nothing where a pointer is null.
SHARD_API void convert_floats(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count);
/// Copies all bytes of `from` into `to`, which has the same byte size; devices may differ. Does
/// nothing unless both have data.
SHARD_API void copy_into(const DenseTensor& to, const DenseTensor& from);

}  // namespace shard
