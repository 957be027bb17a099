#include "shard/core/writing.h"

#include <fmt/format.h>

namespace shard {

ViewChain Writing::views_of(const Storage& storage) const {
  for (size_t i = 0; i < count_; ++i) {
    if (targets_[i]->value.storage().get() == &storage) return targets_[i]->grad.views;
  }
  return {};
}

std::string CallSite::text() const { return file == nullptr ? "" : fmt::format(" at {}:{}", file, line); }

std::string ViewChain::text() const {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(count, ops.size()); ++i) text += (i == 0 ? "" : " of ") + std::string(ops[i]);
  if (count > ops.size()) text += fmt::format(" of {} more views", count - ops.size());
  return text;
}

}  // namespace shard
