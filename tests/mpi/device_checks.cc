#include "mpi/device_checks.h"

#include <cstdlib>
#include <cstring>

#include "cuda/model/device_collectives.h"
#include "mpi/library_checks.h"
#include "nccl.h"
#include "shard/comm/communicator.h"
#include "shard/core/waiting.h"
#include "shard/testing/tensors.h"
#include "support/mesh_run.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;
using testing::copy_to;

bool is_interrupted = false;

DenseTensor numbers(const Rank& rank) { return copy_to(rank.device(), small_numbers(100, DType::float32, rank.id())); }

void sum_numbers(Rank& rank) {
  const DenseTensor data = numbers(rank);
  sum_over_world(rank, data).wait();
  const DenseTensor sums = copy_to(kCpu, data);
  for (int64_t i = 0; i < sums.meta().dims.numel(); ++i) {
    float expected = 0;
    for (int r = 0; r < rank.world().size(); ++r) expected += small_numbers(100, DType::float32, r).data<float>()[i];
    check(sums.data<float>()[i] == expected, "the sum over ranks");
  }
}

/// Runs a program that fails; the rank's error has one of these texts.
void check_fails(WorldOptions options, const std::vector<std::string>& texts,
                 const std::function<void(Rank&)>& program) {
  const auto world = World::mpi(options);
  std::string text = "no error";
  try {
    world->run(program);
  } catch (const std::exception& error) { text = error.what(); }
  const bool is_told =
      std::any_of(texts.begin(), texts.end(), [&](const std::string& t) { return text.find(t) != std::string::npos; });
  check(is_told, fmt::format("'{}' is in the error: {}", texts[0], text));
}

WorldOptions own_devices_for(std::chrono::milliseconds timeout) {
  WorldOptions options = own_devices(4);
  options.timeout = timeout;
  return options;
}

}  // namespace

void device_checks() {
  const auto world = World::mpi(own_devices(4));
  world->run([](Rank& rank) {
    check_collectives_between_devices(rank);
    sum_numbers(rank);
    // Two collectives of a group that are waited for in the other order, and groups of two on each axis of a mesh.
    const DenseTensor first = numbers(rank), second = numbers(rank);
    Work one = sum_over_world(rank, first), two = sum_over_world(rank, second);
    two.wait();
    one.wait();
    check(std::memcmp(copy_to(kCpu, first).raw(), copy_to(kCpu, second).raw(), first.meta().bytes()) == 0, "both sums");
    const ProcessMesh* square = ProcessMesh::make({2, 2}, {}, {"a", "b"});
    for (const int axis : {0, 1}) {
      const DenseTensor id = copy_to(rank.device(), small_numbers(1, DType::int32, rank.id()));
      const int32_t mine = copy_to(kCpu, id).data<int32_t>()[0];
      const int other = axis == 0 ? rank.id() ^ 2 : rank.id() ^ 1;
      const int32_t theirs = small_numbers(1, DType::int32, other).data<int32_t>()[0];
      const uint64_t calls = cuda_host::nccl_calls();
      rank.communicator(square, axis)
          .all_reduce({"add", "x"}, id.raw(), 1, DType::int32, ReduceType::sum, rank.device())
          .wait();
      check(cuda_host::nccl_calls() == calls + 1, "groups of an axis use NCCL");
      check(copy_to(kCpu, id).data<int32_t>()[0] == mine + theirs, "the sum over an axis");
    }
    // Buffers on the host, and on a device that is not the rank's own.
    const uint64_t calls = cuda_host::nccl_calls();
    int32_t word = rank.id();
    rank.communicator(square, 0).all_reduce({"add", "x"}, &word, 1, DType::int32, ReduceType::sum).wait();
    const Device next{rank.device().backend, static_cast<uint8_t>((rank.device().index + 1) % 4)};
    const DenseTensor elsewhere = copy_to(next, small_numbers(3, DType::int32, 1));
    rank.communicator(square, 0)
        .all_reduce({"add", "x"}, elsewhere.raw(), 3, DType::int32, ReduceType::sum, next)
        .wait();
    check(word == (rank.id() ^ 2) + rank.id() && cuda_host::nccl_calls() == calls, "they go through the host");
    check(copy_to(kCpu, elsewhere).data<int32_t>()[0] == 2 * small_numbers(3, DType::int32, 1).data<int32_t>()[0],
          "the sum of tensors on other devices");
  });
  WorldOptions shared = own_devices(4);
  shared.devices[3] = shared.devices[0];
  World::mpi(shared)->run([](Rank& rank) {
    const uint64_t calls = cuda_host::nccl_calls();
    sum_numbers(rank);
    check(cuda_host::nccl_calls() == calls, "NCCL would refuse two ranks on one device");
  });
}

