#include "shard/core/small_blocks.h"

#include <cstdlib>
#include <new>

#include "shard/core/thread_state.h"

namespace shard {
namespace {

#ifdef SHARD_SANITIZED  // see CMakeLists.txt
constexpr bool kKeep = false;
#else
constexpr bool kKeep = true;
#endif

SmallBlocks::List* list_of(size_t bytes) {
  const size_t number = (bytes - 1) / SmallBlocks::kStep;  // of no bytes: past the end
  return kKeep && number < this_thread.blocks.lists.size() ? &this_thread.blocks.lists[number] : nullptr;
}

/// Gives the blocks of a thread back when it ends. What is freed later, by other objects of the thread, is not kept.
struct Closing {
  ~Closing() {
    for (SmallBlocks::List& list : this_thread.blocks.lists) {
      list.limit = 0;
      while (list.first != nullptr) {
        SmallBlocks::Block* const block = list.first;
        list.first = block->next;
        std::free(block);
      }
    }
  }
};

/// Frees a block that no list takes. The first one of a thread opens its lists.
[[gnu::noinline]] void give_back(void* block) {
  static thread_local bool opened = false;
  if (kKeep && !opened) {
    opened = true;
    static thread_local Closing closing;
    for (SmallBlocks::List& list : this_thread.blocks.lists) list.limit = SmallBlocks::kKept;
  }
  std::free(block);
}

}  // namespace

void* allocate_block(size_t bytes) {
  SmallBlocks::List* const list = list_of(bytes);
  if (list == nullptr) return std::malloc(bytes);
  if (list->first == nullptr)
    return std::malloc((bytes + SmallBlocks::kStep - 1) / SmallBlocks::kStep * SmallBlocks::kStep);
  SmallBlocks::Block* const block = list->first;
  list->first = block->next;
  --list->count;
  return block;
}

void free_block(void* block, size_t bytes) {
  SmallBlocks::List* const list = list_of(bytes);
  if (list == nullptr || list->count >= list->limit) return give_back(block);
  list->first = new (block) SmallBlocks::Block{list->first};
  ++list->count;
}

}  // namespace shard
