// The table of ops that programs call through, by name.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "call/op_entry.h"

namespace shard {

/// The ops that programs may have, by name. The ops of the library are in it from the start.
class OpTable {
 public:
  /// The one table of this process.
  static OpTable& instance();
  /// Adds an op, or replaces the one of that name. Thread safe; entries that were found stay valid.
  void add(OpEntry entry);
  /// Null where there is none.
  const OpEntry* find(std::string_view name) const;
  /// In alphabetical order.
  std::vector<std::string> all_names() const;

 private:
  OpTable();

  mutable std::mutex mutex_;
  std::deque<OpEntry> entries_;  // also those that were replaced, because somebody may have found them
  std::map<std::string_view, const OpEntry*> by_name_;
};

}  // namespace shard
