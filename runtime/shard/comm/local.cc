#include "shard/comm/local.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <condition_variable>

#include "shard/comm/buffers.h"
#include "shard/comm/device_collective.h"
#include "shard/core/dense_tensor.h"
#include "shard/core/error.h"
#include "shard/kernels/device_work.h"

namespace shard {

// Members publish their buffers when they start a collective. When they wait for it, they meet,
// copy from each other, and meet again before any of them may change or free a published buffer.
struct LocalHub::Group {
  /// The progress of a member in one collective.
  enum Stage : uint8_t { absent, posted, first_done, second_done };

  /// One collective in flight.
  struct Round {
    explicit Round(size_t size) : posts(size, nullptr), stages(size, absent), marks(size) {}
    bool all_reached(Stage stage) const {
      for (const Stage reached : stages) {
        if (reached < stage) return false;
      }
      return true;
    }

    std::vector<const Collective*> posts;
    std::vector<Stage> stages;
    std::vector<std::array<DeviceMark, 4>> marks;  // of each member, by stage, in the work of its device
    int copying = 0;                               // members that are reading buffers of others
    size_t left = 0;
  };

  explicit Group(std::vector<int> members) : members(std::move(members)) {}

  const std::vector<int> members;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Round> rounds;                          // by sequence
  std::map<std::vector<int>, std::string> device_group_ids;  // by the indices of the members' devices
  bool failed = false;
  std::string reason;
};

LocalHub::LocalHub(std::chrono::milliseconds timeout, int size, std::shared_ptr<PartialFailures> failures)
    : timeout_(timeout), partial_failures_(std::move(failures)), calls_done_(static_cast<size_t>(size)) {
  const RankDevices::Peers peers{[this] { check_alive(); }, [this](const std::string& reason) { fail(reason); }};
  for (int rank = 0; rank < size; ++rank) devices_.push_back(std::make_unique<RankDevices>(rank, timeout, peers));
}

LocalHub::~LocalHub() {
  // Members of which some have ended may wait for each other forever.
  for (const auto& devices : devices_) {
    if (failed_) devices->give_up(reason_);
  }
}

void LocalHub::rank_failed(int rank, const std::string& reason) noexcept {
  devices_[static_cast<size_t>(rank)]->give_up(reason);
}

void LocalHub::check_alive() {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  shard::fail(ErrorCode::peer_failed, "{}", reason_);
}

void LocalHub::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  reason_ = reason;
  failed_ = true;
  for (auto& [members, group] : groups_) {
    const std::lock_guard group_lock(group->mutex);
    group->failed = true;
    group->reason = reason;
    group->changed.notify_all();
  }
}

void LocalHub::call_failed(int rank, uint64_t call, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    failed_calls_.add(call, rank, static_cast<int>(calls_done_.size()), text);
    call_failed_ = !failed_calls_.empty();
  }
  fail_on_partial_failure();
}

void LocalHub::report_calls_done(int world_rank, uint64_t calls) {
  calls_done_[static_cast<size_t>(world_rank)] = calls;
  if (call_failed_) fail_on_partial_failure();
}

void LocalHub::fail_on_partial_failure() {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    for (size_t rank = 0; rank < calls_done_.size() && reason.empty(); ++rank) {
      const FailedCalls::PartialFailure failure =
          failed_calls_.find_partial_failure(static_cast<int>(rank), calls_done_[rank]);
      reason = failure.text;
      if (!reason.empty()) partial_failures_->set(failure.call, reason);
    }
  }
  if (!reason.empty()) fail(reason);
}

std::string LocalHub::rank_status(int world_rank) {
  std::string text;
  const std::lock_guard lock(mutex_);
  for (const auto& [members, group] : groups_) {
    size_t i = 0;
    while (i < members.size() && members[i] != world_rank) ++i;
    if (i == members.size()) continue;
    const std::lock_guard group_lock(group->mutex);
    for (const auto& [sequence, round] : group->rounds) {
      if (round.stages[i] == Group::absent || round.posts[i] == nullptr) continue;
      text += fmt::format("{}{} of ranks [{}]", text.empty() ? "" : ", ", round.posts[i]->describe(),
                          fmt::join(members, ", "));
    }
  }
  return text;
}

class LocalOperation final : public Operation {
 public:
  LocalOperation(LocalHub& hub, std::shared_ptr<LocalHub::Group> group, int me, Collective collective)
      : hub_(hub), group_(std::move(group)), me_(static_cast<size_t>(me)), c_(std::move(collective)) {
    const std::lock_guard lock(group_->mutex);
    if (group_->failed) shard::fail(ErrorCode::peer_failed, "{}", group_->reason);
    round_ = &group_->rounds.try_emplace(c_.sequence, group_->members.size()).first->second;
    round_->marks[me_][Group::posted] = DeviceMark(c_.device);
    round_->posts[me_] = &c_;
    reach(Group::posted);
  }

