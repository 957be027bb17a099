// A contiguous row-major tensor on one device: meta, storage and byte offset. The value type below the Tensor handle.
#pragma once

#include "core/dims.h"
#include "core/storage.h"

namespace shard {

/// A dense tensor is always contiguous and row-major; a view is another DenseTensor on the same Storage.
class DenseTensor {
 public:
  DenseTensor() {}  // undefined
  DenseTensor(Ref<Storage> storage, const Meta& meta, size_t offset = 0)
      : storage_(std::move(storage)), offset_(offset), meta_(meta) {}
  /// A new tensor on `device`, not initialised; where `dry` is given, one without bytes that it counts. `op` is for messages. Throws
  /// out_of_range for a shape that has too many bytes to count, device where there is no memory.
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
  /// False for a tensor of a dry world, whose elements are nowhere.
  bool has_data() const { return storage_->has_data(); }
  void* raw() const { return static_cast<char*>(storage_->data()) + offset_; }
  /// The elements. T must be the C++ type of dtype(); on other devices this is a device address.
  template <class T>
  T* data() const {
    return static_cast<T*>(raw());
  }

  /// In a program that is being captured: the number of its value. 0: none. Copies have it too.
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

/// How the byte ranges of two tensors lie to each other.
enum class Overlap { none, equal, partial };
Overlap overlap(const DenseTensor& a, const DenseTensor& b);

/// A new tensor with the same value on the same device; of one without data, another one.
DenseTensor clone(const DenseTensor& tensor);
/// A tensor of a floating dtype in another one, rounded once; `tensor` itself where it has that. Elements are converted on the host.
DenseTensor convert_floats(const DenseTensor& tensor, DType dtype);
/// The same for `count` elements in host memory. Nothing where a pointer is null.
void convert_floats(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count);
/// Copies all bytes of `from` into `to`, which has the same byte size; devices may differ. Does nothing unless both have data.
void copy_into(const DenseTensor& to, const DenseTensor& from);

}  // namespace shard
