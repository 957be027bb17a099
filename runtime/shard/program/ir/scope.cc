#include "shard/program/ir/scope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shard/core/error.h"

namespace shard::program {

void Scope::set(const std::string& name, const Tensor& tensor) {
  if (name.empty())
    fail(ErrorCode::invalid_argument, "[Scope::set] a tensor of a scope needs a name; pass one that is not empty");
  if (!tensor.defined()) fail(ErrorCode::undefined, "[Scope::set] '{}' is an undefined tensor; pass a value", name);
  tensors_[name] = tensor;
}

const Tensor& Scope::get(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(ErrorCode::invalid_argument, "[Scope::get] there is no tensor '{}' in this scope; set it first. There are: {}",
         name, tensors_.empty() ? "none" : fmt::format("{}", fmt::join(names(), ", ")));
  }
  return found->second;
}

std::vector<std::string> Scope::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::string Scope::name_of(const Tensor& tensor) const {
  for (const auto& [name, each] : tensors_) {
    if (each.impl() == tensor.impl()) return name;
  }
  return {};
}

}  // namespace shard::program
