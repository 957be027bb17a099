// The table of ops that programs call by name.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "shard/call/op_entry.h"
#include "shard/core/export.h"

namespace shard {

/// The ops that programs may contain, by name. It has the ops of the library from the start.
class SHARD_API OpTable {
 public:
  /// The one table of this process.
  static OpTable& instance();
  /// Adds an op, or replaces the one with that name. Thread-safe. Pointers from find() stay valid.
  void add(OpEntry entry);
  /// Null if there is none.
  const OpEntry* find(std::string_view name) const;
  /// In alphabetical order.
  std::vector<std::string> all_names() const;

 private:
  OpTable();

  mutable std::mutex mutex_;
  std::deque<OpEntry> entries_;  // also replaced ones, because pointers to them may exist
  std::map<std::string_view, const OpEntry*> by_name_;
};

}  // namespace shard
