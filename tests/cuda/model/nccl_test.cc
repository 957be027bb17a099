// Collectives between devices by NCCL, whose equivalent of the model checks how it is called.
#include "nccl.h"

#include <atomic>
#include <cstring>
#include <functional>

#include "../cuda_case.h"
#include "shard/comm/communicator.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

namespace {

/// The options of a world whose ranks have a device each.
WorldOptions own_devices(int ranks) {
  WorldOptions options;
  for (int i = 0; i < ranks; ++i) options.devices.push_back({cuda_device()->backend, static_cast<uint8_t>(i)});
  return options;
}

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }

/// Small integers, of which all reductions are exact.
DenseTensor small_numbers(int64_t count, DType dtype, int seed) {
  const DenseTensor made = DenseTensor::allocate(kCpu, {{count}, dtype});
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) {
      const auto small = static_cast<int>((seed * 5 + i * 3) % 7);
      made.data<T>()[i] = static_cast<T>(static_cast<Compute<T>>(std::is_signed_v<Compute<T>> ? small - 3 : small % 2));
    }
  });
  return made;
}

DenseTensor bytes(int64_t count, int seed) {
  return random_tensor({count}, DType::uint8, static_cast<unsigned>(seed) + 1);
}

bool same(const DenseTensor& a, const DenseTensor& b) {
  return a.meta().bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.meta().bytes()) == 0;
}

using Collect = std::function<Work(Device, const void* send, void* receive)>;

/// Runs a collective on the rank's device, by NCCL and without a wait of the host where it moves something, and on the host.
void compare(Device device, const std::string& what, const DenseTensor& send, const DenseTensor& receive, bool moves,
             const Collect& collect) {
  const DenseTensor on_device = copy_to(device, send), result = copy_to(device, receive);
  const uint64_t calls = cuda_host::nccl_calls(), waits = cuda_host::synchronisations();
  collect(device, on_device.raw(), result.raw()).wait();
  check(cuda_host::synchronisations() == waits, what + " does not wait for the device");
  check(!moves || cuda_host::nccl_calls() > calls, what + " is done by NCCL");
  const DenseTensor sent = copy_to(kCpu, send), expected = copy_to(kCpu, receive);
  collect(kCpu, sent.raw(), expected.raw()).wait();
  check(same(copy_to(kCpu, result), expected), what + " gives what it gives on the host");
}

void compare_gathers(Communicator& group, Device device) {
  const int me = group.rank();
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {8, 8, 8, 8}, {3, 0, 70, 12}, {0, 0, 5, 0}, {0, 0, 0, 0}, {90'001, 90'000, 90'002, 90'003}}) {
    const std::span<const int64_t> of_members(sizes.data(), static_cast<size_t>(group.size()));
    const int64_t total = std::accumulate(of_members.begin(), of_members.end(), int64_t{0});
    const DenseTensor mine = bytes(of_members[static_cast<size_t>(me)], me);
    compare(device, "all_gather", mine, bytes(total, 9), total > 0, [&](Device at, const void* from, void* to) {
      return group.all_gather({"test", "gather"}, from, to, of_members, at);
    });
  }
  for (const int64_t unit : {int64_t{0}, int64_t{1}, int64_t{1000}}) {
    const auto size = [&](int from, int to) { return (from * 3 + to * 5 + 1) % 4 * unit; };
    std::vector<int64_t> sends, receives;
    for (int i = 0; i < group.size(); ++i) {
      sends.push_back(size(me, i));
      receives.push_back(size(i, me));
    }
    const auto total = [](const std::vector<int64_t>& of) { return std::accumulate(of.begin(), of.end(), int64_t{0}); };
    compare(device, "all_to_all", bytes(total(sends), me), bytes(total(receives), 9), unit > 0,
            [&](Device at, const void* from, void* to) {
              return group.all_to_all({"test", "shuffle"}, from, sends, to, receives, at);
            });
  }
  for (int root = 0; root < group.size(); ++root) {
    for (const int64_t count : {0, 3, 5000}) {
      compare(device, "broadcast", bytes(1, 0), bytes(count, me), count > 0, [&](Device at, const void*, void* to) {
        return group.broadcast({"test", "root"}, to, count, root, at);
      });
    }
  }
}

