#include "shard/comm/mpi_operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "shard/comm/buffers.h"
#include "shard/comm/device_collective.h"
#include "shard/comm/mpi_messages.h"
#include "shard/core/box_copy.h"
#include "shard/core/dense_tensor.h"
#include "shard/core/error.h"
#include "shard/kernels/device_work.h"

namespace shard {
namespace {

// Parts that are reduced travel in segments, so that one is reduced, from the cache, while the next
// arrives. Each segment costs a handshake. Segments are as large as the memory for segments from
// all members allows; each member has two slots, used in turn.
constexpr int64_t kSlots = 2;
constexpr int64_t kSlotMemory = 8 << 20;
constexpr int64_t kLeastSegment = 512 << 10;
// Boxes smaller than this to one receiver are packed into one message.
constexpr int64_t kSmallBox = 64 << 10;

enum Phase : int { kFirst, kSecond, kNotes };

/// What a member sends to the others before a collective in debug mode, and before each one between devices.
struct Note {
  uint64_t hash = 0;
  int64_t bytes_to_you = 0;
  char text[240] = {};
  char group_id[128] = {};  // by member 0: that of its DeviceGroup
};

uint64_t hash_of(const std::vector<int>& members) {
  uint64_t hash = members.size();
  for (const int member : members) hash = (hash * 0x9E3779B97F4A7C15ULL) ^ static_cast<uint64_t>(member) ^ (hash >> 31);
  return hash;
}

/// A collective of one process: messages to and from each member, which are in flight from the
/// start. They replace MPI's own collectives, so that nothing blocks forever, no communicator has
/// to be created, and reductions add in rank order. Between devices, messages only let members meet.
class MpiOperation final : public Operation {
 public:
  MpiOperation(MpiChannel& channel, const std::vector<int>& members, int me, Collective collective)
      : channel_(channel), members_(members), me_(me), c_(std::move(collective)), group_hash_(hash_of(members)),
        device_group_id_(c_.device == kCpu ? nullptr : channel.device_group_id(members, c_.device)),
        hash_(c_.hash() ^ group_hash_ ^ (between_devices() ? kBetweenDevices : 0)) {
    channel_.check_alive();
    if (between_devices()) ready_ = DeviceMark(c_.device);
  }

  ~MpiOperation() override {
    const bool ended = messages_.empty() && note_messages_.empty() && slots_[0].empty() && slots_[1].empty();
    if (ended) {
      channel_.give_scratch(std::move(scratch_));
      return;
    }
    messages_.abandon();
    note_messages_.abandon();
    for (Messages& slot : slots_) slot.abandon();
    // Leaked on purpose: it is still being sent from.
    static_cast<void>(new std::vector<char>(std::move(scratch_)));
    if (device_scratch_.defined()) static_cast<void>(new DenseTensor(std::move(device_scratch_)));
    static_cast<void>(new std::vector<Note>(std::move(notes_)));
  }

  void start() {
    messages_.reserve(2 * members_.size());
    if (channel_.options().debug || between_devices()) send_notes();
    if (!between_devices()) begin();
  }

 protected:
  void complete() override {
    channel_.set_rank_status(
        [this] { return "at " + c_.agreement() + fmt::format(" of ranks [{}]", fmt::join(members_, ", ")); });
    try {
      if (!note_messages_.empty()) compare_notes();
      if (between_devices()) run_between_devices();
      else end();
      channel_.set_rank_status({});
    } catch (...) {
      channel_.rank_failed(text_of(std::current_exception()));
      channel_.set_rank_status({});
      throw;
    }
  }

 private:
  int size() const { return static_cast<int>(members_.size()); }
  /// Other buffers of devices come here where MPI takes their memory, and else as copies on the host.
  bool between_devices() const { return device_group_id_ != nullptr; }
  char* receive_buffer() const { return static_cast<char*>(c_.receive); }
  const char* send_buffer() const { return static_cast<const char*>(c_.send); }
  size_t element() const { return size_of(c_.dtype); }

