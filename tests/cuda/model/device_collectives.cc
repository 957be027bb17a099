#include "cuda/model/device_collectives.h"

#include <cstring>
#include <functional>
#include <numeric>

#include "nccl.h"
#include "shard/comm/communicator.h"
#include "shard/testing/tensors.h"
#include "support/mesh_run.h"

namespace shard::test {
namespace {

using testing::copy_to;
using testing::random_tensor;

DenseTensor bytes(int64_t count, int seed) {
  return random_tensor({count}, DType::uint8, static_cast<unsigned>(seed) + 1);
}

bool same(const DenseTensor& a, const DenseTensor& b) {
  return a.meta().bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.meta().bytes()) == 0;
}

using Collect = std::function<Work(Device, const void* send, void* receive)>;

/// The devices that exchange data, and how.
struct Between {
  Device device;
  Transport transport;
};

/// Runs a collective on the rank's device, which must use the transport where it moves something, and on the host.
void compare(const Between& between, const std::string& what, const DenseTensor& send, const DenseTensor& receive,
             bool moves, const Collect& collect) {
  const Device device = between.device;
  const DenseTensor on_device = copy_to(device, send), result = copy_to(device, receive);
  const uint64_t calls = cuda_host::nccl_calls(), waits = cuda_host::synchronisations(),
                 copies = cuda_host::copies_to_host();
  collect(device, on_device.raw(), result.raw()).wait();
  check(cuda_host::copies_to_host() == copies, what + " makes no copy on the host");
  if (between.transport == Transport::nccl) {
    check(cuda_host::synchronisations() == waits, what + " does not wait for the device");
    check(!moves || cuda_host::nccl_calls() > calls, what + " is done by NCCL");
  } else {
    check(cuda_host::nccl_calls() == calls, what + " is done by MPI");
  }
  const DenseTensor sent = copy_to(kCpu, send), expected = copy_to(kCpu, receive);
  collect(kCpu, sent.raw(), expected.raw()).wait();
  check(same(copy_to(kCpu, result), expected), what + " gives what it gives on the host");
}

void compare_gathers(Communicator& group, const Between& between) {
  const int me = group.rank();
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {8, 8, 8, 8}, {3, 0, 70, 12}, {0, 0, 5, 0}, {0, 0, 0, 0}, {90'001, 90'000, 90'002, 90'003}}) {
    const std::span<const int64_t> of_members(sizes.data(), static_cast<size_t>(group.size()));
    const int64_t total = std::accumulate(of_members.begin(), of_members.end(), int64_t{0});
    const DenseTensor mine = bytes(of_members[static_cast<size_t>(me)], me);
    compare(between, "all_gather", mine, bytes(total, 9), total > 0, [&](Device at, const void* from, void* to) {
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
    compare(between, "all_to_all", bytes(total(sends), me), bytes(total(receives), 9), unit > 0,
            [&](Device at, const void* from, void* to) {
              return group.all_to_all({"test", "shuffle"}, from, sends, to, receives, at);
            });
  }
  for (int root = 0; root < group.size(); ++root) {
    for (const int64_t count : {0, 3, 5000}) {
      compare(between, "broadcast", bytes(1, 0), bytes(count, me), count > 0, [&](Device at, const void*, void* to) {
        return group.broadcast({"test", "root"}, to, count, root, at);
      });
    }
  }
}

void compare_reductions(Communicator& group, const Between& between, DType dtype, ReduceType type) {
  const int me = group.rank(), n = group.size();
  const std::string what = std::string(to_string(dtype)) + " " + std::string(to_string(type));
  for (const int64_t count : {0, 1, 5, 1000}) {
    compare(between, "all_reduce of " + what, bytes(1, 0), small_numbers(count, dtype, me), count > 0,
            [&](Device at, const void*, void* data) {
              return group.all_reduce({"test", "sum"}, data, count, dtype, type, at);
            });
  }
  for (const std::vector<int64_t>& parts :
       std::vector<std::vector<int64_t>>{{6, 6, 6, 6}, {4, 0, 7, 33}, {0, 0, 0, 0}}) {
    const std::span<const int64_t> counts(parts.data(), static_cast<size_t>(n));
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    compare(between, "reduce_scatter of " + what, small_numbers(total, dtype, me),
            small_numbers(counts[static_cast<size_t>(me)], dtype, 1), total > 0,
            [&](Device at, const void* from, void* to) {
              return group.reduce_scatter({"test", "scatter"}, from, to, counts, dtype, type, at);
            });
  }
}

/// Boxes of rows: several to a member, one to another, those to itself, and none.
void compare_exchanges(Communicator& group, const Between& between) {
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
  compare(between, "exchange", bytes(dims.numel() * 4, me), bytes(dims.numel() * 4, 9), true,
          [&](Device at, const void* from, void* to) {
            return group.exchange({"test", "boxes"}, from, sends, to, receives, 4, at);
          });
  compare(between, "exchange of one box", bytes(dims.numel(), me), bytes(dims.numel(), 9), me <= 1,
          [&](Device at, const void* from, void* to) {
            const BoxTransfer box{me == 0 ? 1 : 0, dims, {20, 0}, dims, {3, 0}, {4, 30}};
            const std::vector<BoxTransfer> one{box}, none;
            return group.exchange({"test", "box"}, from, me == 0 ? one : none, to, me == 1 ? one : none, 1, at);
          });
}

}  // namespace

WorldOptions own_devices(int ranks) {
  WorldOptions options;
  for (int i = 0; i < ranks; ++i)
    options.devices.push_back({static_cast<uint8_t>(find_backend("cuda")), static_cast<uint8_t>(i)});
  return options;
}

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

void check_collectives_between_devices(Rank& rank, Transport transport) {
  const Between between{rank.device(), transport};
  Communicator& group = rank.communicator(ProcessMesh::make({rank.world().size()}, {}, {"p"}), 0);
  compare_gathers(group, between);
  compare_exchanges(group, between);
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int t = 0; t < kNumReduceTypes; ++t)
      compare_reductions(group, between, static_cast<DType>(d), static_cast<ReduceType>(t));
  }
}

Work sum_over_world(Rank& rank, const DenseTensor& data) {
  return rank.communicator(ProcessMesh::make({rank.world().size()}, {}, {"p"}), 0)
      .all_reduce({"add", "x"}, data.raw(), data.meta().dims.numel(), DType::float32, ReduceType::sum, rank.device());
}

}  // namespace shard::test