void compare_reductions(Communicator& group, Device device, DType dtype, ReduceType type) {
  const int me = group.rank(), n = group.size();
  const std::string what = std::string(to_string(dtype)) + " " + std::string(to_string(type));
  for (const int64_t count : {0, 1, 5, 1000}) {
    compare(device, "all_reduce of " + what, bytes(1, 0), small_numbers(count, dtype, me), count > 0,
            [&](Device at, const void*, void* data) {
              return group.all_reduce({"test", "sum"}, data, count, dtype, type, at);
            });
  }
  for (const std::vector<int64_t>& parts :
       std::vector<std::vector<int64_t>>{{6, 6, 6, 6}, {4, 0, 7, 33}, {0, 0, 0, 0}}) {
    const std::span<const int64_t> counts(parts.data(), static_cast<size_t>(n));
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    compare(device, "reduce_scatter of " + what, small_numbers(total, dtype, me),
            small_numbers(counts[static_cast<size_t>(me)], dtype, 1), total > 0,
            [&](Device at, const void* from, void* to) {
              return group.reduce_scatter({"test", "scatter"}, from, to, counts, dtype, type, at);
            });
  }
}

/// Boxes of rows: several to a member, one to another, those to itself, and none.
void compare_exchanges(Communicator& group, Device device) {
  const int me = group.rank(), n = group.size();
  const Dims dims{40, 30};
  const auto boxes_of = [&](int from, int to) {
    std::vector<BoxTransfer> boxes;
    if (from == to) boxes.push_back({to, dims, {0, 3}, dims, {30, 0}, {2, 20}});
    if (to == (from + 1) % n) {
      boxes.push_back({to, dims, {10, 20}, dims, {5, 7}, {3, 4}});
      boxes.push_back({to, dims, {1, 0}, dims, {10, 0}, {5, 30}});
    }
    if (to == (from + 2) % n && to != from && n > 2) boxes.push_back({to, dims, {20, 0}, dims, {20, 1}, {4, 29}});
    if (from == 0 && to == n - 1) boxes.push_back({to, dims, {30, 0}, dims, {35, 0}, {5, 30}});
    return boxes;
  };
  std::vector<BoxTransfer> sends, receives;
  for (int i = 0; i < n; ++i) {
    for (const BoxTransfer& box : boxes_of(me, i)) sends.push_back(box);
    for (BoxTransfer box : boxes_of(i, me)) {
      box.peer = i;
      receives.push_back(box);
    }
  }
  compare(device, "exchange", bytes(dims.numel() * 4, me), bytes(dims.numel() * 4, 9), true,
          [&](Device at, const void* from, void* to) {
            return group.exchange({"test", "boxes"}, from, sends, to, receives, 4, at);
          });
  compare(device, "exchange of one box", bytes(dims.numel(), me), bytes(dims.numel(), 9), me <= 1,
          [&](Device at, const void* from, void* to) {
            const BoxTransfer box{me == 0 ? 1 : 0, dims, {20, 0}, dims, {3, 0}, {4, 30}};
            const std::vector<BoxTransfer> one{box}, none;
            return group.exchange({"test", "box"}, from, me == 0 ? one : none, to, me == 1 ? one : none, 1, at);
          });
}

/// Runs a program in which a rank fails, and returns the text of the error.
std::string failure(ErrorCode code, WorldOptions options, const std::function<void(Rank&)>& program) {
  return error_of([&] { run_ranks(static_cast<int>(options.devices.size()), program, options); }, code);
}

Work sum_of_ones(Rank& rank, const DenseTensor& ones) {
  return rank.communicator(line(rank.world().size()), 0)
      .all_reduce({"add", "x"}, ones.raw(), ones.meta().dims.numel(), DType::float32, ReduceType::sum, rank.device());
}

