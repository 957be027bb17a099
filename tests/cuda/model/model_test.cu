// The host model of CUDA: what it refuses, in kernels that are wrong on purpose, and what it lets pass.
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "access.h"
#include "shard/kernels/cuda/device.cuh"

using namespace shard;
using Catch::Matchers::Contains;

namespace {

constexpr int kThreads = 64;

/// Device memory of a test.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) {
    REQUIRE(cudaMallocAsync(reinterpret_cast<void**>(&data_), count * sizeof(T), cuda::stream()) == cudaSuccess);
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice, cuda::stream());
  }
  ~Buffer() { cudaFreeAsync(data_, cuda::stream()); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> result(count_);
    CHECK(cudaMemcpyAsync(result.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost, cuda::stream()) ==
          cudaSuccess);
    return result;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

/// What the model says of the work of a stream; empty where it has run.
std::string finding_of(cudaStream_t stream) {
  const cudaError_t status = cudaStreamSynchronize(stream);
  const std::string text = status == cudaSuccess ? "" : cudaGetErrorString(status);
  cudaGetLastError();
  return text;
}

/// What it says of a launch.
template <class... P>
std::string finding(void (*kernel)(P...), dim3 blocks, dim3 threads, std::type_identity_t<P>... arguments) {
  cuda::launch(OpContext{"test"}, kernel, blocks, threads, arguments...);
  return finding_of(cuda::stream());
}

std::vector<int> count_up(size_t n) {
  std::vector<int> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

__global__ void reverse(int* out, const int* x, bool synchronise) {
  SHARD_SHARED(tile, int[kThreads]);
  tile[threadIdx.x] = x[threadIdx.x];
  if (synchronise) __syncthreads();
  out[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

__global__ void reverse_unwritten(int* out) {
  SHARD_SHARED(tile, int[kThreads]);
  if (threadIdx.x != 5) tile[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

__global__ void overrun_shared(int* out, int past) {
  SHARD_SHARED(tile, int[kThreads]);
  tile[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x + static_cast<unsigned>(past)];
}

__global__ void shift(int* out, const int* x, int by) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  out[i] = x[i + by];
}

__global__ void some_reach_the_barrier(int last) {
  if (static_cast<int>(threadIdx.x) < last) __syncthreads();
}

__global__ void barriers_of_two_branches() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void sum_of_warp(int* out, unsigned mask, int lanes) {
  if (static_cast<int>(threadIdx.x) >= lanes) return;
  int value = static_cast<int>(threadIdx.x);
  for (int delta = 16; delta > 0; delta /= 2) value += __shfl_down_sync(mask, value, static_cast<unsigned>(delta));
  if (threadIdx.x == 0) *out = value;
}

__global__ void all_lanes_or_few(unsigned mask) {
  if (threadIdx.x < 8) __shfl_sync(mask, 1, 0);
}

__global__ void in_order_of_blocks(int* at) { at[blockIdx.x + 1] = at[blockIdx.x] + 1; }

__global__ void count_blocks(int* total) { atomicAdd(total, 1); }

__global__ void count_blocks_unsafely(int* total) { *total += 1; }

__global__ void within_warps(int* out, bool synchronise) {
  SHARD_SHARED(tile, int[kThreads]);
  tile[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (synchronise) __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x ^ 1u];
}

__global__ void fill(int* out, int value) { out[threadIdx.x] = value; }

/// Of structs, for which compilers may call memcpy.
__global__ void copy_words(uint4* out, const uint4* x, int by) {
  out[threadIdx.x] = x[static_cast<int>(threadIdx.x) + by];
}

__global__ void copy_first(int* out, const int* x) { out[threadIdx.x] = x[0]; }

__global__ void copy_strided(int* out, const int* x, int stride) {
  const unsigned i = threadIdx.x * static_cast<unsigned>(stride) % blockDim.x +
                     threadIdx.x * static_cast<unsigned>(stride) / blockDim.x;
  out[i] = x[i];
}

__global__ void reduce(float* out) {
  const float total = cuda::block_reduce<256>(static_cast<float>(threadIdx.x), [](float a, float b) { return a + b; });
  out[threadIdx.x] = total;
}

/// Findings on accesses need instrumented kernels, which builds with AddressSanitizer do not have.
bool are_accesses_checked() {
#ifdef CUDA_HOST_INSTRUMENTED
  return true;
#else
  return false;
#endif
}

void check_finding(const std::string& text, const std::string& expected) {
  if (are_accesses_checked()) CHECK_THAT(text, Contains(expected));
}

}  // namespace

TEST_CASE("the model runs threads, barriers and shared memory") {
  const Buffer<int> x(count_up(kThreads)), out(kThreads);
  CHECK(finding(reverse, 1, kThreads, out.data(), x.data(), true) == "");
  std::vector<int> expected = count_up(kThreads);
  std::reverse(expected.begin(), expected.end());
  CHECK(out.values() == expected);
}

TEST_CASE("a missing barrier is a race") {
  const Buffer<int> x(count_up(kThreads)), out(kThreads);
  const std::string text = finding(reverse, 1, kThreads, out.data(), x.data(), false);
  if (!are_accesses_checked()) return;
  const bool is_race = text.find("with no barrier in between") != std::string::npos;
  const bool is_unwritten =
      text.find("of shared variable tile was never written") != std::string::npos;  // it depends on the order
  CHECK((is_race || is_unwritten));
}

TEST_CASE("reads of shared memory that nobody wrote are found") {
  const Buffer<int> out(kThreads);
  check_finding(finding(reverse_unwritten, 1, kThreads, out.data()),
                "byte 20 of the 256 of shared variable tile was never written");
}

TEST_CASE("an index that is off by one is found, in global and in shared memory") {
  const Buffer<int> x(count_up(kThreads)), out(kThreads);
  CHECK(finding(shift, 2, kThreads / 2, out.data(), x.data(), 0) == "");
  if (!are_accesses_checked()) return;
  check_finding(finding(shift, 2, kThreads / 2, out.data(), x.data(), 1), "it is in no allocation");
  check_finding(finding(shift, 2, kThreads / 2, out.data(), x.data(), -1), "it is in no allocation");
  check_finding(finding(overrun_shared, 1, kThreads, out.data(), 1), "it is in no shared variable");
}

TEST_CASE("copies of structs are accesses like others") {
  const Buffer<uint4> x(std::vector<uint4>(size_t{kThreads})), out(kThreads), copy(kThreads);
  const auto copies = [&](uint4* to, const uint4* from, int by = 0) {
    return finding(copy_words, 1, kThreads, to, from, by);
  };
  check_finding(copies(copy.data(), out.data()), "of an allocation of 1024 was never written");
  CHECK(copies(out.data(), x.data()) == "");
  CHECK(copies(copy.data(), out.data()) == "");
  if (!are_accesses_checked()) return;
  check_finding(copies(copy.data(), out.data(), 1), "it is in no allocation");
  cuda_host::begin_log();
  CHECK(copies(copy.data(), out.data()) == "");
  const std::vector<cuda_host::GridLog> logs = cuda_host::end_log();
  REQUIRE(logs.size() == 1);
  CHECK(logs[0].bytes_read == 1024);
  CHECK(logs[0].bytes_written == 1024);
}

TEST_CASE("a barrier that not all threads reach is found") {
  CHECK(finding(some_reach_the_barrier, 1, kThreads, kThreads) == "");
  CHECK_THAT(finding(some_reach_the_barrier, 1, kThreads, 40), Contains("40 of 64 threads reach the barrier in line"));
  CHECK_THAT(finding(barriers_of_two_branches, 1, kThreads), Contains("of the block waits at that in line"));
}

TEST_CASE("wrong masks of shuffles are found") {
  const Buffer<int> out(1);
  CHECK(finding(sum_of_warp, 1, 32, out.data(), 0xffffffffu, 32) == "");
  CHECK(out.values()[0] == 496);
  CHECK_THAT(finding(sum_of_warp, 1, 32, out.data(), 0xffffu, 32), Contains("does not name the calling lane"));
  CHECK_THAT(finding(sum_of_warp, 1, 32, out.data(), 0xffffffffu, 20), Contains("which takes no part in it"));
  CHECK(finding(all_lanes_or_few, 1, 32, 0xffu) == "");
  CHECK_THAT(finding(all_lanes_or_few, 1, 8, 0x7u), Contains("does not name the calling lane"));
}

TEST_CASE("kernels that need an order of blocks, or count without atomic operations, are found") {
  std::vector<int> start(65);
  const Buffer<int> chain(start);
  const std::string text = finding(in_order_of_blocks, 64, 1, chain.data());
  if (are_accesses_checked()) CHECK_THAT(text, Contains("by another block"));
  else CHECK(chain.values() != count_up(65));  // as blocks run in shuffled order
  const Buffer<int> total(std::vector<int>{0});
  CHECK(finding(count_blocks, 64, 1, total.data()) == "");
  CHECK(total.values()[0] == 64);
  check_finding(finding(count_blocks_unsafely, 64, 1, total.data()), "by another block");
}

TEST_CASE("__syncwarp orders the accesses of a warp, and nothing else does") {
  const Buffer<int> out(kThreads);
  CHECK(finding(within_warps, 1, kThreads, out.data(), true) == "");
  CHECK(out.values()[6] == 7);
  if (are_accesses_checked()) CHECK(finding(within_warps, 1, kThreads, out.data(), false) != "");
}

TEST_CASE("kernels cannot use memory of the host, or memory that is freed") {
  if (!are_accesses_checked()) return;
  std::vector<int> host(kThreads);
  check_finding(finding(fill, 1, kThreads, host.data(), 1), "it is not memory of the device");
  int* freed = nullptr;
  {
    const Buffer<int> buffer(kThreads);
    freed = buffer.data();
  }
  check_finding(finding(fill, 1, kThreads, freed, 1), "it is in no allocation");
}

/// A stream beside that of the thread, and what the model says of the work of both.
struct TwoStreams {
  TwoStreams() {
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&copied), sizeof(int)) == cudaSuccess);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~TwoStreams() {
    finding();  // is not that of the next test
    cudaEventDestroy(event);
    cudaStreamDestroy(other);
    cudaFreeHost(copied);
  }
  TwoStreams(const TwoStreams&) = delete;
  TwoStreams& operator=(const TwoStreams&) = delete;

  void read(const int* x, cudaStream_t stream) const {
    cudaMemcpyAsync(copied, x, sizeof(int), cudaMemcpyDeviceToHost, stream);
  }
  void order(cudaStream_t before, cudaStream_t after) const {
    cudaEventRecord(event, before);
    cudaStreamWaitEvent(after, event);
  }
  std::string finding() const {
    const std::string own = finding_of(cuda::stream()), others = finding_of(other);
    return own.empty() ? others : own;
  }

  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  int* copied = nullptr;
};

void launch_fill(const Buffer<int>& x, int value) {
  cuda::launch(OpContext{"test"}, fill, 1, kThreads, x.data(), value);
}

TEST_CASE("streams run their work as late as they may") {
  const Buffer<int> x(std::vector<int>(kThreads, 1));
  const TwoStreams streams;
  cudaStreamSynchronize(cuda::stream());
  launch_fill(x, 7);
  streams.read(x.data(), streams.other);
  CHECK(cudaStreamSynchronize(streams.other) == cudaSuccess);
  CHECK(*streams.copied == 1);  // nothing says that it waits for the kernel
}

TEST_CASE("work of two streams that uses the same memory is ordered by events or waits, or it is refused") {
  if (!are_accesses_checked()) return;
  const std::string unordered = "by work of another stream, with no event or wait in between";
  const Buffer<int> x(std::vector<int>(kThreads, 1));
  cudaStreamSynchronize(cuda::stream());
  SECTION("a read of what a kernel writes later") {
    const TwoStreams streams;
    streams.read(x.data(), streams.other);
    launch_fill(x, 7);
    CHECK(cudaStreamSynchronize(streams.other) == cudaSuccess);
    check_finding(streams.finding(), "was read " + unordered);
  }
  SECTION("a read of what a kernel has written") {
    const TwoStreams streams;
    launch_fill(x, 7);
    streams.read(x.data(), streams.other);
    CHECK(cudaStreamSynchronize(cuda::stream()) == cudaSuccess);
    check_finding(streams.finding(), "was written " + unordered);
  }
  SECTION("a write of what a kernel has written, and reads") {
    const TwoStreams streams;
    launch_fill(x, 7);
    cudaMemsetAsync(x.data(), 0, sizeof(int), streams.other);
    check_finding(streams.finding(), "was written " + unordered);
    cudaStreamSynchronize(streams.other);
    streams.read(x.data(), cuda::stream());
    streams.read(x.data() + 1, streams.other);
    CHECK(streams.finding() == "");
  }
  SECTION("an event, and where it is") {
    const TwoStreams streams;
    launch_fill(x, 7);
    streams.order(cuda::stream(), streams.other);
    streams.read(x.data(), streams.other);
    CHECK(streams.finding() == "");
    CHECK(*streams.copied == 7);
    streams.order(cuda::stream(), streams.other);
    launch_fill(x, 8);  // behind the event
    streams.read(x.data(), streams.other);
    check_finding(streams.finding(), unordered);
  }
  SECTION("a wait of the host") {
    const TwoStreams streams;
    launch_fill(x, 7);
    cudaEventRecord(streams.event, cuda::stream());
    CHECK(cudaEventSynchronize(streams.event) == cudaSuccess);
    streams.read(x.data(), streams.other);
    CHECK(streams.finding() == "");
  }
  SECTION("memory that is freed") {
    const TwoStreams streams;
    for (const bool ordered : {true, false}) {
      {
        const Buffer<int> freed(std::vector<int>(kThreads, 1));
        streams.order(cuda::stream(), streams.other);
        streams.read(freed.data(), streams.other);
        if (ordered) streams.order(streams.other, cuda::stream());
        for (int work = 0; work < 2; ++work)  // the copy runs before the memory is freed; the host does not see its end
          CHECK(cudaStreamQuery(streams.other) == cudaErrorNotReady);
      }
      cudaGetLastError();
      if (ordered) CHECK(streams.finding() == "");
      else check_finding(streams.finding(), "an allocation of 256 bytes is freed, and was used " + unordered);
    }
  }
  SECTION("memory that is allocated in the order of another stream") {
    const TwoStreams streams;
    const Buffer<int> early(kThreads);
    cudaMemsetAsync(early.data(), 0, sizeof(int), streams.other);
    check_finding(streams.finding(), "is allocated in the order of another stream");
    streams.order(cuda::stream(), streams.other);
    cudaMemsetAsync(early.data(), 0, sizeof(int), streams.other);
    CHECK(streams.finding() == "");
  }
}

TEST_CASE("a launch that no device takes is an Error that names the op, at once") {
  const Buffer<int> out(kThreads);
  const auto refusal = [&](const auto& launch) {
    try {
      launch();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::device);
      CHECK(cudaGetLastError() == cudaSuccess);  // the next launch does not report it again
      return std::string(error.what());
    }
    return std::string("none");
  };
  const std::string grid =
      "[test] cudaLaunchKernel failed: invalid configuration argument (cudaErrorInvalidConfiguration)";
  for (const dim3 threads : {dim3(2048), dim3(0), dim3(32, 33), dim3(1, 1, 65)})
    CHECK(refusal([&] { finding(fill, 1, threads, out.data(), 1); }) == grid);
  for (const dim3 blocks : {dim3(0), dim3(1, 65536), dim3(1, 1, 65536), dim3(1u << 31)})
    CHECK(refusal([&] { finding(fill, blocks, 32, out.data(), 1); }) == grid);

  using AllOfABlock = char[227 << 10];
  using MoreThanThat = char[(227 << 10) + 1];
  const OpContext ctx{"test"};
  CHECK(refusal([&] { cuda::launch_with_shared<AllOfABlock>(ctx, fill, 1, kThreads, out.data(), 1); }) == "none");
  CHECK(refusal([&] { cuda::launch_with_shared<MoreThanThat>(ctx, fill, 1, kThreads, out.data(), 1); }) ==
        "cudaFuncSetAttribute failed: invalid argument (cudaErrorInvalidValue)");
  CHECK(refusal([&] { cuda::detail::launch(ctx, reverse_unwritten, 1, kThreads, (48 << 10) + 1, out.data()); }) ==
        "[test] cudaLaunchKernel failed: invalid argument (cudaErrorInvalidValue)");
  CHECK(finding(fill, 1, kThreads, out.data(), 2) == "");
  CHECK(out.values() == std::vector<int>(kThreads, 2));
}

TEST_CASE("the log counts bytes, and the sectors that warps touch") {
  if (!are_accesses_checked()) return;
  const Buffer<int> x(count_up(256)), out(256);
  cuda_host::begin_log();
  CHECK(finding(copy_strided, 1, 256, out.data(), x.data(), 1) == "");
  CHECK(finding(copy_strided, 1, 256, out.data(), x.data(), 16) == "");
  const std::vector<cuda_host::GridLog> logs = cuda_host::end_log();
  REQUIRE(logs.size() == 2);
  for (const auto& log : logs) {
    CHECK(log.bytes_read == 1024);
    CHECK(log.bytes_written == 1024);
    CHECK(log.least_sectors == 64);
  }
  CHECK(logs[0].sectors == 64);
  CHECK(logs[1].sectors == 256);  // each warp touches 16 pairs of neighbours, twice
}

TEST_CASE("the log counts what all lanes of a warp read as one access") {
  if (!are_accesses_checked()) return;
  const Buffer<int> x(count_up(1)), out(256);
  cuda_host::begin_log();
  CHECK(finding(copy_first, 1, 256, out.data(), x.data()) == "");
  const std::vector<cuda_host::GridLog> logs = cuda_host::end_log();
  REQUIRE(logs.size() == 1);
  CHECK(logs[0].bytes_read == 8 * sizeof(int));  // of 8 warps
  CHECK(logs[0].bytes_written == 1024);
  CHECK(logs[0].sectors == 8 + 32);
}

TEST_CASE("a reduction over a block gives every thread the sum") {
  const Buffer<float> out(256);
  CHECK(finding(reduce, 1, 256, out.data()) == "");
  CHECK(out.values() == std::vector<float>(256, 32640.0f));
}
