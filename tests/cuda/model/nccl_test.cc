// Collectives between devices by NCCL, whose equivalent of the model checks how it is called.
#include "nccl.h"

#include <atomic>
#include <cstring>
#include <functional>

#include "../cuda_case.h"
#include "cuda/model/device_collectives.h"
#include "shard/comm/communicator.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace nccl_test {

using namespace shard;
using namespace shard::test;

namespace {

/// A timeout that ends, on a busy machine too, after all threads have come to what they do before it.
constexpr std::chrono::milliseconds kSoon{1000};

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }

/// Runs a program in which a rank fails, and returns the text of the error.
std::string failure(ErrorCode code, WorldOptions options, const std::function<void(Rank&)>& program) {
  return error_of([&] { run_ranks(static_cast<int>(options.devices.size()), program, options); }, code);
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
      cudaStreamSynchronize(streams[i]);
      cudaGetLastError();  // is not that of the next test
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

TEST_CASE("NCCL: collectives of ranks with a device each give what they give on the host", "[slow_in_asan]") {
  for (const int n : {2, 3, 4})
    run_ranks(
        n, [](Rank& rank) { check_collectives_between_devices(rank); }, own_devices(n));
  CHECK(cuda_host::nccl_communicators() == 0);
}

TEST_CASE("NCCL: sums of floats have the same bits on all ranks, and NaN wins") {
  run_ranks(
      3,
      [&](Rank& rank) {
        Communicator& group = rank.communicator(line(3), 0);
        const DenseTensor data =
            copy_to(rank.device(), random_tensor({5000}, DType::float32, static_cast<unsigned>(rank.id())));
        sum_over_world(rank, data).wait();
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

TEST_CASE("NCCL: the collectives of several groups run in one order on all devices") {
  const ProcessMesh* square = ProcessMesh::make({2, 2}, {}, {"x", "y"});
  run_ranks(
      4,
      [&](Rank& rank) {
        const DenseTensor data[] = {copy_to(rank.device(), small_numbers(100, DType::float32, rank.id())),
                                    copy_to(rank.device(), small_numbers(100, DType::float32, rank.id()))};
        Work sums[2];  // both begin before one is waited for
        for (const int axis : {0, 1}) {
          sums[axis] =
              rank.communicator(square, axis)
                  .all_reduce({"test", "order"}, data[axis].raw(), 100, DType::float32, ReduceType::sum, rank.device());
        }
        for (Work& sum : sums) sum.wait();
        for (const int axis : {0, 1}) {
          const int other = rank.id() ^ (axis == 0 ? 2 : 1);
          const DenseTensor a = small_numbers(100, DType::float32, rank.id()),
                            b = small_numbers(100, DType::float32, other);
          const DenseTensor sum = copy_to(kCpu, data[axis]);
          for (int i = 0; i < 100; ++i)
            check(sum.data<float>()[i] == a.data<float>()[i] + b.data<float>()[i], "the sum of two ranks");
        }
        check(cuda_host::nccl_calls() == 2, "both are done by NCCL");
      },
      own_devices(4));
}

TEST_CASE("NCCL: is not used where two ranks share a device") {
  WorldOptions options = own_devices(3);
  options.devices[2] = options.devices[0];
  run_ranks(
      3,
      [&](Rank& rank) {
        const DenseTensor ones = copy_to(rank.device(), small_numbers(5, DType::float32, rank.id()));
        sum_over_world(rank, ones).wait();
        check(cuda_host::nccl_calls() == 0, "NCCL would refuse it");
      },
      options);
}

TEST_CASE("NCCL: a failure of one rank reaches all") {
  const auto ones = [](Rank& rank) { return copy_to(rank.device(), small_numbers(100, DType::float32, 1)); };
  CHECK_THAT(failure(ErrorCode::device, own_devices(3),
                     [&](Rank& rank) {
                       const DenseTensor data = ones(rank);
                       sum_over_world(rank, data).wait();
                       if (rank.id() == 1) cuda_host::fail_next_nccl_call(ncclInternalError);
                       try {
                         sum_over_world(rank, data).wait();
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
                   if (rank.id() != 2) sum_over_world(rank, ones(rank)).wait();
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
                          const Work work = sum_over_world(rank, data);
                          if (rank.id() == 1) throw std::runtime_error("disk on fire");
                        },
                        own_devices(3)),
                    "disk on fire");
  CHECK(cuda_host::nccl_communicators() == 0);
}

TEST_CASE("NCCL: a device that does not go on ends the wait for it after the timeout, and all later waits") {
  WorldOptions options = own_devices(3);
  options.timeout = kSoon;
  std::atomic<int> told = 0;  // ranks may fail after the first error without being heard
  const std::string text = failure(ErrorCode::timeout, options, [&](Rank& rank) {
    const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
    if (rank.id() == 1) cuda_host::hang_next_nccl_call();
    sum_over_world(rank, data).wait();  // the host does not wait for the device
    std::exception_ptr first;
    for (const bool again : {false, true}) {
      try {
        copy_to(kCpu, data);
      } catch (const Error& error) {
        check(error.code() == ErrorCode::peer_failed || (!again && error.code() == ErrorCode::timeout), error.what());
        if (!again) first = std::current_exception();
        continue;
      }
      check(false, "nothing is to be read");
    }
    ++told;
    std::rethrow_exception(first);
  });
  CHECK(told == 3);
  CHECK_THAT(text, Catch::Contains("did not end #0 all_reduce for add argument 'x'"));
  CHECK_THAT(text, Catch::Contains("within 1000 ms: that of another rank does not take part, or is slow"));
  CHECK(cuda_host::nccl_communicators() == 0);
}

TEST_CASE("NCCL: an error that is known later ends the wait for the device") {
  const std::string text = failure(ErrorCode::peer_failed, own_devices(3), [&](Rank& rank) {
    const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
    cuda_host::hang_next_nccl_call(ncclRemoteError);
    sum_over_world(rank, data).wait();
    copy_to(kCpu, data);
  });
  CHECK_THAT(text, Catch::Contains("a collective of NCCL failed: remote process exited"));
  CHECK(cuda_host::nccl_communicators() == 0);
}

TEST_CASE("NCCL: a rank that fails ends the waits of others for devices, which wait for its own") {
  std::atomic<int> told = 0;
  const auto program = [&](Rank& rank) {
    const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
    if (rank.id() == 2) cuda_host::hang_next_nccl_call();
    sum_over_world(rank, data).wait();
    if (rank.id() == 2) throw std::runtime_error("disk on fire");
    try {
      copy_to(kCpu, data);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::peer_failed && std::string(error.what()).find("disk on fire") != std::string::npos)
        ++told;
      throw;
    }
  };
  CHECK_THROWS_WITH(run_ranks(3, program, own_devices(3)), "disk on fire");
  CHECK(told == 2);
  CHECK(cuda_host::nccl_communicators() == 0);
}

TEST_CASE("NCCL: what was not finished when a later collective failed is not read") {
  WorldOptions options = own_devices(2);
  options.timeout = kSoon;
  CHECK_THAT(failure(ErrorCode::peer_failed, options,
                     [&](Rank& rank) {
                       const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
                       cuda_host::hang_next_nccl_call();
                       sum_over_world(rank, data).wait();
                       cuda_host::fail_next_nccl_call(ncclInternalError);
                       bool failed = false;
                       try {
                         sum_over_world(rank, data).wait();
                       } catch (const Error&) { failed = true; }  // its own, or that of the other
                       check(failed, "the call fails");
                       copy_to(kCpu, data);
                       check(false, "nothing is to be read");
                     }),
             Catch::Contains("ncclAllReduce failed: internal error"));
}

TEST_CASE("NCCL: a run ends with its devices, and fails where they do not end") {
  for (const bool fails : {false, true}) {
    WorldOptions options = own_devices(2);
    if (fails) options.timeout = kSoon;
    const auto program = [&](Rank& rank) {
      const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
      if (fails && rank.id() == 1) cuda_host::hang_next_nccl_call();
      sum_over_world(rank, data).wait();
    };
    if (!fails) run_ranks(2, program, options);
    else CHECK_THAT(failure(ErrorCode::timeout, options, program), Catch::Contains("did not end #0 all_reduce"));
    CHECK(cuda_host::nccl_communicators() == 0);
  }
}

TEST_CASE("NCCL: a number that an op needs on the host is waited for in the same way") {
  WorldOptions options = own_devices(2);
  options.timeout = kSoon;
  const auto program = [&](Rank& rank) {
    const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
    if (rank.id() == 1) cuda_host::hang_next_nccl_call();
    sum_over_world(rank, data).wait();
    nonzero(Tensor(data));
    check(false, "no number is to be read");
  };
  CHECK_THAT(failure(ErrorCode::timeout, options, program), Catch::Contains("did not end #0 all_reduce"));
}

TEST_CASE("NCCL: a wait that a recording refuses does not fail the world") {
  run_ranks(
      2,
      [](Rank& rank) {
        const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
        sum_over_world(rank, data).wait();
        const Backend& backend = backend_of(rank.device());
        backend.graph_begin(rank.device().index);
        const std::string text = error_of([&] { copy_to(kCpu, data); }, ErrorCode::device);
        backend.graph_abandon(rank.device().index);
        check(text.find("cudaErrorStreamCaptureUnsupported") != std::string::npos, text);
        copy_to(kCpu, data);
      },
      own_devices(2));
}

TEST_CASE("NCCL: groups that hang are ended where a rank does not come to another collective") {
  const ProcessMesh* square = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  WorldOptions options = own_devices(4);
  options.timeout = kSoon;
  const auto program = [&](Rank& rank) {
    const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
    cuda_host::hang_next_nccl_call();
    sum_over_world(rank, data).wait();
    if (rank.id() != 0)
      rank.communicator(square, 0)
          .all_reduce({"add", "x"}, data.raw(), 100, DType::float32, ReduceType::sum, rank.device())
          .wait();
    copy_to(kCpu, data);
    check(false, "nothing is to be read");
  };
  failure(ErrorCode::timeout, options, program);
  CHECK(cuda_host::nccl_communicators() == 0);
  CHECK(cuda_host::nccl_blocked_aborts() == 0);
}

TEST_CASE("NCCL: groups that hang are ended together") {
  const ProcessMesh* square = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  WorldOptions options = own_devices(4);
  options.timeout = kSoon;
  const auto program = [&](Rank& rank) {
    const DenseTensor data = copy_to(rank.device(), small_numbers(100, DType::float32, 1));
    for (const int axis : {0, 1}) {
      cuda_host::hang_next_nccl_call();
      rank.communicator(square, axis)
          .all_reduce({"add", "x"}, data.raw(), 100, DType::float32, ReduceType::sum, rank.device())
          .wait();
    }
    copy_to(kCpu, data);
    check(false, "nothing is to be read");
  };
  CHECK_THAT(failure(ErrorCode::timeout, options, program), Catch::Contains("did not end #0 all_reduce"));
  CHECK(cuda_host::nccl_communicators() == 0);
  CHECK(cuda_host::nccl_blocked_aborts() == 0);
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

}  // namespace nccl_test
