// The order between streams, by what the model has run when somebody waits.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "../cuda_case.h"
#include "memory.h"
#include "shard/comm/communicator.h"
#include "shard/core/cuda/cuda_call.cuh"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace stream_test {

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

TEST_CASE("work on one device makes no context on another, and returns to a device that has one") {
  const auto device = cuda_device();
  if (!device) return;
  const auto work_on = [&](int index) {
    const Device own{device->backend, static_cast<uint8_t>(index)};
    const Tensor ones = full({100}, 1.0).to(own);
    CHECK(add(ones, ones).to(kCpu).to_vector<float>() == std::vector<float>(100, 2.0f));
    int current = -1;
    cuda::check(cudaGetDevice(&current), "cudaGetDevice");
    return current;
  };
  // A thread begins with device 0 as its current one.
  cuda_host::forget_contexts();
  std::thread([&] { CHECK(work_on(2) == 2); }).join();
  CHECK(cuda::has_context(2));
  for (const int other : {0, 1, 3}) CHECK(!cuda::has_context(other));
  std::thread([&] {
    cuda::check(cudaSetDevice(1), "cudaSetDevice");
    CHECK(work_on(2) == 1);
  }).join();
  CHECK(!cuda::has_context(0));
  cuda::check(cudaSetDevice(0), "cudaSetDevice");  // for other tests of this process
}

TEST_CASE("a forked process is told that it cannot use devices, and uses the host") {
  const auto device = cuda_device();
  if (!device) return;
  CHECK(full({2}, 1.0).to(*device).to(kCpu).to_vector<float>() == std::vector<float>(2, 1.0f));
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      full({2}, 1.0).to(*device);
    } catch (const Error& error) {
      code = std::string(error.what()).find("was forked by one that has used CUDA") == std::string::npos ? 2 : 0;
    }
    _exit(code);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("memory that another thread frees is kept for the work of the thread that allocated it") {
  const auto device = cuda_device();
  if (!device) return;
  const auto sum_of_dropped = [&] {
    const DefaultDevice use(*device);
    Tensor ones = full({100}, 1.0);
    const Tensor sum = add(ones, ones);
    std::thread([dropped = std::move(ones)]() mutable { dropped = {}; }).join();
    return sum.to(kCpu).to_vector<float>();
  };
  CHECK(sum_of_dropped() == std::vector<float>(100, 2.0f));
  run_ranks(2, [&](Rank&) { check(sum_of_dropped() == std::vector<float>(100, 2.0f), "the sum of a rank"); });
}

TEST_CASE("threads that are no ranks pass tensors of a device to each other as on the host") {
  const auto device = cuda_device();
  if (!device) return;
  // Of two threads, neither of which ends or waits for the device meanwhile.
  std::atomic<int> turn = 0;
  const auto pass = [&](int to) {
    turn = to;
    turn.notify_all();
  };
  const auto wait_for = [&](int mine) {
    for (int now = turn; now != mine; now = turn) turn.wait(now);
  };
  Tensor sum;
  std::vector<float> seen;
  std::thread other([&] {
    const DefaultDevice use(*device);
    const Tensor ones = full({100}, 1.0);
    sum = add(ones, ones);
    pass(1);
    wait_for(2);
    seen = add(sum, ones).to(kCpu).to_vector<float>();
  });
  wait_for(1);
  {
    const DefaultDevice use(*device);
    add_(sum, full({100}, 5.0));
  }
  pass(2);
  other.join();
  CHECK(seen == std::vector<float>(100, 8.0f));
}

