// Runs the conformance tests on the counting backend, and generated ops on it.
#include <cstdio>
#include <exception>
#include <string>

#include <shard/shard.h>
#include <shard/testing.h>
#include "counting_backend.h"

using namespace shard;

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

/// The ops of the library look up the device's memory and kernels by the device of their tensors.
void run_ops(Device device) {
  const DenseTensor x = testing::random_tensor({3, 5}, DType::float32, 1),
                    y = testing::random_tensor({5}, DType::float32, 2);
  const int launches = counting::counters().launches;
  const Tensor there = relu(add(Tensor(testing::copy_to(device, x)), Tensor(testing::copy_to(device, y))));
  const Tensor here = relu(add(Tensor(x), Tensor(y)));
  expect(there.device() == device, "the result is where its arguments are");
  expect(testing::difference(there.impl()->value, here.impl()->value).empty(), "both devices have the same result");
  expect(counting::counters().launches == launches + 2, "each op is one launch");
  try {
    exp(there);
    expect(false, "an op without a kernel is refused");
  } catch (const Error& error) {
    std::printf("refused: %s\n", error.what());
    expect(error.code() == ErrorCode::no_kernel, "an op without a kernel is no_kernel");
  }
}

}  // namespace

int main() try {
  const Device device = counting::register_backend();
  const auto print_skipped = [](const std::string& reason) { std::printf("skipped: %s\n", reason.c_str()); };
  for (const std::string& finding : testing::check_backend(device, print_skipped)) {
    std::printf("failed: %s\n", finding.c_str());
    ++failures;
  }
  run_ops(device);
  const counting::Counters& counters = counting::counters();
  expect(counters.allocations == counters.frees, "all memory was given back");
  std::printf("%d allocations, %d frees, %d copies, %d launches\n", counters.allocations.load(), counters.frees.load(),
              counters.copies.load(), counters.launches.load());
  return failures == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "custom_backend: %s\n", error.what());
  return 1;
}