/// Two members with a stream and a buffer each, called by one thread.
struct Pair {
  Pair() {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    for (int i = 0; i < 2; ++i) {
      cudaSetDevice(i);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      REQUIRE(ncclCommInitRankConfig(&communicators[i], 2, id, i, &config) == ncclInProgress);
      cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
      cudaMallocAsync(&buffers[i], 256, streams[i]);
    }
    cudaSetDevice(0);
  }
  ~Pair() {
    for (int i = 0; i < 2; ++i) {
      ncclCommAbort(communicators[i]);
      cudaFreeAsync(buffers[i], streams[i]);
      cudaStreamDestroy(streams[i]);
    }
  }
  /// The error of the work, as text; empty when there is none.
  std::string run() {
    for (ncclComm_t communicator : communicators) {
      ncclResult_t state = ncclSuccess;
      ncclCommGetAsyncError(communicator, &state);
    }
    const cudaError_t status = cudaStreamSynchronize(streams[0]);
    const std::string text = status == cudaSuccess ? "" : cudaGetErrorString(status);
    cudaGetLastError();
    return text;
  }
  ncclResult_t reduce(int i, void* data, size_t count, ncclRedOp_t op) {
    return ncclAllReduce(data, data, count, ncclFloat32, op, communicators[i], streams[i]);
  }

  ncclComm_t communicators[2];
  cudaStream_t streams[2];
  void* buffers[2];
};

}  // namespace

TEST_CASE("NCCL: collectives of ranks with a device each give what they give on the host") {
  for (const int n : {2, 3, 4}) {
    run_ranks(
        n,
        [&](Rank& rank) {
          Communicator& group = rank.communicator(line(n), 0);
          compare_gathers(group, rank.device());
          compare_exchanges(group, rank.device());
          for (int d = 0; d < kNumDTypes; ++d) {
            for (int t = 0; t < kNumReduceTypes; ++t)
              compare_reductions(group, rank.device(), static_cast<DType>(d), static_cast<ReduceType>(t));
          }
        },
        own_devices(n));
  }
  CHECK(cuda_host::nccl_communicators() == 0);
}

TEST_CASE("NCCL: sums of floats have the same bits on all ranks, and NaN wins") {
  run_ranks(
      3,
      [&](Rank& rank) {
        Communicator& group = rank.communicator(line(3), 0);
        const DenseTensor data =
            copy_to(rank.device(), random_tensor({5000}, DType::float32, static_cast<unsigned>(rank.id())));
        sum_of_ones(rank, data).wait();
        const DenseTensor all = DenseTensor::allocate(rank.device(), {{15000}, DType::float32});
        group.all_gather({"test", "bits"}, data.raw(), all.raw(), std::vector<int64_t>(3, 20000), rank.device()).wait();
        const DenseTensor sums = copy_to(kCpu, all);
        for (size_t i = 1; i < 3; ++i)
          check(std::memcmp(sums.data<char>(), sums.data<char>() + i * 20000, 20000) == 0, "ranks have the same bits");
        const DenseTensor number = DenseTensor::allocate(kCpu, {{1}, DType::float32});
        number.data<float>()[0] = rank.id() == 1 ? NAN : 3.0f;
        const DenseTensor largest = copy_to(rank.device(), number);
        group.all_reduce({"test", "nan"}, largest.raw(), 1, DType::float32, ReduceType::max, rank.device()).wait();
        check(std::isnan(copy_to(kCpu, largest).data<float>()[0]), "the largest of a NaN and numbers is the NaN");
      },
      own_devices(3));
}

TEST_CASE("NCCL: is not used where two ranks share a device") {
  WorldOptions options = own_devices(3);
  options.devices[2] = options.devices[0];
  run_ranks(
      3,
      [&](Rank& rank) {
        const DenseTensor ones = copy_to(rank.device(), small_numbers(5, DType::float32, rank.id()));
        sum_of_ones(rank, ones).wait();
        check(cuda_host::nccl_calls() == 0, "NCCL would refuse it");
      },
      options);
}

