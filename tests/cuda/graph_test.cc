// Captured functions on the device, whose work is issued as graphs from the second run on, against eager calls.
#include "cuda_case.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"

namespace graph_test {

using namespace shard;
using namespace shard::test;

namespace {

using Tensors = std::vector<Tensor>;

/// With kernels of all kinds: those that take scratch memory (matmul, sums), write in place, or copy.
Tensors several_ops(const Tensors& in) {
  const Tensor hidden = relu(add(matmul(in[0], in[1]), in[2]));
  Tensor weights = softmax(matmul(hidden, hidden, false, true), 1);
  multiply_(weights, weights);
  const Tensor mixed = matmul(weights, transpose(hidden, {1, 0}), false, true);
  return {mixed, sum(mixed, {0}), sum(cast(mixed, DType::float64))};
}

Tensors inputs(Device device, unsigned seed) {
  const std::vector<Dims> shapes = {{300, 64}, {64, 48}, {48}};
  Tensors all;
  for (const Dims& dims : shapes) all.emplace_back(copy_to(device, random_tensor(dims, DType::float32, seed++)));
  return all;
}

/// Up to rounding: the algorithm that matmul selects depends on addresses.
void require_close(const Tensors& actual, const Tensors& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) test::require_close(actual[i].get().value, expected[i].get().value);
}

}  // namespace

TEST_CASE("a captured function gives on the device what eager calls give, run for run", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  CapturedFunction captured(several_ops, {});
  const Tensors fixed = inputs(*device, 1);
  Tensors held;
  for (unsigned run = 0; run < 6; ++run) {  // at the same addresses, with other values
    copy_into(fixed[0].get().value, random_tensor({300, 64}, DType::float32, 50 + run));
    require_close(captured(fixed), several_ops(fixed));
  }
  for (unsigned run = 0; run < 20; ++run) {  // at other addresses, as outputs and inputs are held
    const Tensors in = inputs(*device, 100 + run);
    const Tensors out = captured(in);
    require_close(out, several_ops(in));
    held.insert(held.end(), in.begin(), in.end());
    held.insert(held.end(), out.begin(), out.end());
  }
}

TEST_CASE("a program on the device is recorded once, and launched from then on") {
  const auto device = cuda_device();
  if (!device) return;
  const Tensors in = inputs(*device, 1);
  const program::Trace trace = program::trace(several_ops, in);
  program::Executor executor(trace.program, {in, {}});
  for (int run = 0; run < 5; ++run) require_close(executor.run({in, {}}), several_ops(in));
  const program::GraphReport report = executor.graphs();
  CHECK(report.sequences == 1);
  CHECK(report.recordings == 1);
  CHECK(report.launches == 4);
}

}  // namespace graph_test