 protected:
  void complete() override {
    std::unique_lock lock(group_->mutex);
    try {
      run(lock);
    } catch (const std::exception& error) {
      if (lock.owns_lock()) lock.unlock();
      devices().give_up(error.what());
      lock.lock();
      // From here on no member begins to copy. Those that are copying already read the published
      // buffers without the lock, and must finish before this rank's entry and buffers may be
      // destroyed.
      group_->changed.wait(lock, [&] { return round_->copying == 0; });
      round_->posts[me_] = nullptr;
      try {
        follow(Group::first_done);
        follow(Group::second_done);
      } catch (...) {  // a device that has failed; the first error counts
      }
      throw;
    }
    round_->posts[me_] = nullptr;
    if (++round_->left == group_->members.size()) group_->rounds.erase(c_.sequence);
  }

 private:
  using Group = LocalHub::Group;
  using Clock = std::chrono::steady_clock;

  const Collective& post(size_t i) const { return *round_->posts[i]; }
  size_t members() const { return group_->members.size(); }
  RankDevices& devices() const { return *hub_.devices_[static_cast<size_t>(group_->members[me_])]; }

  void run(std::unique_lock<std::mutex>& lock) {
    meet(lock, Group::posted);
    if (group_->failed) shard::fail(ErrorCode::peer_failed, "{}", group_->reason);
    for (size_t i = 0; i < members(); ++i) check_agreement(i);
    if (have_own_devices()) return run_between_devices(lock);
    // What a device copies from another one may depend on collectives of that one's groups.
    if (c_.device != kCpu && hub_.has_device_groups_) devices().watch();
    const CommunicationScope apart(c_.device);  // from kernels that were issued after the collective began
    follow(Group::posted);
    step(lock, Group::first_done, [&] { copy(); });
    if (c_.kind == CommKind::all_reduce) step(lock, Group::second_done, [&] { gather_reduced(); });
  }

  /// True where each member's buffers are on a device of its own, and these exchange data by themselves.
  bool have_own_devices() const {
    if (members() < 2 || c_.device == kCpu || device_work(c_.device)->make_group == nullptr) return false;
    for (size_t i = 0; i < members(); ++i) {
      if (post(i).device.backend != c_.device.backend) return false;
      for (size_t k = 0; k < i; ++k) {
        if (post(i).device == post(k).device) return false;
      }
    }
    return true;
  }

  /// Members meet again when all have issued their part, so that no device waits for a part that never comes. A member that fails
  /// first ends what its device is doing, and only then counts as done with the buffers of others.
  void run_between_devices(std::unique_lock<std::mutex>& lock) {
    const int me = static_cast<int>(me_), size = static_cast<int>(members());
    const std::vector<int> indices = device_indices();
    std::string& id = group_->device_group_ids[indices];
    if (id.empty()) id = device_work(c_.device)->make_group_id();
    hub_.has_device_groups_ = true;
    ++round_->copying;
    try {
      lock.unlock();
      check_sizes();
      const DeviceGroup::Poll poll = [this, give_up = Clock::now() + hub_.timeout_] { check_peers(give_up); };
      std::vector<int> key = group_->members;
      key.insert(key.end(), indices.begin(), indices.end());
      DeviceGroup& group = devices().group(key, c_.device, id, size, me, poll);
      shard::run_between_devices(devices(), group, c_, me, size, round_->marks[me_][Group::posted], poll);
      lock.lock();
      reach(Group::first_done);
      meet(lock, Group::first_done);
    } catch (...) {
      if (lock.owns_lock()) lock.unlock();
      devices().give_up(text_of(std::current_exception()));
      lock.lock();
      --round_->copying;
      group_->changed.notify_all();
      throw;
    }
    --round_->copying;
  }

  /// Those of the members' devices, and their backend.
  std::vector<int> device_indices() const {
    std::vector<int> indices;
    for (size_t i = 0; i < members(); ++i) indices.push_back(post(i).device.index);
    indices.push_back(c_.device.backend);
    return indices;
  }

  /// Called while a member waits for the devices of others.
  void check_peers(Clock::time_point give_up) {
    std::unique_lock lock(group_->mutex);
    if (group_->failed) shard::fail(ErrorCode::peer_failed, "{}", group_->reason);
    if (Clock::now() > give_up) fail_timeout(lock, Group::first_done);
  }

  /// That members expect what the others send. Of other kinds, all sizes are among the facts that members agree on.
  void check_sizes() const {
    for (size_t i = 0; i < members(); ++i) {
      if (c_.kind == CommKind::all_to_all) check_part(i);
      if (c_.kind == CommKind::exchange) check_boxes(post(i), static_cast<int>(i), c_, static_cast<int>(me_));
    }
  }

