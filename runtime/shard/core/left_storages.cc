#include "shard/core/left_storages.h"

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "shard/core/storage.h"
#include "shard/core/thread_state.h"

namespace shard {
namespace {

struct Table {
  std::mutex mutex;
  std::map<const Rank*, std::vector<Storage*>> left;  // of ranks that run
  std::atomic<int> count{0};                          // of all of them
};
Table& table() {
  static auto* const instance = new Table();  // tensors may be destroyed at exit
  return *instance;
}

}  // namespace

LeftStorages::LeftStorages(const Rank* rank) : rank_(rank) {
  const std::lock_guard lock(table().mutex);
  table().left[rank];
}

LeftStorages::~LeftStorages() {
  std::vector<Storage*> storages;
  {
    const std::lock_guard lock(table().mutex);
    storages.swap(table().left[rank_]);
    table().left.erase(rank_);
    table().count -= static_cast<int>(storages.size());
  }
  for (Storage* const each : storages) Storage::destroy(each);
}

bool leave_storage(const Rank* rank, Storage* storage) {
  if (rank == nullptr || rank == this_thread.rank) return false;
  const std::lock_guard lock(table().mutex);
  const auto found = table().left.find(rank);
  if (found == table().left.end()) return false;
  found->second.push_back(storage);
  ++table().count;
  return true;
}

void free_left_storages() {
  if (table().count == 0) return;
  std::vector<Storage*> storages;
  {
    const std::lock_guard lock(table().mutex);
    const auto found = table().left.find(this_thread.rank);
    if (found == table().left.end()) return;
    storages.swap(found->second);
    table().count -= static_cast<int>(storages.size());
  }
  for (Storage* const each : storages) Storage::destroy(each);
}

}  // namespace shard
