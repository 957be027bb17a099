// Tensors by name, which live across the runs of programs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace shard::program {

/// Parameters by name. A name stands for a handle: what one program writes into its buffer, others and eager calls see.
class Scope {
 public:
  /// Adds a tensor, or replaces the one of that name.
  void set(const std::string& name, const Tensor& tensor);
  /// Throws invalid_argument where there is none, with the names that there are.
  const Tensor& get(const std::string& name) const;
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// In alphabetical order.
  std::vector<std::string> names() const;
  /// The name of a handle; empty where it has none.
  std::string name_of(const Tensor& tensor) const;

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace shard::program
