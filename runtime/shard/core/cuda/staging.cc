#include "shard/core/cuda/staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/cuda/data_error.cuh"
#include "shard/core/waiting.h"

namespace shard::cuda {
namespace {

constexpr size_t kSlot = size_t{2} << 20;  // bytes: a copy of them takes longer than starting one
constexpr size_t kSlots = 4;

/// Pinned memory for one copy, and the end of that copy.
class Slot {
 public:
  Slot() { check(cudaMallocHost(&data_, kSlot), "cudaMallocHost"); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot() {
    cudaEventSynchronize(done_.get());
    cudaFreeHost(data_);
  }

  /// The memory, after the last copy has ended.
  char* data() const {
    wait_for_event(done_.get());
    return static_cast<char*>(data_);
  }
  /// Copies `bytes` bytes of this memory, which the last copy has left, to the device.
  void send(void* to, size_t bytes) {
    check(cudaMemcpyAsync(to, data_, bytes, cudaMemcpyHostToDevice, stream()), "cudaMemcpyAsync (host to device)");
    done_.record();
  }
  void fetch(const void* from, size_t bytes) {
    data();  // the last copy may be of the other stream of this thread
    check(cudaMemcpyAsync(data_, from, bytes, cudaMemcpyDeviceToHost, stream()), "cudaMemcpyAsync (device to host)");
    done_.record();
  }

 private:
  Event done_;
  void* data_ = nullptr;
};

/// The slots of this thread and the current device. They take turns, from call to call.
struct Slots {
  std::array<Slot, kSlots> all;
  size_t next = 0;

  Slot& take() { return all[next++ % kSlots]; }
};

Slots& slots() {
  thread_local std::map<int, Slots> of_device;  // not an array: see CommunicationStreams
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  return of_device[index];
}

}  // namespace

void copy_from_host_staged(void* to, const void* from, size_t bytes) {
  Slots& ours = slots();
  for (size_t at = 0; at < bytes; at += kSlot) {
    const size_t count = std::min(kSlot, bytes - at);
    Slot& slot = ours.take();
    std::memcpy(slot.data(), static_cast<const char*>(from) + at, count);
    slot.send(static_cast<char*>(to) + at, count);
  }
}

void copy_to_host_staged(void* to, const void* from, size_t bytes) {
  if (device_watch() != nullptr)
    wait_for_stream();  // here, where hooks may be called, and not in the middle of the copy
  Slots& ours = slots();
  const size_t pieces = (bytes + kSlot - 1) / kSlot, first = ours.next;
  const auto size_of_piece = [&](size_t piece) { return std::min(kSlot, bytes - piece * kSlot); };
  // While a piece is copied from its slot, the device fills the others.
  for (size_t issued = 0, done = 0; done < pieces; ++done) {
    for (; issued < std::min(pieces, done + kSlots); ++issued)
      ours.take().fetch(static_cast<const char*>(from) + issued * kSlot, size_of_piece(issued));
    const Slot& slot = ours.all[(first + done) % kSlots];
    std::memcpy(static_cast<char*>(to) + done * kSlot, slot.data(), size_of_piece(done));
  }
  throw_data_error();  // the last piece came after everything else
}

}  // namespace shard::cuda