  /// Calls visit(member) for all others, beginning with the next one, so that not all members send
  /// to the same one first.
  template <class F>
  void for_others(F&& visit) const {
    for (int step = 1; step < size(); ++step) visit((me_ + step) % size());
  }

  /// Where buffers are on a device, waits for what this thread has issued to it: MPI does not know of that order.
  void wait_for_device() const {
    if (c_.device != kCpu) backend_of(c_.device).synchronize(c_.device.index);
  }
  /// Memory for this operation beside the buffers, and of their device.
  char* make_scratch(size_t bytes) {
    if (c_.device == kCpu) {
      scratch_ = channel_.take_scratch(bytes);
      return scratch_.data();
    }
    device_scratch_ = DenseTensor::allocate(c_.device, {{static_cast<int64_t>(bytes)}, DType::uint8});
    return device_scratch_.data<char>();
  }

  void send(Messages& to, int member, const void* data, int64_t bytes, Phase phase) const {
    post(to, member, const_cast<void*>(data), bytes, phase, false);
  }
  void receive(Messages& to, int member, void* data, int64_t bytes, Phase phase) const {
    post(to, member, data, bytes, phase, true);
  }
  void post(Messages& to, int member, void* data, int64_t bytes, Phase phase, bool is_receive) const {
    const int peer = members_[static_cast<size_t>(member)];
    const int tag = channel_.tag(phase == kNotes ? group_hash_ + c_.sequence : hash_, phase);
    const MPI_Comm comm = phase == kNotes ? channel_.notes() : channel_.data();
    for (int64_t begin = 0; begin < bytes; begin += channel_.options().message_limit) {
      const int64_t length = std::min(channel_.options().message_limit, bytes - begin);
      char* at = static_cast<char*>(data) + begin;
      MPI_Request request = MPI_REQUEST_NULL;
      if (is_receive)
        check_mpi(MPI_Irecv(at, static_cast<int>(length), MPI_BYTE, peer, tag, comm, &request), "MPI_Irecv");
      else check_mpi(MPI_Isend(at, static_cast<int>(length), MPI_BYTE, peer, tag, comm, &request), "MPI_Isend");
      to.add(request, {member, length, is_receive});
    }
  }

  void wait(Messages& messages, const char* what = "joined") {
    if (messages.empty()) return;
    std::vector<int> ended;
    const int64_t begin = now_ns();
    const auto is_over = [&] {
      if (messages.test(c_, members_)) return true;
      if (!channel_.has_ended_ranks() || channel_.ended_of(members_, begin).empty()) return false;
      ended = channel_.ended_of(messages.unfinished(members_), begin);
      return !ended.empty();
    };
    if (!channel_.wait(is_over, channel_.options().timeout)) fail_timeout(messages.unfinished(members_), what);
    if (ended.empty()) return;
    shard::fail(ErrorCode::communication, "rank {} never {} {}, and has ended its program", fmt::join(ended, ", "),
                what, c_.describe());
  }
  [[noreturn]] void fail_timeout(const std::vector<int>& missing, const char* what) {
    const std::string where = channel_.ask_rank_status(missing);
    shard::fail(ErrorCode::timeout, "rank {} never {} {} within {} ms{}", fmt::join(missing, ", "), what, c_.describe(),
                channel_.options().timeout.count(), where);
  }

  // --- what members tell each other in debug mode, and between devices ---

  void send_notes() {
    notes_.resize(2 * members_.size());  // those that are sent, then those that are received
    const std::string text = what();
    const std::string id = between_devices() && me_ == 0 ? group_id() : "";
    for_others([&](int i) {
      Note& mine = notes_[static_cast<size_t>(i)];
      mine.hash = hash_;
      mine.bytes_to_you = bytes_to(i);
      std::memcpy(mine.text, text.data(), std::min(text.size(), sizeof(mine.text) - 1));
      std::memcpy(mine.group_id, id.data(), id.size());
      send(note_messages_, i, &mine, sizeof(Note), kNotes);
      receive(note_messages_, i, &notes_[members_.size() + static_cast<size_t>(i)], sizeof(Note), kNotes);
    });
  }

