// The building blocks of a call on plain tensors, which generated code combines. dist_call.h has
// those of distributed calls.
#pragma once

#include <initializer_list>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "shard/call/codegen_abi.h"
#include "shard/call/launch.h"
#include "shard/core/export.h"
#include "shard/core/grad_mask.h"
#include "shard/core/op_context.h"
#include "shard/core/op_def.h"
#include "shard/core/tensor.h"
#include "shard/core/thread_state.h"
#include "shard/dist/layout_arg.h"
#include "shard/dist/view_use.h"

namespace shard::call {

namespace detail {
template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};

}  // namespace detail

inline bool any_dist(const Tensor& tensor) { return tensor.is_dist(); }
inline bool any_dist(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.is_dist()) return true;
  }
  return false;
}

/// The context of a call on plain tensors by this thread. `op` must live as long as the library.
inline OpContext context(const char* op) { return {.op = op, .launcher = this_thread.launcher}; }

/// A copy of `tensor` for a kernel to read.
SHARD_API DenseTensor copy_of(const OpContext& ctx, const DenseTensor& tensor);

[[noreturn]] SHARD_API void fail_undefined(const OpContext& ctx, std::string_view name);
[[noreturn]] SHARD_API void fail_no_data(const OpContext& ctx, const DenseTensor& tensor, std::string_view name);
/// Throws no_kernel for an op whose `function` is not written yet. Scaffolded definitions call it.
[[noreturn]] SHARD_API void fail_missing(std::string_view op, std::string_view function);

/// The dense tensor of an argument that the op reads. Throws undefined, stale_view, poisoned or
/// no_data.
inline const DenseTensor& read(const OpContext& ctx, const Tensor& tensor, std::string_view name) {
  if (!tensor.defined()) fail_undefined(ctx, name);
  const DenseTensor& value = tensor.impl()->value;
  if (value.storage()->needs_checks()) [[unlikely]]
    check_read(*value.storage(), view_policy());
  if (!value.has_data() && ctx.launcher == nullptr) fail_no_data(ctx, value, name);
  return value;
}
/// The dense tensor of an argument of which the op reads only shape and dtype.
SHARD_API const DenseTensor& shape_of(const OpContext& ctx, const Tensor& tensor, std::string_view name, bool optional);
SHARD_API const DenseTensor& read_optional(const OpContext& ctx, const Tensor& tensor, std::string_view name);
SHARD_API std::vector<DenseTensor> read_list(const OpContext& ctx, const std::vector<Tensor>& tensors,
                                             std::string_view name);
/// The dense tensors of a list that the op writes in place.
using Targets = std::span<DenseTensor* const>;
SHARD_API std::vector<DenseTensor*> write_list(const OpContext& ctx, std::vector<Tensor>& tensors,
                                               std::string_view name);
/// The dense tensor of an argument that the op writes. Throws like read(), and also view_of_copy.
SHARD_API DenseTensor& write(const OpContext& ctx, Tensor& tensor, std::string_view name);
SHARD_API DenseTensor& write_optional(const OpContext& ctx, Tensor& tensor, std::string_view name);

/// The handle of a result. An absent result has an undefined handle.
inline Tensor wrap(DenseTensor&& value) { return value.defined() ? Tensor(std::move(value)) : Tensor(); }
SHARD_API std::vector<Tensor> wrap(std::vector<DenseTensor> values);

[[noreturn]] SHARD_API void fail_device(const OpContext& ctx, const DenseTensor& a, const DenseTensor& b);
inline void gather_device(const OpContext& ctx, const DenseTensor& tensor, const DenseTensor*& first) {
  if (!tensor.defined()) return;
  if (first == nullptr) first = &tensor;
  else if (!(first->device() == tensor.device())) fail_device(ctx, *first, tensor);
}
SHARD_API void gather_device(const OpContext& ctx, std::span<const DenseTensor> tensors, const DenseTensor*& first);
SHARD_API void gather_device(const OpContext& ctx, Targets tensors, const DenseTensor*& first);

/// The device that all present tensor arguments are on. Throws mixed_device.
inline Device common_device(const OpContext&, const DenseTensor& x) { return x.device(); }
inline Device common_device(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y) {
  if (!y.defined()) return x.device();
  if (!x.defined()) return y.device();
  if (!(x.device() == y.device())) fail_device(ctx, x, y);
  return x.device();
}
template <class... Args>
Device common_device(const OpContext& ctx, const Args&... args) {
  const DenseTensor* first = nullptr;
  (gather_device(ctx, args, first), ...);
  return first == nullptr ? kCpu : first->device();
}

SHARD_API std::vector<Meta> metas(std::span<const DenseTensor> tensors);
SHARD_API std::vector<Meta> metas(Targets tensors);
/// The tensors themselves, for a kernel that reads what it writes.
SHARD_API std::vector<DenseTensor> values(Targets tensors);
inline const Meta* meta_or_null(const DenseTensor& tensor) { return tensor.defined() ? &tensor.meta() : nullptr; }
/// A new tensor, storage-less in a dry world.
inline DenseTensor allocate(const OpContext& ctx, Device device, const Meta& meta) {
  return DenseTensor::allocate(device, meta, ctx.meter(), ctx.op);
}
SHARD_API std::vector<DenseTensor> allocate_list(const OpContext& ctx, Device device, std::span<const Meta> metas);

