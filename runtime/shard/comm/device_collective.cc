#include "shard/comm/device_collective.h"

#include <algorithm>
#include <numeric>

#include "shard/core/dense_tensor.h"

namespace shard {
namespace {

using Part = DeviceGroup::Part;

/// Sizes and begins of consecutive parts, one per member, in bytes.
struct Parts {
  explicit Parts(std::vector<size_t> part_sizes) : sizes(std::move(part_sizes)), begins(sizes.size()) {
    std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), size_t{0});
  }
  Parts(const std::vector<int64_t>& counts, size_t element)
      : Parts([&] {
          std::vector<size_t> bytes;
          for (const int64_t count : counts) bytes.push_back(static_cast<size_t>(count) * element);
          return bytes;
        }()) {}
  size_t total() const { return begins.back() + sizes.back(); }
  bool are_equal() const {
    return std::all_of(sizes.begin(), sizes.end(), [&](size_t s) { return s == sizes[0]; });
  }

  std::vector<size_t> sizes, begins;
};

class DeviceCollective {
 public:
  DeviceCollective(DeviceGroup& group, const Collective& c, int me, int size, const DeviceGroup::Poll& poll)
      : group_(group), c_(c), me_(static_cast<size_t>(me)), members_(static_cast<size_t>(size)), poll_(poll) {}

  void run() {
    switch (c_.kind) {
      case CommKind::all_gather: return all_gather(c_.send, Parts(c_.sizes, 1));
      case CommKind::all_to_all: return all_to_all();
      case CommKind::all_reduce: return all_reduce();
      case CommKind::reduce_scatter: return reduce_scatter();
      case CommKind::broadcast:
        if (c_.count > 0) group_.broadcast(c_.receive, static_cast<size_t>(c_.count), c_.root, poll_);
        return;
      case CommKind::exchange: return exchange();
    }
  }

 private:
  char* receive_buffer() const { return static_cast<char*>(c_.receive); }
  char* send_buffer() const { return const_cast<char*>(static_cast<const char*>(c_.send)); }

  /// Memory of the device until the collective has been issued, or given up.
  char* scratch(size_t bytes) {
    scratch_.push_back(DenseTensor::allocate(c_.device, {{static_cast<int64_t>(bytes)}, DType::uint8}));
    return scratch_.back().data<char>();
  }
  /// What follows begins after all that was issued to the device, such as the allocation of scratch.
  void continue_now() const { group_.continue_after(DeviceMark(c_.device).get()); }

  static void add(std::vector<Part>& parts, size_t peer, char* data, size_t bytes) {
    if (bytes > 0) parts.push_back({static_cast<int>(peer), data, bytes});
  }
  void copy_own(char* to, const char* from, size_t bytes) const {
    if (to != from && bytes > 0) copy_bytes(c_.device, to, c_.device, from, bytes);
  }

  void all_gather(const void* send, const Parts& parts) const {
    if (parts.are_equal()) {
      if (parts.sizes[0] > 0) group_.all_gather(send, c_.receive, parts.sizes[0], poll_);
      return;
    }
    char* const mine = const_cast<char*>(static_cast<const char*>(send));
    std::vector<Part> sends, receives;
    for (size_t i = 0; i < members_; ++i) {
      if (i == me_) continue;
      add(sends, i, mine, parts.sizes[me_]);
      add(receives, i, receive_buffer() + parts.begins[i], parts.sizes[i]);
    }
    copy_own(receive_buffer() + parts.begins[me_], mine, parts.sizes[me_]);
    group_.transfer(sends, receives, poll_);
  }

  /// Sends part i of `from` to member i, and receives from it to part i of `to`; without those of this member.
  void transfer_parts(char* from, const Parts& sent, char* to, const Parts& received) const {
    std::vector<Part> sends, receives;
    for (size_t i = 0; i < members_; ++i) {
      if (i == me_) continue;
      add(sends, i, from + sent.begins[i], sent.sizes[i]);
      add(receives, i, to + received.begins[i], received.sizes[i]);
    }
    group_.transfer(sends, receives, poll_);
  }

  void all_to_all() const {
    const Parts sent(c_.sizes, 1), received(c_.receive_sizes, 1);
    copy_own(receive_buffer() + received.begins[me_], send_buffer() + sent.begins[me_], sent.sizes[me_]);
    transfer_parts(send_buffer(), sent, receive_buffer(), received);
  }

  void all_reduce() {
    if (c_.count == 0) return;
    if (group_.reduces(c_.dtype, c_.type)) return group_.all_reduce(c_.receive, c_.count, c_.dtype, c_.type, poll_);
    std::vector<int64_t> counts;
    const auto begin = [&](size_t i) { return c_.count * static_cast<int64_t>(i) / static_cast<int64_t>(members_); };
    for (size_t i = 0; i < members_; ++i) counts.push_back(begin(i + 1) - begin(i));
    const Parts parts(counts, size_of(c_.dtype));
    char* const mine = receive_buffer() + parts.begins[me_];
    reduce_in_member_order(mine, parts);
    continue_now();
    all_gather(mine, parts);
  }

  void reduce_scatter() {
    const Parts parts(c_.sizes, size_of(c_.dtype));
    if (!parts.are_equal() || !group_.reduces(c_.dtype, c_.type))
      return reduce_in_member_order(receive_buffer(), parts);
    if (c_.sizes[0] > 0) group_.reduce_scatter(c_.send, c_.receive, c_.sizes[0], c_.dtype, c_.type, poll_);
  }