  void compare_notes() {
    wait(note_messages_);
    for_others([&](int i) {
      const Note& theirs = notes_[members_.size() + static_cast<size_t>(i)];
      const int peer = members_[static_cast<size_t>(i)];
      if (theirs.hash != hash_) {
        shard::fail(ErrorCode::communication,
                    "ranks have diverged: rank {} is at {}, rank {} at {}. Every rank must make the same calls in the "
                    "same order",
                    channel_.rank(), what(), peer, theirs.text);
      }
      if (theirs.bytes_to_you != bytes_from(i)) {
        shard::fail(ErrorCode::communication, "[{}] in {} rank {} expects {} bytes from rank {}, which sends {}",
                    c_.cause.op, c_.describe(), channel_.rank(), bytes_from(i), peer, theirs.bytes_to_you);
      }
    });
  }

  std::string what() const { return c_.agreement() + (between_devices() ? ", by devices" : ""); }

  int64_t box_bytes(const std::vector<BoxTransfer>& boxes, int member) const {
    int64_t elements = 0;
    for (const BoxTransfer& box : boxes) elements += box.peer == member ? box.extent.numel() : 0;
    return elements * c_.count;
  }
  /// What differs from member to member; the hash has the rest.
  int64_t bytes_to(int member) const {
    if (c_.kind == CommKind::exchange) return box_bytes(c_.sends, member);
    return c_.kind == CommKind::all_to_all ? c_.sizes[static_cast<size_t>(member)] : 0;
  }
  int64_t bytes_from(int member) const {
    if (c_.kind == CommKind::exchange) return box_bytes(c_.receives, member);
    return c_.kind == CommKind::all_to_all ? c_.receive_sizes[static_cast<size_t>(member)] : 0;
  }

  // --- between devices ---

  const std::string& group_id() {
    std::string& id = *device_group_id_;
    if (id.empty()) id = device_work(c_.device)->make_group_id();
    if (id.size() > sizeof(Note::group_id))
      shard::fail(ErrorCode::device, "the id of a group of devices has {} bytes; at most {} are supported", id.size(),
                  sizeof(Note::group_id));
    return id;
  }

  /// Members meet again when all have issued their part, so that no device waits for a part that never comes. A member that fails
  /// first ends what its device is doing.
  void run_between_devices() {
    const auto timeout = channel_.options().timeout;
    const DeviceGroup::Poll poll = [&, give_up = std::chrono::steady_clock::now() + timeout] {
      channel_.check_peers();
      channel_.poll_hooks();
      if (timeout.count() == 0 || std::chrono::steady_clock::now() < give_up) return;
      std::vector<int> others;
      for_others([&](int i) { others.push_back(members_[static_cast<size_t>(i)]); });
      std::sort(others.begin(), others.end());
      fail_timeout(others, "connected devices for");
    };
    const std::string id =
        me_ == 0 ? group_id() : std::string(notes_[members_.size()].group_id, sizeof(Note::group_id));
    DeviceGroup& group = channel_.devices().group(members_, c_.device, id, size(), me_, poll);
    shard::run_between_devices(channel_.devices(), group, c_, me_, size(), ready_, poll);
    scratch_ = channel_.take_scratch(members_.size());
    for_others([&](int i) {
      send(messages_, i, &scratch_[static_cast<size_t>(me_)], 1, kFirst);
      receive(messages_, i, &scratch_[static_cast<size_t>(i)], 1, kFirst);
    });
    wait(messages_, "finished");
  }

  // --- the collectives: how they start, and what remains to be done when they are waited for ---

