// The order between streams, by what the model has run when somebody waits.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <thread>

#include "../cuda_case.h"
#include "shard/comm/communicator.h"
#include "shard/core/cuda/cuda_call.cuh"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

TEST_CASE("a collective waits for what was issued before it began, and not for later kernels") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank& rank) {
    const DefaultDevice use(*device);
    const Tensor ones = full({100}, 1.0);
    const Tensor sums = add(ones, ones);
    Work work = rank.communicator(mesh, 0).all_reduce({"test", "sum"}, sums.impl()->value.raw(), 100, DType::float32,
                                                      ReduceType::sum, *device);
    const Tensor later = add(ones, ones);
    work.wait();

    const cuda::DeviceScope scope(device->index);
    std::vector<float> values(100);
    cuda::check(cudaMemcpyAsync(values.data(), sums.impl()->value.raw(), 400, cudaMemcpyDeviceToHost,
                                cuda::communication_stream()),
                "cudaMemcpyAsync");
    cuda::check(cudaStreamSynchronize(cuda::communication_stream()), "cudaStreamSynchronize");
    check(values == std::vector<float>(100, 4.0f), "the collective has run, with what was issued before it");
    check(cudaStreamQuery(cudaStreamPerThread) == cudaErrorNotReady, "the later kernel has not run");
    cudaGetLastError();
    check(later.to(kCpu).to_vector<float>() == std::vector<float>(100, 2.0f), "the later kernel");
    check(add(sums, ones).to(kCpu).to_vector<float>() == std::vector<float>(100, 5.0f),
          "kernels after the wait see the result");
  });
}

TEST_CASE("memory that another thread frees is kept for the work of the thread that allocated it") {
  const auto device = cuda_device();
  if (!device) return;
  const DefaultDevice use(*device);
  Tensor sum;
  {
    Tensor ones = full({100}, 1.0);
    sum = add(ones, ones);
    std::thread([dropped = std::move(ones)]() mutable { dropped = {}; }).join();
  }
  CHECK(sum.to(kCpu).to_vector<float>() == std::vector<float>(100, 2.0f));
}

TEST_CASE("scratch memory that is not there is the error of a tensor's: what was asked, held and free") {
  const auto device = cuda_device();
  if (!device) return;
  const cuda::DeviceScope scope(device->index);
  const int64_t bytes = int64_t{1} << 50;
  check_contains(error_of(
                     [&] {
                       DenseTensor::allocate(*device, {{bytes}, DType::uint8});
                     },
                     ErrorCode::device),
                 error_of([&] { const cuda::Scratch scratch(static_cast<size_t>(bytes)); }, ErrorCode::device));

  const Tensor x(copy_to(*device, random_tensor({1 << 18}, DType::float32, 1)));
  cuda::check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const size_t results = (4 + 8) << 18;
  const DenseTensor held = DenseTensor::allocate(*device, {{static_cast<int64_t>(free - results)}, DType::uint8});
  check_contains(
      error_of([&] { argsort(x, 0); }, ErrorCode::device),
      fmt::format("bytes on {} failed: out of memory (cudaErrorMemoryAllocation). Tensors of this process hold "
                  "{} bytes there, its pool 0 more, and 0 of {} are free",
                  to_string(*device), total, total));
}

TEST_CASE("a graph for new addresses is made of one that is needed no more, by an update of its parameters") {
  const auto device = cuda_device();
  if (!device) return;
  const auto inputs = [&](unsigned seed) {
    std::vector<Tensor> all;
    for (unsigned i = 0; i < 2; ++i)
      all.emplace_back(copy_to(*device, random_tensor({50, 7}, DType::float32, 2 * seed + i)));
    return all;
  };
  const auto difference = [](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{relu(subtract(add(in[0], in[1]), multiply(in[0], in[1])))};
  };
  const program::Trace trace = program::trace(difference, inputs(0));
  program::Executor executor(trace.program, {inputs(0), {}});
  std::vector<std::vector<Tensor>> held, results;
  const uint64_t updates = cuda_host::graph_updates(), made = cuda_host::graph_instantiations();
  for (unsigned run = 0; run < 8; ++run) {  // all are launched before the host waits for one
    held.push_back(inputs(run));
    results.push_back(executor.run({held.back(), {}}));
  }
  CHECK(executor.graphs().recordings == 7);  // the first run issues its kernels one by one
  CHECK(cuda_host::graph_instantiations() - made == 4);
  CHECK(cuda_host::graph_updates() - updates == 3);
  for (unsigned run = 0; run < 8; ++run)
    require_close(results[run][0].get().value, difference(held[run])[0].get().value);
}
