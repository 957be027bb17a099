// Groups of CUDA devices that exchange data by NCCL (kernels/device_group.h).
#include <nccl.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/error.h"
#include "shard/core/waiting.h"
#include "shard/kernels/cuda/nccl_groups.h"

namespace shard::cuda {
namespace {

using Poll = DeviceGroup::Poll;

void check_nccl(ncclResult_t result, const char* call, ncclComm_t communicator) {
  if (result == ncclSuccess) return;
  fail(result == ncclRemoteError ? ErrorCode::peer_failed : ErrorCode::device, "{} failed: {} ({})", call,
       ncclGetErrorString(result), ncclGetLastError(communicator));
}

struct Reduction {
  ncclDataType_t type;
  ncclRedOp_t op;
};

std::optional<ncclDataType_t> number_type(DType dtype) {
  switch (dtype) {
    case DType::float32: return ncclFloat32;
    case DType::float64: return ncclFloat64;
    case DType::int32: return ncclInt32;
    case DType::int64: return ncclInt64;
    case DType::uint8: return ncclUint8;
    case DType::bfloat16:  // NCCL rounds each sum to 16 bits
    case DType::float16:
    case DType::boolean: return std::nullopt;
  }
  return std::nullopt;
}

/// How NCCL makes what shard defines; nothing where it does not. Its largest of a NaN and a number may be the number, it truncates
/// averages of integers differently, and multiplies floats by 1 / size before it adds them, which is exact for powers of 2.
std::optional<Reduction> reduction(DType dtype, ReduceType type, int size) {
  if (dtype == DType::boolean) {  // bytes of 0 and 1
    const bool one_is_enough =
        type == ReduceType::sum || type == ReduceType::avg || type == ReduceType::max || type == ReduceType::any;
    return Reduction{ncclUint8, one_is_enough ? ncclMax : ncclMin};
  }
  const auto number = number_type(dtype);
  if (!number) return std::nullopt;
  const bool is_float = dtype == DType::float32 || dtype == DType::float64;
  switch (type) {
    case ReduceType::sum: return Reduction{*number, ncclSum};
    case ReduceType::prod: return Reduction{*number, ncclProd};
    case ReduceType::avg:
      if (!is_float || !std::has_single_bit(static_cast<unsigned>(size))) return std::nullopt;
      return Reduction{*number, ncclAvg};
    case ReduceType::max:
    case ReduceType::min:
      if (is_float) return std::nullopt;
      return Reduction{*number, type == ReduceType::max ? ncclMax : ncclMin};
    case ReduceType::any:
    case ReduceType::all: return std::nullopt;
  }
  return std::nullopt;
}

/// Its communicator does not block: a call may return before all members have made it, and NCCL then issues the work from a thread
/// of its own, to which cudaStreamPerThread would be another stream. So the groups of a rank have a stream, which also lets kernels run
/// beside what they transfer. They share one because NCCL wants one order of the collectives of several communicators on all devices.
class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(int index, const std::string& id, int size, int rank, const NcclGroup* other)
      : index_(index), id_(id), size_(size), rank_(rank),
        owned_stream_(other != nullptr ? other->owned_stream_ : std::make_shared<OwnedStream>(index)),
        stream_(owned_stream_->handle) {}
  ~NcclGroup() override {
    const ReleaseScope scope(index_);
    if (communicator_ != nullptr) ncclCommDestroy(communicator_);
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  void join(const Poll& poll) override {
    const DeviceScope scope(index_);
    ncclUniqueId unique;
    std::memcpy(static_cast<void*>(&unique), id_.data(), sizeof(unique));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    settle(ncclCommInitRankConfig(&communicator_, size_, unique, rank_, &config), "ncclCommInitRankConfig", poll);
  }

  void begin(std::string what, void* mark) override {
    const DeviceScope scope(index_);
    issued_.emplace_back(std::move(what));
    continue_after(mark);
    drop_ended();
  }

  void continue_after(void* mark) override {
    const DeviceScope scope(index_);
    check(cudaStreamWaitEvent(stream_, static_cast<const Event*>(mark)->get(), 0), "cudaStreamWaitEvent");
    // Time before the mark is reached is that of other work of the device.
    check(cudaEventRecord(issued_.back().begin.get(), stream_), "cudaEventRecord");
  }

  void precede() override {
    const DeviceScope scope(index_);
    const Event& end = issued_.back().end;
    check(cudaEventRecord(end.get(), stream_), "cudaEventRecord");
    end.precede();
  }

  void end() override {
    precede();
    issued_.back().is_issued = true;
  }

  void all_gather(const void* send, void* receive, size_t bytes, const Poll& poll) override {
    const DeviceScope scope(index_);
    settle(ncclAllGather(send, receive, bytes, ncclUint8, communicator_, stream_), "ncclAllGather", poll);
  }

  void broadcast(void* data, size_t bytes, int root, const Poll& poll) override {
    const DeviceScope scope(index_);
    settle(ncclBroadcast(data, data, bytes, ncclUint8, root, communicator_, stream_), "ncclBroadcast", poll);
  }

  void transfer(std::span<const Part> sends, std::span<const Part> receives, const Poll& poll) override {
    if (sends.empty() && receives.empty()) return;
    const DeviceScope scope(index_);
    check_nccl(ncclGroupStart(), "ncclGroupStart", communicator_);
    ncclResult_t result = ncclSuccess;
    const auto goes_on = [&] { return result == ncclSuccess || result == ncclInProgress; };
    for (const Part& part : sends) {
      if (goes_on()) result = ncclSend(part.data, part.bytes, ncclUint8, part.peer, communicator_, stream_);
    }
    for (const Part& part : receives) {
      if (goes_on()) result = ncclRecv(part.data, part.bytes, ncclUint8, part.peer, communicator_, stream_);
    }
    const ncclResult_t ended = ncclGroupEnd();
    settle(goes_on() ? ended : result, "a group of ncclSend and ncclRecv", poll);
  }

  bool reduces(DType dtype, ReduceType type) const override { return reduction(dtype, type, size_).has_value(); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceType type, const Poll& poll) override {
    const DeviceScope scope(index_);
    const Reduction how = *reduction(dtype, type, size_);
    settle(ncclAllReduce(data, data, static_cast<size_t>(count), how.type, how.op, communicator_, stream_),
           "ncclAllReduce", poll);
  }

  void reduce_scatter(const void* send, void* receive, int64_t count, DType dtype, ReduceType type,
                      const Poll& poll) override {
    const DeviceScope scope(index_);
    const Reduction how = *reduction(dtype, type, size_);
    settle(ncclReduceScatter(send, receive, static_cast<size_t>(count), how.type, how.op, communicator_, stream_),
           "ncclReduceScatter", poll);
  }

  std::optional<Unfinished> unfinished() override {
    if (communicator_ == nullptr) return std::nullopt;
    const DeviceScope scope(index_);
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError", communicator_);
    if (state != ncclInProgress) check_nccl(state, "a collective of NCCL", communicator_);
    drop_ended();
    if (issued_.empty()) return std::nullopt;
    Issued& oldest = issued_.front();
    const auto now = std::chrono::steady_clock::now();
    if (!oldest.begun && has_reached(oldest.begin)) oldest.begun = now;
    return Unfinished{oldest.what, oldest.begun ? now - *oldest.begun : std::chrono::nanoseconds(0)};
  }

  void abort() override {
    if (communicator_ == nullptr) return;
    const ReleaseScope scope(index_);
    ncclCommAbort(std::exchange(communicator_, nullptr));
  }

  /// Of the ranks of a process, ncclCommAbort of the last alone waits for the kernels, which leave; but each rank frees memory.
  void wait_for_end() override {
    const ReleaseScope scope(index_);
    ignore(cudaStreamSynchronize(stream_));
  }

 private:
  struct OwnedStream {
    explicit OwnedStream(int index) {
      const DeviceScope scope(index);
      check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    ~OwnedStream() { cudaStreamDestroy(handle); }
    OwnedStream(const OwnedStream&) = delete;
    OwnedStream& operator=(const OwnedStream&) = delete;

    cudaStream_t handle = nullptr;
  };

  /// A collective, from its begin until the device has ended it.
  struct Issued {
    explicit Issued(std::string text) : what(std::move(text)) {}

    std::string what;
    Event begin, end;
    bool is_issued = false;
    std::optional<std::chrono::steady_clock::time_point> begun;
  };

  static bool has_reached(const Event& event) {
    const cudaError_t status = cudaEventQuery(event.get());
    if (status == cudaErrorNotReady) cudaGetLastError();  // otherwise the next launch would report it
    else check(status, "cudaEventQuery");
    return status == cudaSuccess;
  }

  void drop_ended() {
    while (!issued_.empty() && issued_.front().is_issued && has_reached(issued_.front().end)) issued_.pop_front();
  }

  /// Waits until NCCL has issued the work of a call, which returned `result`, to the stream.
  void settle(ncclResult_t result, const char* call, const Poll& poll) const {
    for (int turn = 0; result == ncclSuccess || result == ncclInProgress; ++turn) {
      check_nccl(ncclCommGetAsyncError(communicator_, &result), "ncclCommGetAsyncError", communicator_);
      if (result == ncclSuccess) return;
      if (result != ncclInProgress) break;
      poll();
      pause_wait(turn);  // the first call of a kind connects the devices, which takes long
    }
    check_nccl(result, call, communicator_);
  }

  const int index_;
  const std::string id_;
  const int size_, rank_;
  ncclComm_t communicator_ = nullptr;
  const std::shared_ptr<const OwnedStream> owned_stream_;
  const cudaStream_t stream_;
  std::deque<Issued> issued_;
};

std::string machine_id(int index) {
  char bus[32] = {};
  check(cudaDeviceGetPCIBusId(bus, sizeof(bus), index), "cudaDeviceGetPCIBusId");
  return bus;
}

std::string make_group_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
  return {reinterpret_cast<const char*>(&id), sizeof(id)};
}

std::unique_ptr<DeviceGroup> make_group(int index, const std::string& id, int size, int rank,
                                        const DeviceGroup* other) {
  return std::make_unique<NcclGroup>(index, id, size, rank, static_cast<const NcclGroup*>(other));
}

}  // namespace

void add_nccl_groups(DeviceWork& work) {
  work.machine_id = machine_id;
  work.make_group_id = make_group_id;
  work.make_group = make_group;
}

}  // namespace shard::cuda