  void begin() {
    wait_for_device();
    switch (c_.kind) {
      case CommKind::all_gather: return begin_all_gather();
      case CommKind::all_to_all: return begin_all_to_all();
      case CommKind::all_reduce:
        for (int i = 0; i <= size(); ++i) parts_.push_back(c_.count * i / size());
        return begin_reduce();
      case CommKind::reduce_scatter:
        parts_.push_back(0);
        for (const int64_t count : c_.sizes) parts_.push_back(parts_.back() + count);
        return begin_reduce();
      case CommKind::broadcast: return begin_broadcast();
      case CommKind::exchange: return begin_exchange();
    }
  }

  void end() {
    switch (c_.kind) {
      case CommKind::all_gather:
      case CommKind::all_to_all:
      case CommKind::broadcast: return wait(messages_);
      case CommKind::all_reduce:
        reduce(receive_buffer() + static_cast<size_t>(part(me_)) * element());
        wait(messages_);  // the parts that this rank has sent may be overwritten now
        gather_parts();
        return wait(messages_);
      case CommKind::reduce_scatter: reduce(receive_buffer()); return wait(messages_);
      case CommKind::exchange: return end_exchange();
    }
  }

  void begin_all_gather() {
    std::vector<int64_t> begins = {0};
    for (const int64_t bytes : c_.sizes) begins.push_back(begins.back() + bytes);
    const auto mine = static_cast<size_t>(me_);
    for_others([&](int i) {
      receive(messages_, i, receive_buffer() + begins[static_cast<size_t>(i)], c_.sizes[static_cast<size_t>(i)],
              kFirst);
    });
    for_others([&](int i) { send(messages_, i, c_.send, c_.sizes[mine], kFirst); });
    char* own = receive_buffer() + begins[mine];
    if (own != c_.send) copy_bytes(c_.device, own, c_.device, c_.send, static_cast<size_t>(c_.sizes[mine]));
  }

  void begin_all_to_all() {
    const auto begin_of = [](const std::vector<int64_t>& sizes, int member) {
      int64_t begin = 0;
      for (int i = 0; i < member; ++i) begin += sizes[static_cast<size_t>(i)];
      return begin;
    };
    for_others([&](int i) {
      receive(messages_, i, receive_buffer() + begin_of(c_.receive_sizes, i), c_.receive_sizes[static_cast<size_t>(i)],
              kFirst);
    });
    for_others([&](int i) {
      send(messages_, i, send_buffer() + begin_of(c_.sizes, i), c_.sizes[static_cast<size_t>(i)], kFirst);
    });
    copy_bytes(c_.device, receive_buffer() + begin_of(c_.receive_sizes, me_), c_.device,
               send_buffer() + begin_of(c_.sizes, me_), static_cast<size_t>(c_.sizes[static_cast<size_t>(me_)]));
  }

  void begin_broadcast() {
    if (me_ != c_.root) return receive(messages_, c_.root, c_.receive, c_.count, kFirst);
    for_others([&](int i) { send(messages_, i, c_.send, c_.count, kFirst); });
  }

  // --- reductions ---

  int64_t part(int member) const { return parts_[static_cast<size_t>(member)]; }
  int64_t part_size(int member) const { return part(member + 1) - part(member); }
  /// The most elements of a segment.
  int64_t segment() const {
    const auto senders = static_cast<int64_t>(std::bit_ceil(members_.size() - 1));
    const int64_t bytes = std::max(kSlotMemory / (kSlots * senders), kLeastSegment);
    return std::max<int64_t>(std::min(bytes, channel_.options().message_limit) / static_cast<int64_t>(element()), 1);
  }

  /// Sends every member its part, and starts to receive the first segments of this rank's part.
  void begin_reduce() {
    slot_bytes_ = static_cast<size_t>(std::min(segment(), part_size(me_))) * element();
    slot_memory_ = make_scratch(static_cast<size_t>(kSlots * (size() - 1)) * slot_bytes_);
    wait_for_device();
    for (int64_t k = 0; k < kSlots; ++k) receive_segment(k);
    for_others([&](int i) {
      for (int64_t begin = 0; begin < part_size(i); begin += segment()) {
        const int64_t length = std::min(segment(), part_size(i) - begin);
        send(messages_, i, send_buffer() + static_cast<size_t>(part(i) + begin) * element(),
             length * static_cast<int64_t>(element()), kFirst);
      }
    });
  }