  /// Gets this member's part of all buffers and reduces it, with the bits that it has on the host.
  void reduce_in_member_order(char* out, const Parts& parts) {
    const size_t bytes = parts.sizes[me_];
    char* const theirs = scratch(bytes * members_);
    continue_now();
    transfer_parts(send_buffer(), parts, theirs, Parts(std::vector<size_t>(members_, bytes)));
    group_.precede();
    if (bytes == 0) return;
    std::vector<const void*> inputs;
    for (size_t i = 0; i < members_; ++i)
      inputs.push_back(i == me_ ? send_buffer() + parts.begins[me_] : theirs + i * bytes);
    reduce_in_order(c_.device, out, inputs, static_cast<int64_t>(bytes / size_of(c_.dtype)), c_.dtype, c_.type);
  }

  size_t bytes_of(const BoxTransfer& box) const { return static_cast<size_t>(box.extent.numel() * c_.count); }

  /// The bytes from and to each member, as one message.
  Parts message_sizes(const std::vector<BoxTransfer>& boxes) const {
    std::vector<size_t> sizes(members_);
    for (const BoxTransfer& box : boxes) {
      const auto peer = static_cast<size_t>(box.peer);
      if (peer != me_) sizes[peer] += bytes_of(box);
    }
    return Parts(std::move(sizes));
  }

  /// Where the whole message of a member is in the buffer itself: it is one box, which is one run of memory there. Else null.
  char* in_place(const std::vector<BoxTransfer>& boxes, size_t peer, char* buffer, bool sends) const {
    const auto is_peer = [&](const BoxTransfer& box) { return static_cast<size_t>(box.peer) == peer; };
    const auto first = std::find_if(boxes.begin(), boxes.end(), is_peer);
    if (first == boxes.end() || std::any_of(first + 1, boxes.end(), is_peer)) return nullptr;
    const Dims& dims = sends ? first->from_dims : first->to_dims;
    if (!is_contiguous(dims, first->extent)) return nullptr;
    return buffer + offset_of(dims, sends ? first->from_begin : first->to_begin) * c_.count;
  }

  /// Each pair of members exchanges one message, the boxes one after the other.
  void exchange() {
    const Parts sent = message_sizes(c_.sends), received = message_sizes(c_.receives);
    char* const to_send = scratch(sent.total());
    char* const to_unpack = scratch(received.total());
    std::vector<Part> sends, receives;
    std::vector<char*> packs(members_), unpacks(members_);  // where the next box goes; null for those in place
    for (size_t i = 0; i < members_; ++i) {
      if (i == me_) continue;
      char* const from = in_place(c_.sends, i, send_buffer(), true);
      char* const to = in_place(c_.receives, i, receive_buffer(), false);
      if (from == nullptr) packs[i] = to_send + sent.begins[i];
      if (to == nullptr) unpacks[i] = to_unpack + received.begins[i];
      add(sends, i, from == nullptr ? packs[i] : from, sent.sizes[i]);
      add(receives, i, to == nullptr ? unpacks[i] : to, received.sizes[i]);
    }
    for (const BoxTransfer& box : c_.sends) {
      char*& at = packs[static_cast<size_t>(box.peer)];
      if (at == nullptr) continue;
      copy(packed_box(box, at), box_in(send_buffer(), box.from_dims, box.from_begin), box);
      at += bytes_of(box);
    }
    continue_now();
    group_.transfer(sends, receives, poll_);
    for (const BoxTransfer& box : c_.receives) {
      if (static_cast<size_t>(box.peer) != me_) continue;
      copy(box_in(receive_buffer(), box.to_dims, box.to_begin), box_in(send_buffer(), box.from_dims, box.from_begin),
           box);
    }
    group_.precede();
    for (const BoxTransfer& box : c_.receives) {
      char*& at = unpacks[static_cast<size_t>(box.peer)];
      if (at == nullptr) continue;
      copy(box_in(receive_buffer(), box.to_dims, box.to_begin), packed_box(box, at), box);
      at += bytes_of(box);
    }
  }

  static BoxView box_in(char* buffer, const Dims& dims, const Dims& begin) { return {buffer, dims, begin}; }
  static BoxView packed_box(const BoxTransfer& box, char* at) {
    return {at, box.extent, Dims::filled(box.extent.rank(), 0)};
  }
  void copy(const BoxView& to, const BoxView& from, const BoxTransfer& box) const {
    if (bytes_of(box) > 0) copy_box(c_.device, to, from, box.extent, static_cast<size_t>(c_.count));
  }

  DeviceGroup& group_;
  const Collective& c_;
  size_t me_, members_;
  const DeviceGroup::Poll& poll_;
  std::vector<DenseTensor> scratch_;
};

}  // namespace

void run_between_devices(RankDevices& devices, DeviceGroup& group, const Collective& collective, int me, int size,
                         const DeviceMark& start, const DeviceGroup::Poll& poll) {
  DeviceCollective issued(group, collective, me, size, poll);
  try {
    group.begin(collective.describe(), start.get());
    issued.run();
    group.end();
  } catch (...) {
    devices.give_up(text_of(std::current_exception()));  // before the memory that the group works on is freed
    throw;
  }
}

}  // namespace shard
