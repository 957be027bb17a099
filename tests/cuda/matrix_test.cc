// matmul on the device at addresses that its fast paths do not support, against the CPU.
#include "cuda_case.h"

using namespace shard;
using namespace shard::test;

TEST_CASE("matmul on the device takes views that start at odd addresses") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor buffer = random_tensor({2048}, DType::bfloat16, 14);
  const DenseTensor moved = copy_to(*device, buffer);
  const Meta meta{{16, 24}, DType::bfloat16};
  const Meta out{{16, 16}, DType::bfloat16};
  for (size_t offset : {2u, 6u, 16u}) {
    const DenseTensor x(buffer.storage(), meta, offset);
    const DenseTensor there(moved.storage(), meta, offset);
    const Kernel<bool, bool> matmul{"matmul"};
    require_close(matmul.run(*device, {there, there}, out, false, true), matmul.run(kCpu, {x, x}, out, false, true));
  }
}
