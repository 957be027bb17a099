// What a program tells of itself while it is captured. Implemented by program/trace.cc; the layers below know this much of it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/attr.h"
#include "core/op_def.h"
#include "core/tensor.h"
#include "core/thread_state.h"

namespace shard {

class DistSpec;
struct ReshardPlan;

/// An output of a call that is captured.
struct RecordedOutput {
  bool present = true;
  Meta meta;                       // global
  const DistSpec* spec = nullptr;  // null for a plain tensor
  Device device;
  int shares = -1;       // the flat input whose buffer it shares
  bool written = false;  // that buffer was written
};

/// A call that is captured. It has been checked, and its outputs are known; none of its kernels has run.
struct RecordedCall {
  const OpDef& op;
  bool inplace = false;
  std::span<const DenseTensor* const> inputs = {};  // flat; null for absent ones
  std::span<const SlotRange> slots = {};
  std::vector<Attr> attrs = {};
  const DistSpec* layout = nullptr;              // that an op without tensor arguments was asked for
  std::span<const RecordedOutput> outputs = {};  // flat
  std::span<const SlotRange> output_slots = {};
  uint64_t draw = 0;  // of a random op: the offset of its key
};

/// Records what this thread does with tensors. While there is one, tensors that calls make have no bytes, and carry the number of the value
/// of the program that they are (DenseTensor::symbol).
class Recorder {
 public:
  /// `meter` outlives all tensors of the program, those that outlive the capture too.
  explicit Recorder(MemoryMeter& meter) : meter(meter) {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  virtual ~Recorder() = default;

  /// Of this thread, or null.
  static Recorder* current() { return this_thread.recorder; }

  /// A buffer with bytes has been allocated: a tensor in it is made by the function (Tensor::from_data), and is not one from outside.
  virtual void made(const Storage& storage) = 0;
  /// Makes a tensor from outside one of the program, for the time of the capture: it keeps its handle, shape and history, and has no bytes.
  virtual void adopt(TensorImpl& tensor) = 0;
  void adopt(const Tensor& tensor) {
    if (tensor.defined()) adopt(*tensor.impl());
  }
  void adopt(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) adopt(tensor);
  }
  /// The gradient that `leaf` has at this time is about to be read or replaced.
  virtual void adopt_gradient(const Tensor& leaf) = 0;
  /// Whether a tensor from outside had been computed from leaves. In the program it is where computations start, like a leaf.
  virtual bool was_computed(const TensorImpl& tensor) const = 0;

  /// The numbers of the outputs, flat; 0 for absent ones.
  virtual std::vector<uint32_t> call(const RecordedCall& call) = 0;
  /// This rank's piece after the move, which has no bytes.
  virtual DenseTensor reshard(const ReshardPlan& plan, const DenseTensor& piece, std::string_view op,
                              std::string_view argument) = 0;
  /// `from`, of the same shape and layout, is written over `to`.
  virtual void copy(DenseTensor& to, const DenseTensor& from) = 0;
  /// A plain tensor is distributed, one that is distributed made whole, or a tensor copied, to another device maybe: the number of the result.
  enum class Conversion : uint8_t { distribute, full_tensor, clone };
  virtual uint32_t convert(Conversion conversion, const DenseTensor& from, const RecordedOutput& to,
                           int source_rank) = 0;
  /// Throws for what a program cannot hold; `what` is a sentence.
  [[noreturn]] virtual void refuse(std::string_view op, std::string_view what) = 0;

  /// Counts the tensors of the program.
  MemoryMeter& meter;
};

/// Throws no_data for a tensor that a captured function has put away: no run computes it. `op`: what needs its value.
[[noreturn]] void fail_escaped(std::string_view op, std::string_view tensor);

}  // namespace shard
