#include "conformance/device_waits.h"

#include <fmt/format.h>

#include "shard/ops/indexing.h"
#include "shard/testing/tensors.h"
#ifdef CUDA_HOST_INSTRUMENTED
#include "cuda_runtime_api.h"
#include "cudnn.h"
#endif

namespace shard::testing {
namespace {

#ifdef CUDA_HOST_INSTRUMENTED
constexpr bool kCounts = true;
#else
constexpr bool kCounts = false;
#endif

/// The ops that wait, and for what: the sizes of their results, or of what they write, depend on it.
const std::map<std::string, std::string>& waiting_ops() {
  static const std::map<std::string, std::string> ops = {
      {"bincount", "the largest number"},
      {"index_put", "the number of elements that a mask selects"},
      {"index_put_", "the number of elements that a mask selects"},
      {"masked_select", "the number of elements that the mask selects"},
      {"nms", "the number of boxes that are kept"},
      {"nonzero", "the number of elements that are not 0"},
      {"segment_pool", "the last segment"},
      {"unique", "the number of values"},
      {"unique_consecutive", "the number of values"},
      {"unique_consecutive_rows", "the number of rows"},
  };
  return ops;
}

}  // namespace

DeviceWaits::DeviceWaits(Device device) {
  // The first check of data in a thread allocates pinned memory.
  index_select(Tensor(copy_to(device, random_tensor({4}, DType::float32, 1))),
               Tensor(copy_to(device, random_tensor({1}, DType::int64, 1))));
}

uint64_t DeviceWaits::so_far() {
#ifdef CUDA_HOST_INSTRUMENTED
  return cuda_host::synchronisations();
#else
  return 0;
#endif
}

uint64_t calls_of_cudnn() {
#ifdef CUDA_HOST_INSTRUMENTED
  return cuda_host::convolutions() + cuda_host::poolings() + cuda_host::recurrent_passes();
#else
  return 0;
#endif
}

std::string DeviceWaits::wrong(bool of_all) const {
  if (!kCounts) return "";
  std::string text;
  for (const auto& [op, count] : of_op_) {
    const bool may_wait = waiting_ops().contains(op);
    if (count > 0 && !may_wait) text += fmt::format("{} waits for the device\n", op);
    if (count == 0 && may_wait) text += fmt::format("{} is in waiting_ops() and does not wait\n", op);
  }
  for (const auto& [op, reason] : waiting_ops()) {
    if (of_all && !of_op_.contains(op)) text += fmt::format("{} is in waiting_ops(), and no case calls it\n", op);
  }
  return text;
}

}  // namespace shard::testing
