// The interface through which lower layers report calls to a capture. Implemented by
// program/capture/program_tracer.h.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "shard/core/attr.h"
#include "shard/core/export.h"
#include "shard/core/op_def.h"
#include "shard/core/tensor.h"
#include "shard/core/thread_state.h"

namespace shard {

class DistSpec;
struct ReshardPlan;

/// An output of a captured call.
struct TracedOutput {
  bool present = true;
  Meta meta;                       // global
  const DistSpec* spec = nullptr;  // null for a plain tensor
  Device device;
  int shares = -1;       // the flat input whose buffer it shares; -1: none
  bool written = false;  // that buffer was written
};

/// A captured call. It has been checked, and its outputs are known; none of its kernels has run.
struct TracedCall {
  const OpDef& op;
  bool inplace = false;
  std::span<const DenseTensor* const> inputs = {};  // flat; null for absent ones
  std::span<const SlotRange> slots = {};
  std::vector<Attr> attrs = {};
  const DistSpec* layout = nullptr;            // the requested layout of an op without tensor arguments
  std::span<const TracedOutput> outputs = {};  // flat
  std::span<const SlotRange> output_slots = {};
  uint64_t draw = 0;  // of a random op: the offset of its key
};

/// Records what this thread does with tensors. While a tracer is active, calls make storage-less
/// tensors that carry the number of their value in the program (DenseTensor::symbol).
class SHARD_API Tracer {
 public:
  /// `meter` must outlive all tensors of the program, including those that outlive the capture.
  explicit Tracer(MemoryMeter& meter) : meter(meter) {}
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  virtual ~Tracer() = default;

  /// The tracer of this thread, or null.
  static Tracer* current() { return this_thread.tracer; }

  /// A buffer with bytes has been allocated. A tensor in it is made by the function
  /// (Tensor::from_data) and does not come from outside.
  virtual void made(const Storage& storage) = 0;
  /// Makes a tensor from outside a value of the program, for the time of the capture. It keeps its
  /// handle, shape and history, and becomes storage-less.
  virtual void adopt(TensorImpl& tensor) = 0;
  void adopt(const Tensor& tensor) {
    if (tensor.defined()) adopt(*tensor.impl());
  }
  void adopt(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) adopt(tensor);
  }
  /// Called before the present gradient of `leaf` is read or replaced.
  virtual void adopt_gradient(const Tensor& leaf) = 0;
  /// Whether a tensor from outside was computed from leaves. In the program computations start at
  /// it, as at a leaf.
  virtual bool was_computed(const TensorImpl& tensor) const = 0;

  /// Returns the numbers of the outputs, flat; 0 for absent ones.
  virtual std::vector<uint32_t> call(const TracedCall& call) = 0;
  /// Returns this rank's local shard after the reshard, which is storage-less.
  virtual DenseTensor reshard(const ReshardPlan& plan, const DenseTensor& shard, std::string_view op,
                              std::string_view argument) = 0;
  /// Writes `from`, which has the same shape and layout, over `to`.
  virtual void copy(DenseTensor& to, const DenseTensor& from) = 0;
  /// Distributes a plain tensor, gathers a distributed one (full_tensor), or copies a tensor, possibly
  /// to another device. Returns the number of the result.
  enum class Conversion : uint8_t { distribute, full_tensor, clone };
  virtual uint32_t convert(Conversion conversion, const DenseTensor& from, const TracedOutput& to, int source_rank) = 0;
  /// Throws for what a program cannot contain; `what` is a sentence.
  [[noreturn]] virtual void refuse(std::string_view op, std::string_view what) = 0;

  /// Counts the tensors of the program.
  MemoryMeter& meter;
};

/// Throws no_data for a tensor that a captured function has stored outside: no run computes it.
/// `op`: what needs its value.
[[noreturn]] SHARD_API void fail_escaped(std::string_view op, std::string_view tensor);

}  // namespace shard