void device_memory() {
  WorldOptions shared = own_devices(4);
  for (Device& device : shared.devices) device = shared.devices[0];
  // Whether the memory of devices is copied to the host for MPI.
  const auto check_copies = [&](bool expected, const char* what) {
    World::mpi(shared)->run([&](Rank& rank) {
      const DenseTensor data = numbers(rank);
      const uint64_t copies = cuda_host::copies_to_host();
      sum_over_world(rank, data).wait();
      check((cuda_host::copies_to_host() != copies) == expected, what);
    });
  };
  unsetenv("SHARD_MPI_CUDA");
  for (const bool takes : {false, true})
    if (set_mpi_takes_cuda(takes)) check_copies(!takes, "MPI says whether it takes memory of CUDA");
  setenv("SHARD_MPI_CUDA", "0", 1);
  check_copies(true, "the environment has the last word");
  set_mpi_takes_cuda(false);
  setenv("SHARD_MPI_CUDA", "1", 1);
  shared.message_limit = 3000;  // so that messages are in pieces
  World::mpi(shared)->run([](Rank& rank) {
    check_collectives_between_devices(rank, Transport::mpi);
    sum_numbers(rank);
  });
  World::mpi(own_devices(4))->run([](Rank& rank) {
    const uint64_t calls = cuda_host::nccl_calls();
    sum_numbers(rank);
    check(cuda_host::nccl_calls() > calls, "NCCL comes first");
  });
  setenv("SHARD_MPI_CUDA", "yes", 1);
  std::string text;
  try {
    World::mpi(shared);
  } catch (const Error& error) { text = error.what(); }
  check(text.find("SHARD_MPI_CUDA is 'yes': it is 1 where MPI takes memory of CUDA, else 0") != std::string::npos,
        text);
}

void device_faults() {
  check_fails(own_devices(4), {"ncclAllReduce failed: internal error"}, [](Rank& rank) {
    sum_numbers(rank);
    if (rank.id() == 1) cuda_host::fail_next_nccl_call(ncclInternalError);
    sum_numbers(rank);
  });
  // Others may get the error of the first whose time is over.
  check_fails(own_devices_for(400ms), {"rank 2 never joined #0 all_reduce for add argument 'x'"}, [](Rank& rank) {
    if (rank.id() != 2) sum_numbers(rank);
  });
  check_fails(own_devices_for(400ms), {"never finished #1 all_reduce for add argument 'x'", "connected devices"},
              [](Rank& rank) {
                sum_numbers(rank);
                if (rank.id() == 2) cuda_host::stop_next_nccl_call();
                sum_numbers(rank);
              });
  // What the hook of waits throws, as for Ctrl-C, ends a wait for a device as well; the call of rank 2 is never issued.
  set_wait_hooks({.poll = [] {
    if (is_interrupted) throw std::runtime_error("interrupted");
  }});
  check_fails(own_devices_for(60s), {"interrupted"}, [](Rank& rank) {
    sum_numbers(rank);
    is_interrupted = rank.id() == 2;
    if (rank.id() == 2) cuda_host::stop_next_nccl_call();
    const DenseTensor data = numbers(rank);
    sum_over_world(rank, data).wait();
  });
  // So it does where the host waits for what was issued, on a device that does not go on.
  check_fails(own_devices_for(60s), {"interrupted"}, [](Rank& rank) {
    is_interrupted = false;
    if (rank.id() == 2) cuda_host::hang_next_nccl_call();
    const DenseTensor data = numbers(rank);
    sum_over_world(rank, data).wait();
    is_interrupted = rank.id() == 2;
    copy_to(kCpu, data);
    check(rank.id() != 2, "nothing is to be read");  // the model gives the others their results
  });
  set_wait_hooks({});
  check_fails(own_devices_for(400ms), {"did not end #0 all_reduce for add argument 'x'"}, [](Rank& rank) {
    if (rank.id() == 2) cuda_host::hang_next_nccl_call();
    const DenseTensor data = numbers(rank);
    sum_over_world(rank, data).wait();
    copy_to(kCpu, data);
    check(rank.id() != 2, "nothing is to be read");
  });
  check_fails(own_devices_for(60s), {"disk on fire"}, [](Rank& rank) {
    cuda_host::hang_next_nccl_call();
    const DenseTensor data = numbers(rank);
    sum_over_world(rank, data).wait();
    if (rank.id() == 1) throw std::runtime_error("disk on fire");
    copy_to(kCpu, data);
    check(false, "nothing is to be read");
  });
  check_fails(own_devices(4), {"rank 2 expects 4 bytes from rank 0, which sends 8"}, [](Rank& rank) {
    const std::vector<int64_t> sent{4, 4, rank.id() == 0 ? 8 : 4, 4}, received{4, 4, 4, 4};
    const DenseTensor from = numbers(rank), to = numbers(rank);
    rank.communicator(ProcessMesh::make({4}, {}, {"p"}), 0)
        .all_to_all({"shuffle", "x"}, from.raw(), sent, to.raw(), received, rank.device())
        .wait();
  });
  check_fails(own_devices(4), {"ranks have diverged", ", by devices"}, [](Rank& rank) {
    const DenseTensor data = numbers(rank);
    rank.communicator(ProcessMesh::make({4}, {}, {"p"}), 0)
        .all_reduce({"add", "x"}, data.raw(), rank.id() == 3 ? 5 : 6, DType::float32, ReduceType::sum, rank.device())
        .wait();
  });
  WorldOptions debug = own_devices(4);
  debug.debug_comm = true;
  check_fails(debug, {"ranks have diverged"}, [](Rank& rank) {
    const DenseTensor data = rank.id() == 1 ? copy_to(kCpu, numbers(rank)) : numbers(rank);
    rank.communicator(ProcessMesh::make({4}, {}, {"p"}), 0)
        .all_reduce({"add", "x"}, data.raw(), 100, DType::float32, ReduceType::sum,
                    rank.id() == 1 ? kCpu : rank.device())
        .wait();
  });
  check_fails(own_devices(4), {"disk on fire"}, [](Rank& rank) {
    const DenseTensor data = numbers(rank);
    Work work = sum_over_world(rank, data);
    if (rank.id() == 1) throw std::runtime_error("disk on fire");
    work.wait();
  });
  check(cuda_host::nccl_communicators() == 0, "no communicator is left");
}

}  // namespace shard::test
