// Buffers with a collective in flight whose last reference another thread dropped, as the garbage collector of Python does: only the
// rank that started the collective can wait for it, so it frees them.
#pragma once

namespace shard {

class Rank;
class Storage;

/// While an object exists, `rank` runs on this thread and frees what others leave to it.
class LeftStorages {
 public:
  explicit LeftStorages(const Rank* rank);
  LeftStorages(const LeftStorages&) = delete;
  LeftStorages& operator=(const LeftStorages&) = delete;
  ~LeftStorages();

 private:
  const Rank* rank_;
};

/// Leaves the storage to `rank`. False where that is the rank of this thread, or does not run.
bool leave_storage(const Rank* rank, Storage* storage);
/// Frees what was left to the rank of this thread.
void free_left_storages();

}  // namespace shard