TEST_CASE("a thread goes on while another one records a graph, of which its work is no part") {
  const auto device = cuda_device();
  if (!device) return;
  const DefaultDevice use(*device);
  Tensor ones = full({100}, 1.0);
  const DenseTensor& value = ones.get().value;
  DenseTensor sum = DenseTensor::allocate(*device, value.meta());
  const Backend& backend = backend_of(*device);
  backend.graph_begin(device->index);
  kernel_table("add")
      .find<void(const OpContext&, const DenseTensor&, const DenseTensor&, DenseTensor&)>(OpContext{"add"}, *device,
                                                                                          DType::float32)
      .function(OpContext{"add"}, value, value, sum);
  std::vector<float> others;
  std::thread([&] {
    const DefaultDevice same(*device);
    others = add(ones, full({100}, 2.0)).to(kCpu).to_vector<float>();
  }).join();
  void* const graph = backend.graph_end(device->index, nullptr);
  CHECK(others == std::vector<float>(100, 3.0f));
  add_(ones, full({100}, 1.0));  // behind the recording, and before its work
  backend.graph_launch(device->index, graph);
  CHECK(Tensor(copy_to(kCpu, sum)).to_vector<float>() == std::vector<float>(100, 4.0f));
  backend.graph_free(device->index, graph);
}

TEST_CASE("memory that is freed while a graph is recorded, and is not of it, is freed after the recording") {
  const auto device = cuda_device();
  if (!device) return;
  const auto held = [] {
    size_t free = 0, total = 0;
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return total - free;
  };
  const cuda::DeviceScope scope(device->index);
  const DenseTensor ones = copy_to(*device, random_tensor({1000}, DType::float32, 1));
  const DenseTensor twice = DenseTensor::allocate(*device, ones.meta());
  const size_t before = held();
  DenseTensor own = DenseTensor::allocate(*device, {{1 << 20}, DType::float32}),
              foreign = DenseTensor::allocate(*device, {{1 << 20}, DType::float32});
  const Backend& backend = backend_of(*device);
  const auto add = [&] {
    kernel_table("add")
        .find<void(const OpContext&, const DenseTensor&, const DenseTensor&, DenseTensor&)>(OpContext{"add"}, *device,
                                                                                            DType::float32)
        .function(OpContext{"add"}, ones, ones, const_cast<DenseTensor&>(twice));
  };
  backend.graph_begin(device->index);
  std::thread([dropped = std::move(foreign)]() mutable { dropped = {}; }).join();
  own = {};
  add();
  void* const graph = backend.graph_end(device->index, nullptr);
  add();  // which reports no error of the calls before it
  backend.graph_launch(device->index, graph);
  CHECK(testing::difference(copy_to(kCpu, twice),
                            Kernel<>{"add"}.run(kCpu, {copy_to(kCpu, ones), copy_to(kCpu, ones)}, ones.meta())) == "");
  backend.graph_free(device->index, graph);
  DenseTensor::allocate(*device, {{1}, DType::float32});
  CHECK(held() == before);
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
  cuda::check(cudaDeviceGraphMemTrim(device->index), "cudaDeviceGraphMemTrim");  // of other tests
  cuda::check(cudaStreamSynchronize(cuda::stream()), "cudaStreamSynchronize");
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

TEST_CASE("memory that graphs have left is given back where an allocation finds none") {
  const auto device = cuda_device();
  if (!device) return;
  const cuda::DeviceScope scope(device->index);
  const Backend& backend = backend_of(*device);
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    cuda::check(cudaStreamSynchronize(cuda::stream()), "cudaStreamSynchronize");
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  };
  cuda::check(cudaDeviceGraphMemTrim(device->index), "cudaDeviceGraphMemTrim");  // of other tests
  const size_t before = free_bytes();
  backend.graph_begin(device->index);
  DenseTensor::allocate(*device, {{1 << 20}, DType::uint8});
  backend.graph_free(device->index, backend.graph_end(device->index, nullptr));
  REQUIRE(free_bytes() == before - (1 << 20));
  const DenseTensor all = DenseTensor::allocate(*device, {{static_cast<int64_t>(before)}, DType::uint8});
  CHECK(free_bytes() == 0);
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

TEST_CASE("a run of a program on a device neither waits nor allocates: its buffers are one block") {
  const auto device = cuda_device();
  if (!device) return;
  const auto layer = [](const std::vector<Tensor>& in) {
    const Tensor hidden = softmax(matmul(in[0], in[1]), 1);
    return std::vector<Tensor>{matmul(hidden, in[1], false, true), sum(cumsum(hidden, 1), {0})};
  };
  const std::vector<Tensor> in{Tensor(copy_to(*device, random_tensor({6, 4}, DType::float32, 1))),
                               Tensor(copy_to(*device, random_tensor({4, 5}, DType::float32, 2)))};
  const program::Trace trace = program::trace(layer, in);
  for (const bool is_first : {true, false}) {  // a thread's first runs and recordings allocate pinned memory, once
    const uint64_t before = cuda_host::allocations();
    program::Executor executor(trace.program, {in, {}}, {.fuse_block = 0});  // the compiler of loops takes time
    CHECK(cuda_host::allocations() - before == 1);
    CHECK(executor.memory().block > 0);
    for (int run = 0; run < 5; ++run) {
      const uint64_t waits = cuda_host::synchronisations(), allocations = cuda_host::allocations();
      const std::vector<Tensor> results = executor.run({in, {}});
      if (!is_first) CHECK(cuda_host::synchronisations() == waits);
      // Outputs that nobody holds are written again. Kernels have scratch memory in the first run, and when the second records them.
      if (run >= 2) CHECK(cuda_host::allocations() == allocations);
      for (size_t i = 0; i < results.size(); ++i) require_close(results[i].get().value, layer(in)[i].get().value);
    }
    CHECK(executor.graphs().launches == 4);
  }
}

namespace {

/// Backward on two ranks with a bucket for each gradient. `look` is called once two of three products have been differentiated.
void run_backward(Device device, const std::function<void(Rank&)>& begin,
                  const std::function<void(Rank&, uint64_t collectives)>& look) {
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank& rank) {
    const auto on_device = [&](const std::vector<float>& values, const Dims& dims, const char* layout) {
      return distribute(Tensor::from_data(values, dims).to(device), DistSpec::parse(mesh, layout));
    };
    std::vector<Tensor> weights;
    for (int i = 0; i < 3; ++i) weights.push_back(on_device({2}, {1, 1}, "-, -").set_requires_grad(true));
    const Tensor first = matmul(on_device({1, 2, 3, 4}, {4, 1}, "p, -"), weights[0]);
    const Tensor loss = sum(matmul(matmul(first, weights[1]), weights[2]), {}, false);
    const uint64_t before = rank.stats().collectives;
    uint64_t waits = cuda_host::synchronisations();
    add_hook(first, [&](const Tensor&) {
      check(cuda_host::synchronisations() == waits, "the host has not waited before");
      look(rank, rank.stats().collectives - before);
      waits = cuda_host::synchronisations();
      return Tensor();
    });
    begin(rank);
    backward({loss}, {}, {.bucket_bytes = 4});
    check(cuda_host::synchronisations() == waits, "the host has not waited since");
    check(rank.stats().collectives - before == 3, "a collective for each gradient");
    for (const Tensor& weight : weights)
      check(full_tensor(weight.grad()).to(kCpu).to_vector<float>() == std::vector<float>{40}, "the gradient");
  });
}

}  // namespace