TEST_CASE("NCCL: a failure of one rank reaches all") {
  const auto ones = [](Rank& rank) { return copy_to(rank.device(), small_numbers(100, DType::float32, 1)); };
  CHECK_THAT(failure(ErrorCode::device, own_devices(3),
                     [&](Rank& rank) {
                       const DenseTensor data = ones(rank);
                       sum_of_ones(rank, data).wait();
                       if (rank.id() == 1) cuda_host::fail_next_nccl_call(ncclInternalError);
                       try {
                         sum_of_ones(rank, data).wait();
                       } catch (const Error& error) {
                         check(error.code() == (rank.id() == 1 ? ErrorCode::device : ErrorCode::peer_failed),
                               error.what());
                         throw;
                       }
                       check(false, "the others fail too");
                     }),
             Catch::Contains("ncclAllReduce failed: internal error"));
  CHECK_THAT(failure(
                 ErrorCode::timeout,
                 [&] {
                   WorldOptions options = own_devices(3);
                   options.timeout = std::chrono::milliseconds(300);
                   return options;
                 }(),
                 [&](Rank& rank) {
                   if (rank.id() != 2) sum_of_ones(rank, ones(rank)).wait();
                 }),
             Catch::Contains("rank 2 never joined #0 all_reduce for add argument 'x'"));
  CHECK_THAT(failure(ErrorCode::communication, own_devices(3),
                     [&](Rank& rank) {
                       const std::vector<int64_t> sent{4, 4, rank.id() == 0 ? 8 : 4}, received{4, 4, 4};
                       const DenseTensor from = ones(rank), to = ones(rank);
                       rank.communicator(line(3), 0)
                           .all_to_all({"shuffle", "x"}, from.raw(), sent, to.raw(), received, rank.device())
                           .wait();
                     }),
             Catch::Contains("rank 2 expects 4 bytes from rank 0, which sends 8"));
  CHECK_THROWS_WITH(run_ranks(
                        3,
                        [&](Rank& rank) {
                          const DenseTensor data = ones(rank);
                          const Work work = sum_of_ones(rank, data);
                          if (rank.id() == 1) throw std::runtime_error("disk on fire");
                        },
                        own_devices(3)),
                    "disk on fire");
  CHECK(cuda_host::nccl_communicators() == 0);
}

TEST_CASE("the model of NCCL runs calls when all members have come to them") {
  Pair pair;
  CHECK(pair.reduce(0, pair.buffers[0], 4, ncclSum) == ncclInProgress);
  CHECK_THAT(pair.run(), Catch::Contains("member 1 does not take part"));
}

TEST_CASE("the model of NCCL finds calls that do not fit") {
  {
    Pair pair;
    pair.reduce(0, pair.buffers[0], 4, ncclSum);
    pair.reduce(1, pair.buffers[1], 5, ncclSum);
    CHECK_THAT(pair.run(), Catch::Contains("member 1 calls ncclAllReduce with other arguments"));
  }
  {
    Pair pair;
    pair.reduce(0, pair.buffers[0], 4, ncclSum);
    pair.reduce(1, pair.buffers[0], 4, ncclSum);
    CHECK_THAT(pair.run(), Catch::Contains("on another device"));
  }
  {
    Pair pair;
    pair.reduce(0, pair.buffers[0], 100, ncclSum);
    pair.reduce(1, pair.buffers[1], 100, ncclSum);
    CHECK_THAT(pair.run(), Catch::Contains("not within an allocation"));
  }
  Pair pair;
  CHECK(ncclAllGather(pair.buffers[0], pair.buffers[0], 1, ncclUint8, pair.communicators[0], pair.streams[1]) ==
        ncclInvalidUsage);
  CHECK(ncclAllGather(pair.buffers[0], pair.buffers[0], 1, ncclUint8, pair.communicators[0], cudaStreamPerThread) ==
        ncclInvalidUsage);
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t first = nullptr, second = nullptr;
  CHECK(ncclCommInitRankConfig(&first, 2, id, 0, &config) == ncclInProgress);
  CHECK(ncclCommInitRankConfig(&second, 2, id, 1, &config) == ncclInvalidUsage);  // on the same device
  ncclCommAbort(first);
}
