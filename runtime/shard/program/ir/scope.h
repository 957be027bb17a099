// Named tensors that live across the runs of programs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/tensor.h"

namespace shard::program {

/// Parameters by name. A name refers to a handle: what one program writes into its buffer is
/// visible to other programs and to eager calls.
class SHARD_API Scope {
 public:
  /// Adds a tensor, or replaces the one of that name.
  void set(const std::string& name, const Tensor& tensor);
  /// Throws invalid_argument, with the existing names, if there is no such tensor.
  const Tensor& get(const std::string& name) const;
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// In alphabetical order.
  std::vector<std::string> names() const;
  /// The name of a handle; empty if it has none.
  std::string name_of(const Tensor& tensor) const;

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace shard::program