/// `x` with another shape or dtype, on the same buffer. Throws shape_mismatch if the byte size
/// would change.
SHARD_API DenseTensor reinterpret(const OpContext& ctx, const DenseTensor& x, const Meta& meta);
/// The same on the handle's own tensor. Only metadata changes, so this is not a write.
SHARD_API void reinterpret_inplace(const OpContext& ctx, DenseTensor& x, const Meta& meta);
/// `tensor` converted to another dtype by the cast kernel. Returns the tensor itself if it already
/// has the dtype or is absent.
SHARD_API DenseTensor cast_to(const OpContext& ctx, const DenseTensor& tensor, DType dtype);
SHARD_API std::vector<DenseTensor> cast_list_to(const OpContext& ctx, std::span<const DenseTensor> tensors,
                                                DType dtype);
/// The complex dtype whose real and imaginary parts have `dtype`. Always throws dtype_mismatch,
/// because there are no complex tensors yet.
SHARD_API DType complex_dtype(const OpContext& ctx, DType dtype);

/// The meta of an output whose number of rows comes from data, with the upper bound of the rows.
/// The kernel gets an undefined tensor and creates the output.
struct DynamicMeta : Meta {};
/// Throws no_data for an op with such an output in a dry world, which has no data.
[[noreturn]] SHARD_API void fail_unbounded(const OpContext& ctx, const Meta& most);

/// The key of a random op: that of the distributed call, or the next one of this thread's
/// generator.
SHARD_API RandomKey draw(const OpContext& ctx);
/// The generator of calls on plain tensors: that of the rank that this thread runs, else that of
/// the thread.
SHARD_API Generator& thread_generator();

/// One call that writes buffers of its arguments, on plain tensors or on the local shards of a
/// distributed call. It decides where each result goes, which readers are copied first, and what is
/// bumped, copied back or replaced afterwards.
class SHARD_API InplaceWrite {
 public:
  InplaceWrite(const OpContext& ctx, const OpDef& op) : ctx_(ctx), op_(op) {}

  /// The buffer for the new value of `x`: x's own buffer if the kernel may write over its input,
  /// else a new one. Throws shape_mismatch if an elementwise result would grow by broadcasting. For
  /// an absent x the result is undefined.
  DenseTensor target(DenseTensor& x, const Meta& result);
  /// The same for a list. An empty list is an absent one and has no results; otherwise there is one
  /// result for each tensor.
  std::vector<DenseTensor> targets(Targets list, std::span<const Meta> results);
  /// `x` itself as an output that the kernel writes, after it has read x. Throws shape_mismatch if
  /// the meta would change, view_of_copy or stale_view. For an absent x the result is undefined.
  DenseTensor written_view(const DenseTensor& x, const Meta& meta);
  /// An argument that is not a target, for reading while the targets are written. Returns a copy if
  /// it overlaps a target, unless there is only one target and the two are exactly equal.
  DenseTensor reader(const DenseTensor& tensor) const { return must_copy(tensor) ? copy_of(ctx_, tensor) : tensor; }
  bool must_copy(const DenseTensor& tensor) const;
  std::vector<DenseTensor> readers(std::span<const DenseTensor> tensors) const;

  /// Runs a kernel that writes the targets. Throws invalid_argument, before anything is written, if
  /// targets share elements.
  template <class... P>
  void run(const FoundKernel<void(const OpContext&, P...)>& kernel, const OpContext& ctx,
           std::type_identity_t<P>... args) {
    if (writes().size() + views_.size() > 1) check_disjoint_targets();
    try {
      call::run(kernel, ctx, args...);
      finish();
    } catch (const CheckError&) {
      throw;  // nothing was written
    } catch (...) {
      poison();
      throw;
    }
  }

 private:
  struct Write {
    DenseTensor* x = nullptr;
    DenseTensor result;
    bool over_input = false;  // the result is in x's own buffer
  };
  /// Most calls have one target. It is stored in place, so that they allocate nothing.
  std::span<Write> writes() {
    return several_.empty() ? std::span(&single_, single_.x == nullptr ? 0 : 1) : std::span(several_);
  }
  std::span<const Write> writes() const { return const_cast<InplaceWrite*>(this)->writes(); }
  Write& next_write();
  void check_disjoint_targets() const;
  void finish();
  void poison() const;

  const OpContext& ctx_;
  const OpDef& op_;
  Write single_;
  std::vector<Write> several_;
  std::vector<const DenseTensor*> views_;
  bool finishing_ = false;
};

/// Throws invalid_argument: two targets of one call share elements, so the result would depend on
/// their order.
[[noreturn]] SHARD_API void fail_written_twice(const OpContext& ctx, const std::string& what);

/// Gives the handle's tensor a new buffer. This counts as a write by `op` if `written`. Other
/// tensors on the old buffer become detached from the new one.
SHARD_API void replace_buffer(const char* op, DenseTensor& x, DenseTensor value, bool written);

}  // namespace shard::call
