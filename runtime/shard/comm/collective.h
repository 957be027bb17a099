// The description of a collective: the facts that members compare and that transports execute.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shard/core/device.h"
#include "shard/core/dims.h"
#include "shard/core/dtype.h"
#include "shard/core/export.h"
#include "shard/core/reduce_type.h"

namespace shard {

/// The op call and argument that caused a collective. The strings live as long as the library.
struct CommCause {
  std::string_view op = "user";
  std::string_view argument = "";
};

enum class CommKind : uint8_t { all_gather, all_to_all, all_reduce, reduce_scatter, broadcast, exchange };
inline constexpr int kNumCommKinds = 6;

/// "all_gather", ...
SHARD_API std::string_view to_string(CommKind kind);

/// A box of elements that is copied from a buffer of the sender, of shape `from_dims`, to one of
/// the receiver, of shape `to_dims`. Both are row-major. Sender and receiver describe it alike,
/// except for `peer`: the other one's position in the group.
struct BoxTransfer {
  int peer = 0;
  Dims from_dims, from_begin;
  Dims to_dims, to_begin;
  Dims extent;
};

/// One collective. Its kind determines which fields are used.
struct SHARD_API Collective {
  CommKind kind;
  CommCause cause;
  uint64_t sequence = 0;  // the number of the collective within the group
  const void* send = nullptr;
  void* receive = nullptr;  // all_reduce, broadcast: the only buffer
  // of each member: all_gather bytes, reduce_scatter elements; all_to_all: bytes to each
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> receive_sizes = {};  // all_to_all: bytes from each
  std::vector<BoxTransfer> sends = {};      // exchange
  std::vector<BoxTransfer> receives = {};   // exchange
  int64_t count = 0;                        // all_reduce: elements; broadcast: bytes; exchange: bytes of an element
  DType dtype = DType::uint8;               // of reductions
  ReduceType type = ReduceType::sum;        // of reductions
  int root = 0;                             // broadcast
  Device device = kCpu;                     // of this member's buffers

  /// The bytes of the buffers of member `me`. Of a buffer of boxes, to the end of the shape that they are in.
  size_t send_bytes(int me) const;
  size_t receive_bytes(int me) const;
  /// "#183 all_gather for matmul argument 'y'"
  std::string describe() const;
  /// The facts that must be equal on all members, as text: "#4 all_reduce of 5 float32 (sum) for
  /// add argument 'x'".
  std::string agreement() const;
  /// True when `other` is the same collective, as another member sees it.
  bool agrees_with(const Collective& other) const;
  /// A hash of the facts that agrees_with() compares.
  uint64_t hash() const;
};

/// Throws communication unless the k-th box of `sender` (position `from`) for position `to` is the
/// k-th that `receiver` expects.
SHARD_API void check_boxes(const Collective& sender, int from, const Collective& receiver, int to);

}  // namespace shard
