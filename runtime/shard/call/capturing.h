// Reports calls on plain tensors to the tracer of a program.
#pragma once

#include <tuple>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/tracer.h"

namespace shard::call {

/// Records one call. The object is created before the call runs and finished after it.
class SHARD_API Capturing {
 public:
  Capturing(Tracer& tracer, const OpDef& op, bool inplace)
      : tracer_(tracer), op_(op), inplace_(inplace), draws_(draws()) {}

  /// Adds one argument. Arguments are added in the order of the op.
  template <class T>
  void argument(const T& value) {
    if constexpr (std::is_same_v<T, Tensor>) tensor(value);
    else if constexpr (std::is_same_v<T, std::vector<Tensor>>) list(value);
    else attrs_.emplace_back(value);
  }

  /// Records the call. The arguments are the results of the op that are not targets of the call.
  void finish() { record(); }
  void finish(const Tensor& result) {
    result_slot({&result, 1});
    record();
  }
  void finish(const std::vector<Tensor>& result) {
    result_slot(result);
    record();
  }
  template <class... T>
  void finish(const std::tuple<T...>& results) {
    std::apply([&](const auto&... each) { (slot(each), ...); }, results);
    record();
  }

 private:
  struct Input {
    TensorImpl* impl;   // null for an absent argument
    DenseTensor value;  // the tensor before the call
  };
  static uint64_t draws();
  void tensor(const Tensor& tensor);
  void list(const std::vector<Tensor>& tensors);
  void slot(const Tensor& result) { result_slot({&result, 1}); }
  void slot(const std::vector<Tensor>& result) { result_slot(result); }
  void result_slot(std::span<const Tensor> results) { results_.push_back(results); }
  void record();
  TracedOutput describe(const DenseTensor& output, const AliasDef* alias, bool reinterprets) const;

  Tracer& tracer_;
  const OpDef& op_;
  bool inplace_;
  uint64_t draws_;
  std::vector<Input> inputs_;
  std::vector<SlotRange> slots_;
  std::vector<Attr> attrs_;
  std::vector<std::span<const Tensor>> results_;  // one entry for each output slot that the call returns
};

}  // namespace shard::call