  /// The buffer for segment k of this rank's part from `member`.
  char* slot(int64_t k, int member) {
    const int place = member < me_ ? member : member - 1;
    return slot_memory_ + static_cast<size_t>((k % kSlots) * (size() - 1) + place) * slot_bytes_;
  }
  int64_t segment_length(int64_t k) const { return std::clamp<int64_t>(part_size(me_) - k * segment(), 0, segment()); }
  void receive_segment(int64_t k) {
    for_others([&](int i) {
      receive(slots_[static_cast<size_t>(k % kSlots)], i, slot(k, i),
              segment_length(k) * static_cast<int64_t>(element()), kFirst);
    });
  }

  /// Reduces this rank's part of all members' elements, in their order, into `out`.
  void reduce(char* out) {
    std::vector<const void*> inputs(members_.size());
    for (int64_t k = 0; segment_length(k) != 0; ++k) {
      wait(slots_[static_cast<size_t>(k % kSlots)]);
      for (int i = 0; i < size(); ++i) inputs[static_cast<size_t>(i)] = slot(k, i);
      inputs[static_cast<size_t>(me_)] = send_buffer() + static_cast<size_t>(part(me_) + k * segment()) * element();
      reduce_in_order(c_.device, out + static_cast<size_t>(k * segment()) * element(), inputs, segment_length(k),
                      c_.dtype, c_.type);
      wait_for_device();  // before the slot is received into, and the result is sent
      receive_segment(k + kSlots);
    }
  }

  void gather_parts() {
    const auto at = [&](int i) { return receive_buffer() + static_cast<size_t>(part(i)) * element(); };
    const auto bytes = [&](int i) { return part_size(i) * static_cast<int64_t>(element()); };
    for_others([&](int i) { receive(messages_, i, at(i), bytes(i), kSecond); });
    for_others([&](int i) { send(messages_, i, at(me_), bytes(me_), kSecond); });
  }

  // --- boxes ---

  int64_t bytes_of(const BoxTransfer& box) const { return box.extent.numel() * c_.count; }
  /// Large boxes are messages of their own. Both ends agree on which these are, because both know
  /// the extent.
  bool alone(const BoxTransfer& box) const { return bytes_of(box) >= kSmallBox; }

  void begin_exchange() {
    // Packed: the small boxes of a peer one after the other, then each large box that is not
    // contiguous in memory here.
    size_t packed = 0;
    for (const BoxTransfer& box : c_.sends) packed += needs_packing(box, box.from_dims);
    for (const BoxTransfer& box : c_.receives) packed += needs_packing(box, box.to_dims);
    char* at = make_scratch(packed);
    std::vector<Packed> sends;
    at = pack_sends(at, sends);
    wait_for_device();
    for_others([&](int i) { at = begin_receives(i, at); });
    for (const Packed& each : sends) send(messages_, each.member, each.data, each.bytes, each.phase);
    for (const BoxTransfer& box : c_.receives) {
      if (box.peer != me_) continue;
      copy_box(c_.device, {receive_buffer(), box.to_dims, box.to_begin},
               {const_cast<char*>(send_buffer()), box.from_dims, box.from_begin}, box.extent, element_bytes());
    }
  }

  size_t element_bytes() const { return static_cast<size_t>(c_.count); }
  size_t needs_packing(const BoxTransfer& box, const Dims& dims) const {
    if (box.peer == me_ || (alone(box) && is_contiguous(dims, box.extent))) return 0;
    return static_cast<size_t>(bytes_of(box));
  }
  static Dims zeros(const BoxTransfer& box) { return Dims::filled(box.extent.rank(), 0); }

  /// A message of boxes.
  struct Packed {
    int member;
    const char* data;
    int64_t bytes;
    Phase phase;
  };

