// softmax, log_softmax and their gradients on the device: lines of every size class, aligned or not, and how often they read memory.
#include "cuda_case.h"
#ifdef CUDA_HOST_INSTRUMENTED
#include "access.h"
#endif

namespace softmax_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Sizes of rows that a warp, 256 threads or 1024 threads keep in registers, and of longer ones; of each, one that 16-byte
/// accesses divide and one that they do not.
const std::vector<int64_t> kSizes = {1, 3, 64, 520, 1023, 4096, 5001, 8200, 16384, 20001, 33000, 70000, 70001};

void compare_along(Device device, const DenseTensor& x, const DenseTensor& y, int axis) {
  for (const char* op : {"softmax", "log_softmax"}) Kernel<int>{op}.compare(device, {x}, x.meta(), axis);
  for (const char* op : {"softmax_grad", "log_softmax_grad"}) Kernel<int>{op}.compare(device, {x, y}, x.meta(), axis);
}

}  // namespace

TEST_CASE("softmax and its gradients take rows of every size on the device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t size : kSizes) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
      const Dims dims{size > 1000 ? 2 : 9, size};
      compare_along(*device, random_tensor(dims, dtype, 1), random_tensor(dims, dtype, 2), 1);
    }
  }
}

TEST_CASE("softmax and its gradients take columns, many rows, and views that start at odd addresses, on the device") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Dims& dims : {Dims{5, 7, 300}, Dims{2, 130, 3}, Dims{70, 9, 1}})
    compare_along(*device, random_tensor(dims, DType::float32, 1), random_tensor(dims, DType::float32, 2), 1);
  const Dims many{3001, 40};
  compare_along(*device, random_tensor(many, DType::float32, 3), random_tensor(many, DType::float32, 4), -1);
  const DenseTensor buffer = random_tensor({4096}, DType::float16, 5), moved = copy_to(*device, buffer);
  const Meta meta{{3, 512}, DType::float16};
  for (const size_t offset : {2u, 8u, 16u}) {
    const DenseTensor x(buffer.storage(), meta, offset), there(moved.storage(), meta, offset);
    require_close(Kernel<int>{"softmax"}.run(*device, {there}, meta, 1),
                  Kernel<int>{"softmax"}.run(kCpu, {x}, meta, 1));
  }
}

#ifdef CUDA_HOST_INSTRUMENTED
TEST_CASE("softmax and its gradients read and write each byte of a row that fits registers once") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t size : {640, 1000, 4096, 16000}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const Dims dims{8, size};
      const DenseTensor x = copy_to(*device, random_tensor(dims, dtype, 1));
      for (const char* op : {"softmax", "log_softmax", "softmax_grad", "log_softmax_grad"}) {
        INFO(op << " of " << to_string(x.meta()));
        const bool is_gradient = std::string(op).find("grad") != std::string::npos;
        cuda_host::begin_log();
        if (is_gradient) Kernel<int>{op}.run(*device, {x, x}, x.meta(), 1);
        else Kernel<int>{op}.run(*device, {x}, x.meta(), 1);
        backend_of(*device).synchronize(device->index);
        const std::vector<cuda_host::GridLog> logs = cuda_host::end_log();
        REQUIRE(logs.size() == 1);
        const double bytes = static_cast<double>(x.meta().bytes());
        CHECK(static_cast<double>(logs[0].bytes_read) <= 1.05 * bytes * (is_gradient ? 2 : 1));
        CHECK(static_cast<double>(logs[0].bytes_written) <= 1.05 * bytes);
        CHECK(logs[0].bytes_written >= x.meta().bytes());
        CHECK(static_cast<double>(logs[0].sectors) <= 1.05 * static_cast<double>(logs[0].least_sectors));
      }
    }
  }
}
#endif

}  // namespace softmax_test
