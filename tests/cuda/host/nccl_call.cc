#include "nccl_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "access.h"
#include "memory.h"

namespace cuda_host::nccl {
namespace {

void use_buffer(const Call& call, const void* data, size_t bytes, cuda_host::Kind kind, int device) {
  if (bytes == 0 || data == nullptr) return;
  const int own = device_of(data);
  if (own >= 0 && own != device) finding(call, "a buffer is on another device than the communicator");
  try {
    use_range("a buffer", data, bytes, kind);
  } catch (const Finding& found) { finding(call, found.what()); }
}

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  if (op == ncclMax) return std::max(a, b);
  if (op == ncclMin) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {  // wraps around
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<T>(op == ncclProd ? x * y : x + y);
  } else {
    return op == ncclProd ? a * b : a + b;
  }
}

/// Added from the last member to the first, so that nobody relies on an order.
template <class T>
void reduce(const Calls& members, size_t begin, size_t count, ncclRedOp_t op, char* out) {
  std::vector<T> sum(count);
  for (size_t n = members.size(); n-- > 0;) {
    const T* const values = reinterpret_cast<const T*>(members[n]->send) + begin;
    for (size_t i = 0; i < count; ++i) {
      const T value = op == ncclAvg ? static_cast<T>(values[i] / static_cast<T>(members.size())) : values[i];
      sum[i] = n + 1 == members.size() ? value : combine(sum[i], value, op);
    }
  }
  if (count > 0) std::memcpy(out, sum.data(), count * sizeof(T));
}

void reduce(const Calls& members, size_t begin, size_t count, const Call& call, char* out) {
  switch (call.type) {
    case ncclUint8: return reduce<uint8_t>(members, begin, count, call.op, out);
    case ncclInt32: return reduce<int32_t>(members, begin, count, call.op, out);
    case ncclInt64: return reduce<int64_t>(members, begin, count, call.op, out);
    case ncclFloat32: return reduce<float>(members, begin, count, call.op, out);
    case ncclFloat64: return reduce<double>(members, begin, count, call.op, out);
  }
}

void move(char* to, const char* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"ncclAllGather",     "ncclBroadcast", "ncclAllReduce",
                                    "ncclReduceScatter", "ncclSend",      "ncclRecv"};
  return kNames[static_cast<size_t>(kind)];
}

size_t size_of(ncclDataType_t type) { return type == ncclUint8 ? 1 : type == ncclInt32 || type == ncclFloat32 ? 4 : 8; }

size_t send_bytes(const Call& call, int size) {
  return call.count * size_of(call.type) * (call.kind == Kind::reduce_scatter ? static_cast<size_t>(size) : 1);
}
size_t receive_bytes(const Call& call, int size) {
  return call.count * size_of(call.type) * (call.kind == Kind::all_gather ? static_cast<size_t>(size) : 1);
}

void finding(const Call& call, const std::string& what) {
  throw Finding(fmt::format("{} of member {}: {}", name_of(call.kind), call.member, what));
}

void stuck(const Call& call, const std::string& what) {
  throw Stuck(fmt::format("{} of member {}: {}", name_of(call.kind), call.member, what));
}

void check_runs(const Call& call) {
  if (call.hangs != nullptr && *call.hangs) stuck(call, "the device does not go on");
}

void arrive(Call& call) {
  call.has_arrived = true;
  call.stream_number = stream_number(call.stream);
  call.arrival = stream_clock(call.stream);
}

void use_buffers(const Call& call, int size, int device) {
  const StreamScope scope(call.stream_number, call.arrival);
  use_buffer(call, call.send, send_bytes(call, size), cuda_host::Kind::read, device);
  use_buffer(call, call.receive, receive_bytes(call, size), cuda_host::Kind::write, device);
}

void check_fits(const Call& call, const Call& partner) {
  if (partner.count == call.count && partner.type == call.type &&
      (is_transfer(call) || (partner.kind == call.kind && partner.op == call.op && partner.peer == call.peer)))
    return;
  finding(call, fmt::format("member {} calls {} with other arguments", partner.member, name_of(partner.kind)));
}

std::vector<char> result_of(const Calls& members, size_t i) {
  const Call& first = *members[0];
  const size_t bytes = first.count * size_of(first.type);
  std::vector<char> result(first.kind == Kind::all_gather ? bytes * members.size() : bytes);
  switch (first.kind) {
    case Kind::all_gather:
      for (size_t k = 0; k < members.size(); ++k) move(result.data() + k * bytes, members[k]->send, bytes);
      break;
    case Kind::broadcast: move(result.data(), members[static_cast<size_t>(first.peer)]->send, bytes); break;
    case Kind::all_reduce: reduce(members, 0, first.count, first, result.data()); break;
    default: reduce(members, i * first.count, first.count, first, result.data());
  }
  return result;
}

void give(const Call& call, const std::vector<char>& result) {
  move(call.receive, result.data(), result.size());
  mark_written(call.receive, result.size());
}

}  // namespace cuda_host::nccl
