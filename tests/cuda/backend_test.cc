// The CUDA backend: the conformance tests, its status, threads and errors. Special cases of a kernel are tested in
// the file of its kind.
#include <fmt/format.h>

#include <thread>

#include "cuda_case.h"
#include "shard/kernels/cuda/rnn_cudnn.h"
#include "shard/testing/backend_conformance.h"

namespace backend_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("the status says whether there is a CUDA device, and why not") {
  const std::string status = cuda_status();
  const bool registered = cuda_device().has_value();
  CHECK((status.rfind("ready: ", 0) == 0) == registered);
  CHECK(!status.empty());
}

TEST_CASE("the CUDA backend passes the conformance tests", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const std::string& finding :
       testing::check_backend(*device, [](const std::string& reason) { WARN("skipped: " << reason); })) {
    FAIL_CHECK(finding);
  }
}

TEST_CASE("where cuDNN is not there, a line says what is tested without it") {
  const auto device = cuda_device();
  if (!device) return;
  if (!cuda::has_cudnn_rnn(meta::RnnMode::lstm, false))
    WARN(
        "skipped: cuDNN, which was not found at build time or now; convolutions, pooling and recurrent networks are "
        "tested without it");
}

TEST_CASE("threads use a device side by side") {
  const auto device = cuda_device();
  if (!device) return;
  std::vector<DenseTensor> results(4);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const DenseTensor x = copy_to(*device, random_tensor({1000}, DType::float32, t));
      results[t] = copy_to(kCpu, Kernel<>{"add"}.run(*device, {x, x}, x.meta()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned t = 0; t < 4; ++t) {
    const DenseTensor x = random_tensor({1000}, DType::float32, t);
    require_close(results[t], Kernel<>{"add"}.run(kCpu, {x, x}, x.meta()));
  }
}

TEST_CASE("a failed allocation is an Error of code device that says what was asked, held and free") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor held = DenseTensor::allocate(*device, {{1000}, DType::float32});
  try {
    DenseTensor::allocate(*device, {{int64_t{1} << 50}, DType::uint8});
    FAIL("2^50 bytes were allocated");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    const std::string text = error.what();
    CHECK(text.find(fmt::format("cudaMallocAsync of {} bytes on {} failed", int64_t{1} << 50, to_string(*device))) !=
          std::string::npos);
    CHECK(text.find("Tensors of this process hold 0 bytes") == std::string::npos);
    CHECK(text.find("are free") != std::string::npos);
  }
  const DenseTensor x = random_tensor({8}, DType::float32, 3);
  Kernel<>{"add"}.compare(*device, {x, x}, x.meta());  // the error is not reported again
}

}  // namespace backend_test
