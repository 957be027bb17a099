// The handle that programs hold: a reference to a dense tensor, or to a distributed one (whose
// parts are defined in dist/).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/export.h"
#include "shard/core/index.h"

namespace shard {

enum class TensorKind : uint8_t { dense, dist };

class TensorImpl;

/// The interface through which tensors own the step that made them. It is an autograd::Node.
class SHARD_API GradNode : public RefCounted {
 public:
  static void destroy(GradNode* node) { node->dispose(); }

 protected:
  virtual ~GradNode() = default;
  /// Deletes the node, without recursion along the chain of nodes that it owns.
  virtual void dispose() = 0;
};

/// Autograd data that only few tensors have: gradients and hooks of leaves.
class SHARD_API GradExtra {
 public:
  virtual ~GradExtra() = default;
};

/// The place of a tensor in recorded computations (docs/autograd.md). Empty for most tensors.
struct SHARD_API GradState {
  GradState();
  GradState(const GradState&) = delete;
  GradState& operator=(const GradState&) = delete;
  ~GradState();

  bool requires_grad = false;
  uint32_t output = 0;        // which output of `node` this is
  Ref<GradNode> node;         // the step that made it; null for a leaf
  Ref<TensorImpl> root;       // of a view: its base, which is not a view
  uint64_t root_version = 0;  // of the buffer when `node` was last up to date
  ViewChain views;            // between `root` and this tensor
  std::unique_ptr<GradExtra> extra;
};

/// The object that a Tensor refers to. Handles that are copies of each other share one TensorImpl;
/// views have their own.
class SHARD_API TensorImpl : public RefCounted {
 public:
  explicit TensorImpl(DenseTensor value) : value(std::move(value)) {}
  virtual ~TensorImpl() = default;
  static void destroy(TensorImpl* impl) { delete impl; }

  TensorKind kind() const { return kind_; }
  /// The global shape and dtype.
  virtual const Meta& meta() const { return value.meta(); }
  /// One line for messages: meta and, where distributed, layout and mesh.
  virtual std::string describe() const;
  /// Another tensor with the same value on the same buffer, without history.
  virtual Ref<TensorImpl> alias() const;

  /// The tensor itself, or this rank's local shard.
  DenseTensor value;
  GradState grad;

 protected:
  TensorImpl(TensorKind kind, DenseTensor value) : value(std::move(value)), kind_(kind) {}

 private:
  TensorKind kind_ = TensorKind::dense;
};

inline GradState::GradState() = default;
inline GradState::~GradState() = default;

class Tensor;
/// The tensor, copied to default_device() where it is elsewhere.
SHARD_API Tensor on_default_device(Tensor tensor);

/// A reference-counted handle to a tensor; copies refer to the same tensor. A default-constructed
/// handle is undefined, which stands for an absent optional argument. Members for gradients, to() and
/// index() are defined in api/: layers below do not call them.
class SHARD_API Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  explicit Tensor(DenseTensor value) : impl_(Ref<TensorImpl>::adopt(new TensorImpl(std::move(value)))) {}

  /// A dense tensor with these elements in row-major order, on default_device(). Throws shape_mismatch unless there
  /// are dims.numel() of them.
  template <class T>
  static Tensor from_data(const std::vector<T>& values, const Dims& dims) {
    const Meta meta{dims, dtype_of<T>};
    check_count(static_cast<int64_t>(values.size()), dims);
    DenseTensor tensor = DenseTensor::allocate(kCpu, meta, nullptr, "from_data");
    std::copy(values.begin(), values.end(), tensor.data<T>());
    return on_default_device(Tensor(std::move(tensor)));
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

  /// The elements of a dense tensor in row-major order, copied to the host. T must match dtype().
  /// Throws dtype_mismatch, no_data for a tensor of a dry world, layout for a distributed tensor
  /// (use full_tensor() first, a collective call), or device where there is no memory.
  template <class T>
  std::vector<T> to_vector() const {
    const DenseTensor host = to_host(dtype_of<T>);
    try {
      const auto count = static_cast<size_t>(host.numel());
      std::vector<T> values(count);
      std::copy_n(host.data<T>(), count, values.begin());
      return values;
    } catch (const std::exception&) {  // bad_alloc or length_error
      fail_no_memory("to_vector", host.meta(), kCpu, "there is no room for a vector of the elements");
    }
  }
  /// A dense tensor with the same value on another device. Throws layout for a distributed tensor.
  Tensor to(Device device) const;

  /// A copy of the elements that the indices select, one index for a dim: x.index({0, Slice(1, 3)}).
  /// Dims without an index are whole, and a position drops its dim. Throws out_of_range for a
  /// position outside its dim and for more positions and slices than dims, invalid_argument for a
  /// step of 0 or two ellipses.
  Tensor index(const std::vector<Index>& indices) const;
  /// index({index}): x[i] is the slice at position i of dim 0.
  Tensor operator[](const Index& index) const;

  /// True where gradients are to be computed: set for a leaf, and inherited by tensors computed
  /// from it.
  bool requires_grad() const;
  /// Sets whether this leaf requires a gradient, and returns this tensor. Throws autograd for a
  /// tensor that was computed from such leaves, and for dtypes that are not floating point.
  const Tensor& set_requires_grad(bool wanted) const;
  /// True for a tensor that no recorded op has made.
  bool is_leaf() const;
  /// The gradient that backward has accumulated in a leaf; undefined before. It has the leaf's
  /// shape and dtype, and its layout (docs/autograd.md).
  Tensor grad() const;
  /// Replaces the gradient; an undefined one clears it. Throws shape_mismatch or dtype_mismatch.
  void set_grad(const Tensor& gradient) const;
  /// The same value on the same buffer, without history.
  Tensor detach() const;
  /// Adds the gradients of this tensor, which has one element, to all leaves that it was computed
  /// from.
  void backward() const;
  /// The same starting from `gradient`, which has this tensor's shape and dtype. With
  /// `retain_graph` the recorded steps are kept for another backward.
  void backward(const Tensor& gradient, bool retain_graph = false) const;

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

/// What Tensor::to does, without recording it for autograd.
SHARD_API Tensor to_device(const Tensor& tensor, Device device);

}  // namespace shard
