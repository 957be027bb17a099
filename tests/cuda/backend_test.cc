// The CUDA backend: its status, copies, views, errors. Kernels are tested in the file of their kind.
#include <thread>

#include "cuda_case.h"

using namespace shard;
using namespace shard::test;

TEST_CASE("the status says whether there is a CUDA device, and why not") {
  const std::string status = cuda_status();
  const bool registered = cuda_device().has_value();
  CHECK((status.rfind("ready: ", 0) == 0) == registered);
  CHECK(!status.empty());
}

TEST_CASE("registering the CUDA backend again changes nothing") {
  kernel_table("add");
  const int before = find_backend("cuda");
  register_cuda_backend();
  CHECK(find_backend("cuda") == before);
}

TEST_CASE("bytes survive the way to the device and back") {
  const auto device = cuda_device();
  if (!device) return;
  for (DType dtype : kAll) {
    const DenseTensor host = random_tensor({3, 5, 7}, dtype, 1);
    const DenseTensor there = on(*device, host);
    CHECK(there.device() == *device);
    require_close(there, host);
    require_close(clone(there), host);
  }
}

TEST_CASE("a tensor without elements needs no device memory") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor empty = random_tensor({0, 4}, DType::float32, 1);
  require_close(on(*device, empty), empty);
}

TEST_CASE("a view that starts inside a buffer reads and writes there") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor host = random_tensor({9}, DType::float32, 2);
  const DenseTensor whole = on(*device, host);
  const Meta tail{{5}, DType::float32};
  const DenseTensor x(whole.storage(), tail, 4);
  const DenseTensor expected(host.storage(), tail, 4);
  Kernel<>{"relu"}.compare(*device, {expected}, tail);
  const OpContext ctx{"relu_"};
  DenseTensor out = x;
  kernel_table("relu").find<void(const OpContext&, const DenseTensor&, DenseTensor&)>(ctx, *device, x.dtype())(ctx, x, out);
  require_close(x, Kernel<>{"relu"}.run(kCpu, {expected}, tail));
}

TEST_CASE("threads use a device side by side") {
  const auto device = cuda_device();
  if (!device) return;
  std::vector<DenseTensor> results(4);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const DenseTensor x = on(*device, random_tensor({1000}, DType::float32, t));
      results[t] = on(kCpu, Kernel<>{"add"}.run(*device, {x, x}, x.meta()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned t = 0; t < 4; ++t) {
    const DenseTensor x = random_tensor({1000}, DType::float32, t);
    require_close(results[t], Kernel<>{"add"}.run(kCpu, {x, x}, x.meta()));
  }
}

TEST_CASE("a failed allocation is an Error of code device that names the call") {
  const auto device = cuda_device();
  if (!device) return;
  try {
    DenseTensor::allocate(*device, {{int64_t{1} << 50}, DType::uint8});
    FAIL("2^50 bytes were allocated");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    CHECK(std::string(error.what()).find("cudaMallocAsync") != std::string::npos);
  }
  const DenseTensor x = random_tensor({8}, DType::float32, 3);
  Kernel<>{"add"}.compare(*device, {x, x}, x.meta());  // the error does not stick
}
