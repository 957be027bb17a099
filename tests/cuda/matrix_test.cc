// transpose and matmul on the device against the CPU.
#include "cuda_case.h"

using namespace shard;
using namespace shard::test;

namespace {

Dims permuted(const Dims& dims, const IntArray& perm) {
  Dims out;
  for (int64_t entry : perm) out.push_back(dims[static_cast<int>(entry < 0 ? entry + dims.rank() : entry)]);
  return out;
}

struct Product {
  Dims x, y, out;
  bool transpose_x = false, transpose_y = false;
};

const std::vector<Product> kProducts = {
    {{5, 7}, {7, 3}, {5, 3}},
    {{64, 96}, {96, 128}, {64, 128}},
    {{7, 5}, {7, 3}, {5, 3}, true, false},
    {{5, 7}, {3, 7}, {5, 3}, false, true},
    {{7, 5}, {3, 7}, {5, 3}, true, true},
    {{7}, {7}, {}},
    {{7}, {7, 3}, {3}},
    {{5, 7}, {7}, {5}},
    {{4, 5, 7}, {7}, {4, 5}},
    {{7}, {4, 7, 3}, {4, 3}},
    {{4, 5, 7}, {7, 3}, {4, 5, 3}},
    {{4, 7, 5}, {7, 3}, {4, 5, 3}, true, false},
    {{4, 5, 7}, {4, 7, 3}, {4, 5, 3}},
    {{5, 7}, {4, 7, 3}, {4, 5, 3}},
    {{2, 1, 5, 7}, {3, 7, 4}, {2, 3, 5, 4}},
    {{2, 1, 6, 5, 7}, {1, 3, 6, 4, 7}, {2, 3, 6, 5, 4}, false, true},
    {{1, 3, 5, 7}, {2, 3, 7, 4}, {2, 3, 5, 4}},
    {{5, 0}, {0, 3}, {5, 3}},
    {{0, 7}, {7, 3}, {0, 3}},
};

}  // namespace

TEST_CASE("transpose on the device equals the CPU for every dtype and order") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<std::pair<Dims, IntArray>> cases = {
      {{}, {}},
      {{9}, {0}},
      {{33, 65}, {1, 0}},
      {{33, 65}, {0, 1}},
      {{3, 40, 70}, {0, 2, 1}},
      {{3, 40, 70}, {-2, -1, 0}},
      {{4, 5, 6, 7}, {0, 2, 1, 3}},
      {{4, 5, 6, 7}, {3, 2, 1, 0}},
      {{2, 3, 1, 4, 5}, {2, 0, 1, 4, 3}},
      {{3, 0, 2}, {2, 1, 0}},
  };
  for (DType dtype : kAll) {
    for (const auto& [dims, perm] : cases) {
      Kernel<const IntArray&>{"transpose"}.compare(*device, {random_tensor(dims, dtype, 11)}, {permuted(dims, perm), dtype},
                                                   perm);
    }
  }
}

TEST_CASE("matmul on the device equals the CPU, with batches, flags and vectors") {
  const auto device = cuda_device();
  if (!device) return;
  for (DType dtype : kFloats) {
    for (const Product& p : kProducts) {
      INFO(to_string(p.x) << " times " << to_string(p.y));
      const DenseTensor x = random_tensor(p.x, dtype, 12);
      const DenseTensor y = random_tensor(p.y, dtype, 13);
      Kernel<bool, bool>{"matmul"}.compare(*device, {x, y}, {p.out, dtype}, p.transpose_x, p.transpose_y);
    }
  }
}

TEST_CASE("matmul on the device takes views that start at odd addresses") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor buffer = random_tensor({2048}, DType::bfloat16, 14);
  const DenseTensor moved = on(*device, buffer);
  const Meta meta{{16, 24}, DType::bfloat16};
  const Meta out{{16, 16}, DType::bfloat16};
  for (size_t offset : {2u, 6u, 16u}) {
    const DenseTensor x(buffer.storage(), meta, offset);
    const DenseTensor there(moved.storage(), meta, offset);
    const Kernel<bool, bool> matmul{"matmul"};
    require_close(matmul.run(*device, {there, there}, out, false, true), matmul.run(kCpu, {x, x}, out, false, true));
  }
}