  void reach(Group::Stage stage) {
    round_->stages[me_] = stage;
    if (round_->all_reached(stage)) group_->changed.notify_all();
  }

  /// Runs `work`, which reads buffers of others, without the lock; then waits until all members
  /// have done so.
  template <class F>
  void step(std::unique_lock<std::mutex>& lock, Group::Stage stage, F&& work) {
    if (group_->failed) shard::fail(ErrorCode::peer_failed, "{}", group_->reason);
    ++round_->copying;
    lock.unlock();
    std::exception_ptr error;
    DeviceMark mark;
    try {
      work();
    } catch (...) { error = std::current_exception(); }
    try {
      mark = DeviceMark(c_.device);  // also behind the reads of work that failed
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    lock.lock();
    round_->marks[me_][stage] = std::move(mark);
    --round_->copying;
    if (group_->failed && round_->copying == 0) group_->changed.notify_all();
    if (error) std::rethrow_exception(error);
    reach(stage);
    meet(lock, stage);
    follow(stage);
  }

  /// What this thread issues to its device from here on begins after what all members did up to `stage`.
  void follow(Group::Stage stage) const {
    for (size_t i = 0; i < members(); ++i) round_->marks[i][stage].wait(c_.device);
  }

  /// Waits until all members have reached `stage`.
  void meet(std::unique_lock<std::mutex>& lock, Group::Stage stage) {
    const bool in_time =
        group_->changed.wait_for(lock, hub_.timeout_, [&] { return round_->all_reached(stage) || group_->failed; });
    if (round_->all_reached(stage)) return;
    if (in_time) shard::fail(ErrorCode::peer_failed, "{}", group_->reason);
    fail_timeout(lock, stage);
  }

  [[noreturn]] void fail_timeout(std::unique_lock<std::mutex>& lock, Group::Stage stage) {
    std::vector<int> missing;
    for (size_t i = 0; i < members(); ++i) {
      if (round_->stages[i] < stage) missing.push_back(group_->members[i]);
    }
    lock.unlock();
    std::string where;
    for (const int rank : missing) {
      const std::string at = hub_.rank_status(rank);
      if (!at.empty()) where += fmt::format("; rank {} is at {}", rank, at);
    }
    shard::fail(ErrorCode::timeout, "rank {} never {} {} within {} ms{}", fmt::join(missing, ", "),
                stage == Group::posted ? "joined" : "finished", c_.describe(), hub_.timeout_.count(), where);
  }

  void check_agreement(size_t i) const {
    if (post(i).agrees_with(c_)) return;
    shard::fail(
        ErrorCode::communication,
        "ranks have diverged: rank {} is at {}, rank {} at {}. Every rank must make the same calls in the same order",
        group_->members[me_], c_.agreement(), group_->members[i], post(i).agreement());
  }

  void copy() {
    switch (c_.kind) {
      case CommKind::all_gather: return all_gather();
      case CommKind::all_to_all: return all_to_all();
      case CommKind::all_reduce: return reduce_own_part();
      case CommKind::reduce_scatter: return reduce_scatter();
      case CommKind::broadcast: return broadcast();
      case CommKind::exchange: return exchange();
    }
  }

  /// Copies `bytes` of what member i sends, from `begin` on.
  void copy_from(size_t i, size_t begin, char* to, size_t bytes) const {
    copy_bytes(c_.device, to, post(i).device, static_cast<const char*>(post(i).send) + begin, bytes);
  }

  void all_gather() const {
    char* to = static_cast<char*>(c_.receive);
    for (size_t i = 0; i < members(); ++i) {
      const auto bytes = static_cast<size_t>(c_.sizes[i]);
      if (to != post(i).send) copy_from(i, 0, to, bytes);
      to += bytes;
    }
  }

  /// Of an all-to-all: that this member expects as many bytes from member i as that one sends.
  void check_part(size_t i) const {
    const int64_t sent = post(i).sizes[me_], expected = c_.receive_sizes[i];
    if (sent == expected) return;
    shard::fail(ErrorCode::communication, "[{}] in {} rank {} expects {} bytes from rank {}, which sends {}",
                c_.cause.op, c_.describe(), group_->members[me_], expected, group_->members[i], sent);
  }

  void all_to_all() const {
    char* to = static_cast<char*>(c_.receive);
    for (size_t i = 0; i < members(); ++i) {
      check_part(i);
      const Collective& peer = post(i);
      const int64_t bytes = c_.receive_sizes[i];
      size_t begin = 0;
      for (size_t k = 0; k < me_; ++k) begin += static_cast<size_t>(peer.sizes[k]);
      copy_from(i, begin, to, static_cast<size_t>(bytes));
      to += bytes;
    }
  }

  int64_t part_begin(size_t member) const {
    return c_.count * static_cast<int64_t>(member) / static_cast<int64_t>(members());
  }

  /// An all-reduce: each member reduces one part of all buffers into its own buffer, where no other
  /// member reads that part. Then all members copy all parts.
  void reduce_own_part() const {
    const int64_t begin = part_begin(me_);
    reduce_posts(static_cast<char*>(c_.receive) + static_cast<size_t>(begin) * size_of(c_.dtype), begin,
                 part_begin(me_ + 1) - begin);
  }
  void gather_reduced() const {
    for (size_t i = 0; i < members(); ++i) {
      const size_t begin = static_cast<size_t>(part_begin(i)) * size_of(c_.dtype);
      const size_t bytes = static_cast<size_t>(part_begin(i + 1)) * size_of(c_.dtype) - begin;
      if (i != me_) copy_from(i, begin, static_cast<char*>(c_.receive) + begin, bytes);
    }
  }

  void reduce_scatter() const {
    int64_t begin = 0;
    for (size_t i = 0; i < me_; ++i) begin += c_.sizes[i];
    reduce_posts(c_.receive, begin, c_.sizes[me_]);
  }

  void reduce_posts(void* out, int64_t begin, int64_t count) const {
    if (count == 0) return;
    const size_t from = static_cast<size_t>(begin) * size_of(c_.dtype);
    std::vector<const void*> inputs;
    std::vector<DenseTensor> copies;  // of what is on another device
    for (size_t i = 0; i < members(); ++i) {
      if (post(i).device == c_.device) {
        inputs.push_back(static_cast<const char*>(post(i).send) + from);
        continue;
      }
      copies.push_back(DenseTensor::allocate(c_.device, {{count}, c_.dtype}));
      copy_from(i, from, copies.back().data<char>(), copies.back().meta().bytes());
      inputs.push_back(copies.back().raw());
    }
    reduce_in_order(c_.device, out, inputs, count, c_.dtype, c_.type);
  }

  void broadcast() const {
    const auto root = static_cast<size_t>(c_.root);
    if (me_ != root) copy_from(root, 0, static_cast<char*>(c_.receive), static_cast<size_t>(c_.count));
  }

  void exchange() const {
    for (size_t i = 0; i < members(); ++i) check_boxes(post(i), static_cast<int>(i), c_, static_cast<int>(me_));
    const auto element = static_cast<size_t>(c_.count);
    for (const BoxTransfer& box : c_.receives) {
      const Collective& peer = post(static_cast<size_t>(box.peer));
      const BoxView to{static_cast<char*>(c_.receive), box.to_dims, box.to_begin};
      const BoxView from{const_cast<char*>(static_cast<const char*>(peer.send)), box.from_dims, box.from_begin};
      if (peer.device == c_.device) copy_box(c_.device, to, from, box.extent, element);
      else copy_box_between_devices(to, peer.device, from, box.extent, element);
    }
  }

  /// The box is packed on the peer's device, so that only its own bytes move between the devices.
  void copy_box_between_devices(const BoxView& to, Device peer, const BoxView& from, const Dims& extent,
                                size_t element) const {
    const Meta meta{{extent.numel() * static_cast<int64_t>(element)}, DType::uint8};
    const DenseTensor there = DenseTensor::allocate(peer, meta), here = DenseTensor::allocate(c_.device, meta);
    const Dims begin = Dims::filled(extent.rank(), 0);
    copy_box(peer, {there.data<char>(), extent, begin}, from, extent, element);
    copy_into(here, there);
    copy_box(c_.device, to, {here.data<char>(), extent, begin}, extent, element);
  }

  LocalHub& hub_;
  std::shared_ptr<Group> group_;
  size_t me_;
  Collective c_;
  Group::Round* round_ = nullptr;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(LocalHub& hub, std::shared_ptr<LocalHub::Group> group, int rank, CommQueue& queue)
      : Communicator(group->members, rank, queue), hub_(hub), group_(std::move(group)), queue_(queue) {}

 protected:
  std::unique_ptr<Operation> do_start(Collective collective) override {
    hub_.report_calls_done(members()[static_cast<size_t>(rank())], queue_.calls_done());
    return std::make_unique<LocalOperation>(hub_, group_, rank(), std::move(collective));
  }
  bool takes(Device) const override { return true; }

 private:
  LocalHub& hub_;
  std::shared_ptr<LocalHub::Group> group_;
  const CommQueue& queue_;
};

std::unique_ptr<Communicator> LocalHub::communicator(const std::vector<int>& members, int rank, CommQueue& queue) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Group>& group = groups_[members];
  if (!group) {
    group = std::make_shared<Group>(members);
    group->failed = failed_;
    group->reason = reason_;
  }
  return std::make_unique<LocalCommunicator>(*this, group, rank, queue);
}

}  // namespace shard
