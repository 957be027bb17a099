// Epilogues: what is done with a part of a kernel's result as soon as that part is complete, while it is in the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace shard::cpu {

/// Elements [begin, end) of the result, whole lines along its last dim, are complete. Each is in one call; several
/// threads call at once.
using Epilogue = std::function<void(int64_t begin, int64_t end)>;

/// Offers an epilogue to the kernel that the thread calls next.
class OfferedEpilogue {
 public:
  explicit OfferedEpilogue(const Epilogue& epilogue);
  OfferedEpilogue(const OfferedEpilogue&) = delete;
  OfferedEpilogue& operator=(const OfferedEpilogue&) = delete;
  ~OfferedEpilogue();
  /// False where the kernel takes none: the caller then does that work itself.
  bool taken() const;
};

/// For kernels: the epilogue that is offered, or null. To be called once, before work is handed to other threads.
const Epilogue* take_epilogue();

/// The kernels of this name take epilogues. A kernel that a user registers in the place of one need not.
void note_epilogue(std::string_view kernel);
bool takes_epilogue(std::string_view kernel);

}  // namespace shard::cpu