  char* pack_sends(char* at, std::vector<Packed>& sends) {
    for_others([&](int member) {
      const char* const small = at;
      for (const BoxTransfer& box : c_.sends) {
        if (box.peer == member && !alone(box)) at = pack(box, at);
      }
      sends.push_back({member, small, at - small, kFirst});
      for (const BoxTransfer& box : c_.sends) {
        if (box.peer != member || !alone(box)) continue;
        const char* data = send_buffer() + offset_of(box.from_dims, box.from_begin) * c_.count;
        if (!is_contiguous(box.from_dims, box.extent)) {
          data = at;
          at = pack(box, at);
        }
        sends.push_back({member, data, bytes_of(box), kSecond});
      }
    });
    return at;
  }

  char* begin_receives(int member, char* at) {
    char* small = at;
    for (const BoxTransfer& box : c_.receives) {
      if (box.peer != member || alone(box)) continue;
      unpacks_.push_back({&box, at});
      at += bytes_of(box);
    }
    receive(messages_, member, small, at - small, kFirst);
    for (const BoxTransfer& box : c_.receives) {
      if (box.peer != member || !alone(box)) continue;
      char* data = receive_buffer() + offset_of(box.to_dims, box.to_begin) * c_.count;
      if (!is_contiguous(box.to_dims, box.extent)) {
        data = at;
        unpacks_.push_back({&box, at});
        at += bytes_of(box);
      }
      receive(messages_, member, data, bytes_of(box), kSecond);
    }
    return at;
  }

  char* pack(const BoxTransfer& box, char* to) const {
    copy_box(c_.device, {to, box.extent, zeros(box)}, {const_cast<char*>(send_buffer()), box.from_dims, box.from_begin},
             box.extent, element_bytes());
    return to + bytes_of(box);
  }

  void end_exchange() {
    wait(messages_);
    for (const auto& [box, data] : unpacks_) {
      copy_box(c_.device, {receive_buffer(), box->to_dims, box->to_begin}, {data, box->extent, zeros(*box)},
               box->extent, element_bytes());
    }
  }

  static constexpr uint64_t kBetweenDevices =
      0x5DEECE66D;  // in the hash: members that copy on the host are at another collective

  MpiChannel& channel_;
  const std::vector<int>& members_;
  int me_;
  Collective c_;
  uint64_t group_hash_;
  std::string* device_group_id_;  // of the devices that exchange the data; null where messages have it
  uint64_t hash_;
  Messages messages_;
  std::vector<char> scratch_;
  DenseTensor device_scratch_;
  // Reductions: where the part of each member begins, and the segments that are received.
  std::vector<int64_t> parts_;
  char* slot_memory_ = nullptr;
  size_t slot_bytes_ = 0;
  Messages slots_[kSlots];
  // Exchanges: boxes that are unpacked when all messages have arrived.
  std::vector<std::pair<const BoxTransfer*, char*>> unpacks_;
  // Between devices: where the buffers are ready.
  DeviceMark ready_;
  // Debug mode, and between devices.
  std::vector<Note> notes_;
  Messages note_messages_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MpiChannel& channel, const std::vector<int>& members, int rank, CommQueue& queue)
      : Communicator(members, rank, queue), channel_(channel), queue_(queue) {}

 protected:
  std::unique_ptr<Operation> do_start(Collective collective) override {
    channel_.report_calls_done(queue_.calls_done());
    auto operation = std::make_unique<MpiOperation>(channel_, members(), rank(), std::move(collective));
    operation->start();
    return operation;
  }
  bool takes(Device device) const override {
    return channel_.takes_memory_of(device) || channel_.device_group_id(members(), device) != nullptr;
  }

 private:
  MpiChannel& channel_;
  const CommQueue& queue_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MpiChannel& channel, const std::vector<int>& members, int rank,
                                                    CommQueue& queue) {
  return std::make_unique<MpiCommunicator>(channel, members, rank, queue);
}

}  // namespace shard
