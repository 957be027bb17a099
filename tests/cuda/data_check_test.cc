// Indices that are out of range, on the device: the error is that of the CPU, comes at the next synchronisation, and nothing
// outside of the tensors is read or written.
#include <cstdlib>
#include <thread>

#include "cuda_case.h"
#include "shard/core/op_context.h"

namespace data_check_test {

using namespace shard;
using namespace shard::test;

namespace {

/// A gather whose result is `out`, from rows of `x`.
DenseTensor gather(Device device, const DenseTensor& x, const std::vector<int64_t>& rows) {
  const DenseTensor index = DenseTensor::allocate(kCpu, {{static_cast<int64_t>(rows.size())}, DType::int64});
  std::copy(rows.begin(), rows.end(), index.data<int64_t>());
  Dims dims = x.dims();
  dims[0] = index.numel();
  return Kernel<const Scalar&>{"gather"}.run(device, {copy_to(device, x), copy_to(device, index)}, {dims, x.dtype()},
                                             Scalar(0));
}

template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::out_of_range);
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("an index out of range is the error of the CPU, at the next copy to the host") {
  const auto device = cuda_device();
  if (!device) return;
  for (const int64_t width : {1, 3, 64}) {
    const DenseTensor x = random_tensor({5, width}, DType::float32, 1);
    const std::vector<int64_t> rows = {0, 4, -5, 5, 2, -6, int64_t{1} << 62};
    const std::string expected = error_of([&] { gather(kCpu, x, rows); });
    REQUIRE(expected == "[gather] index is 5 at element 3, but must be from -5 to 4 (index is i64[7])");
    const DenseTensor out = gather(*device, x, rows);
    bool is_check = true;
    try {
      copy_to(kCpu, out);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.what() == expected);
      is_check = dynamic_cast<const CheckError*>(&error) != nullptr;
    }
    CHECK(!is_check);                              // results were written
    const DenseTensor zeros = copy_to(kCpu, out);  // it is reported once
    for (int64_t c = 0; c < width; ++c) {
      CHECK(zeros.data<float>()[3 * width + c] == 0.0f);
      CHECK(zeros.data<float>()[width + c] == x.data<float>()[4 * width + c]);
    }
  }
}

TEST_CASE("of many wrong indices in several launches, the first of the first launch is reported") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({5, 2}, DType::float32, 1);
  std::vector<int64_t> rows(5000, 1);
  for (size_t i = 1234; i < rows.size(); ++i) rows[i] = 100 + static_cast<int64_t>(i);
  const DenseTensor columns = copy_to(*device, x);
  const auto issue = [&](const DenseTensor& index) {
    return Kernel<const Scalar&>{"gather"}.run(*device, {columns, index}, {{index.numel(), 2}, x.dtype()}, Scalar(0));
  };
  const DenseTensor many = DenseTensor::allocate(kCpu, {{5000}, DType::int64});
  std::copy(rows.begin(), rows.end(), many.data<int64_t>());
  const DenseTensor one = DenseTensor::allocate(kCpu, {{1}, DType::int64});
  one.data<int64_t>()[0] = 77;
  // copies to the device wait, so that both come before the launches
  const DenseTensor first_index = copy_to(*device, many), second_index = copy_to(*device, one);
  const DenseTensor first = issue(first_index), second = issue(second_index);
  CHECK(error_of([&] { backend_of(*device).synchronize(device->index); }) ==
        "[gather] index is 1334 at element 1234, but must be from -5 to 4 (index is i64[5000])");
}

TEST_CASE(
    "copies to the device, which wait for earlier copies alone, leave an index out of range to a wait for everything") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({5, 2}, DType::float32, 1);
  const DenseTensor out = gather(*device, x, {5});
  for (int copy = 0; copy < 10; ++copy) copy_to(*device, x);  // more than there are buffers for copies
  CHECK(error_of([&] { copy_to(kCpu, out); }) ==
        "[gather] index is 5 at element 0, but must be from -5 to 4 (index is i64[1])");
  CHECK(error_of([&] { copy_to(kCpu, out); }) == "none");
}

TEST_CASE("with SHARD_CUDA_SYNC_CHECKS, the call itself throws") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({5, 2}, DType::float32, 1);
  setenv("SHARD_CUDA_SYNC_CHECKS", "1", 1);
  const std::string error = error_of([&] { gather(*device, x, {0, 9}); });
  unsetenv("SHARD_CUDA_SYNC_CHECKS");
  CHECK(error == "[gather] index is 9 at element 1, but must be from -5 to 4 (index is i64[2])");
  require_close(gather(*device, x, {0, -1, 4}), gather(kCpu, x, {0, -1, 4}));
}

TEST_CASE("an error that a thread did not look for is not another thread's") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({5, 2}, DType::float32, 1);
  std::thread([&] { gather(*device, x, {0, 9}); }).join();
  std::string error = "not run";
  std::thread([&] {
    error = error_of([&] { require_close(copy_to(kCpu, gather(*device, x, {0, -1})), gather(kCpu, x, {0, -1})); });
  }).join();
  CHECK(error == "none");
}

}  // namespace data_check_test
