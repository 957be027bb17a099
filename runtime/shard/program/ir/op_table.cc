#include "shard/program/ir/op_table.h"

#include "shard/ops/api.h"

namespace shard {

OpTable& OpTable::instance() {
  static OpTable table;
  return table;
}

OpTable::OpTable() { program::register_api(*this); }

void OpTable::add(OpEntry entry) {
  const std::lock_guard lock(mutex_);
  const OpEntry& kept = entries_.emplace_back(entry);
  by_name_[kept.op->name] = &kept;
}

const OpEntry* OpTable::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::vector<std::string> OpTable::all_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : by_name_) names.emplace_back(name);
  return names;
}

}  // namespace shard