TEST_CASE("gradients are reduced while backward goes on, and neither waits for the other") {
  const auto device = cuda_device();
  if (!device) return;
  const auto has_ended = [](cudaStream_t stream) {
    const cudaError_t status = cudaStreamQuery(stream);
    cudaGetLastError();
    return status == cudaSuccess;
  };
  run_backward(
      *device, [](Rank&) {},
      [&](Rank& rank, uint64_t collectives) {
        const cuda::DeviceScope scope(device->index);
        check(collectives >= 1, "a reduction has begun");
        rank.comm_queue().finish();
        check(!has_ended(cuda::communication_stream()), "it is issued to the stream for communication");
        cuda::check(cudaStreamSynchronize(cuda::communication_stream()), "cudaStreamSynchronize");
        check(!has_ended(cudaStreamPerThread), "it has not waited for what backward has issued since");
      });
  // A rank goes on with backward while the other, which has not begun, keeps it from reducing.
  std::atomic<bool> is_ahead = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  run_backward(
      *device,
      [&](Rank& rank) {
        while (rank.id() == 1 && !is_ahead && std::chrono::steady_clock::now() < end)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        check(rank.id() == 0 || is_ahead, "backward has not waited for the reductions");
      },
      [&](Rank& rank, uint64_t) {
        if (rank.id() == 0) is_ahead = true;
      });
}

}  // namespace stream_test
