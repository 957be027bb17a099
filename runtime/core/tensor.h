// The handle that programs hold: a reference to a dense tensor or to a distributed one (whose parts live in dist/).
#pragma once

#include <string>
#include <vector>

#include "core/dense_tensor.h"

namespace shard {

enum class TensorKind : uint8_t { dense, dist };

/// What a Tensor refers to. Handles that are copies of each other share one TensorImpl; views have their own.
class TensorImpl : public RefCounted {
 public:
  explicit TensorImpl(DenseTensor value) : value(std::move(value)) {}
  virtual ~TensorImpl() = default;
  static void destroy(TensorImpl* impl) { delete impl; }

  TensorKind kind() const { return kind_; }
  /// The global shape and dtype.
  virtual const Meta& meta() const { return value.meta(); }
  /// One line for messages: meta and, where distributed, layout and mesh.
  virtual std::string describe() const;

  /// The tensor itself, or this rank's piece of it.
  DenseTensor value;

 protected:
  TensorImpl(TensorKind kind, DenseTensor value) : value(std::move(value)), kind_(kind) {}

 private:
  TensorKind kind_ = TensorKind::dense;
};

/// A reference-counted handle to a tensor; copies refer to the same tensor. Default-constructed it is undefined, which is
/// how an absent optional argument is passed.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  explicit Tensor(DenseTensor value) : impl_(Ref<TensorImpl>::adopt(new TensorImpl(std::move(value)))) {}

  /// A dense CPU tensor with these elements in row-major order. Throws shape_mismatch unless there are dims.numel() of them.
  template <class T>
  static Tensor from_data(const std::vector<T>& values, const Dims& dims) {
    check_count(static_cast<int64_t>(values.size()), dims);
    DenseTensor tensor = DenseTensor::allocate(kCpu, {dims, dtype_of<T>});
    std::copy(values.begin(), values.end(), tensor.data<T>());
    return Tensor(std::move(tensor));
  }

  bool defined() const { return static_cast<bool>(impl_); }
  TensorKind kind() const { return get().kind(); }
  bool is_dist() const { return impl_ && impl_->kind() == TensorKind::dist; }

  /// Global shape and dtype.
  const Meta& meta() const { return get().meta(); }
  const Dims& dims() const { return meta().dims; }
  DType dtype() const { return meta().dtype; }
  int64_t numel() const { return meta().numel(); }
  Device device() const { return get().value.device(); }
  /// The number of writes to the buffer, by any alias.
  uint64_t version() const { return get().value.storage()->version(); }
  /// True when both handles see each other's writes (they share a buffer).
  bool shares_buffer_with(const Tensor& other) const { return get().value.storage() == other.get().value.storage(); }

  /// The elements of a dense tensor in row-major order, copied to the host. T must match dtype(). Throws dtype_mismatch,
  /// no_data for one of a dry world, or layout for a distributed tensor (use full() first, a collective call).
  template <class T>
  std::vector<T> to_vector() const {
    const DenseTensor host = to_host(dtype_of<T>);
    std::vector<T> values(static_cast<size_t>(host.numel()));
    std::copy_n(host.data<T>(), values.size(), values.begin());
    return values;
  }
  /// A dense tensor with the same value on another device. Throws layout for a distributed tensor.
  Tensor to(Device device) const;

  const Ref<TensorImpl>& impl() const { return impl_; }
  /// Throws undefined for an empty handle.
  TensorImpl& get() const {
    if (!impl_) fail_undefined();
    return *impl_;
  }

 private:
  static void check_count(int64_t count, const Dims& dims);
  [[noreturn]] static void fail_undefined();
  DenseTensor to_host(DType dtype) const;

  Ref<TensorImpl> impl_;
};

}  // namespace shard
