#include "comm/local.h"

#include <fmt/format.h>

#include <cstring>

#include "comm/reduce.h"
#include "core/error.h"

namespace shard {

// Members post what they bring, meet, copy from each other, and meet again before anyone may change a posted buffer.
struct LocalHub::Group {
  struct Post {
    std::string name;  // copied: the poster may be gone when a timeout is reported
    std::string op;
    std::string argument;
    uint64_t sequence = 0;
    int64_t count = 0;
    int detail = 0;
    const void* data = nullptr;
    std::vector<int64_t> sizes;
    uint64_t arrivals = 0;
  };

  explicit Group(std::vector<int> members) : members(std::move(members)), posts(this->members.size()) {}

  const std::vector<int> members;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Post> posts;
  size_t arrived = 0;
  uint64_t generation = 0;
  bool failed = false;
  std::string reason;
};

LocalHub::~LocalHub() = default;

void LocalHub::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  failed_ = true;
  reason_ = reason;
  for (auto& [members, group] : groups_) {
    const std::lock_guard group_lock(group->mutex);
    group->failed = true;
    group->reason = reason;
    group->changed.notify_all();
  }
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalHub::Group> group, std::chrono::milliseconds timeout, int rank, TraceRing* trace)
      : Communicator(group->members, rank, trace), group_(std::move(group)), timeout_(timeout) {}

 protected:
  void do_all_gather(const Signature& s, const void* send, void* receive, std::span<const int64_t> bytes) override {
    post(s, send, bytes);
    char* to = static_cast<char*>(receive);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != 0) std::memcpy(to, posts()[i].data, static_cast<size_t>(bytes[i]));
      to += bytes[i];
    }
    meet(s);
  }

  void do_all_to_all(const Signature& s, const void* send, std::span<const int64_t> send_bytes, void* receive,
                     std::span<const int64_t> receive_bytes) override {
    post(s, send, send_bytes);
    const auto me = static_cast<size_t>(rank());
    char* to = static_cast<char*>(receive);
    for (size_t i = 0; i < receive_bytes.size(); ++i) {
      const LocalHub::Group::Post& peer = posts()[i];
      if (peer.sizes[me] != receive_bytes[i]) {
        shard::fail(ErrorCode::communication, "[{}] rank {} expects {} bytes from rank {} in #{} all_to_all for argument '{}', which sends {}",
                    s.cause.op, members()[me], receive_bytes[i], members()[i], s.sequence, s.cause.argument, peer.sizes[me]);
      }
      int64_t begin = 0;
      for (size_t k = 0; k < me; ++k) begin += peer.sizes[k];
      if (receive_bytes[i] != 0) {
        std::memcpy(to, static_cast<const char*>(peer.data) + begin, static_cast<size_t>(receive_bytes[i]));
      }
      to += receive_bytes[i];
    }
    meet(s);
  }

  void do_all_reduce(const Signature& s, void* data, int64_t count, DType dtype, ReduceType type) override {
    // Each member reduces one part over all members, always in member order, then all copy all parts.
    post(s, data, {});
    const auto begin_of = [&](int member) { return count * member / size(); };
    const int64_t begin = begin_of(rank());
    const int64_t length = begin_of(rank() + 1) - begin;
    const size_t element = size_of(dtype);
    std::vector<char> part(static_cast<size_t>(length) * element);
    reduce_posts(part.data(), begin, length, dtype, type);
    meet(s);
    post(s, part.data(), {});
    for (int i = 0; i < size(); ++i) {
      const auto bytes = static_cast<size_t>(begin_of(i + 1) - begin_of(i)) * element;
      if (bytes == 0) continue;
      std::memcpy(static_cast<char*>(data) + static_cast<size_t>(begin_of(i)) * element, posts()[static_cast<size_t>(i)].data, bytes);
    }
    meet(s);
  }

  void do_reduce_scatter(const Signature& s, const void* send, void* receive, std::span<const int64_t> counts,
                         DType dtype, ReduceType type) override {
    post(s, send, {});
    int64_t begin = 0;
    for (int i = 0; i < rank(); ++i) begin += counts[static_cast<size_t>(i)];
    reduce_posts(receive, begin, counts[static_cast<size_t>(rank())], dtype, type);
    meet(s);
  }

  void do_broadcast(const Signature& s, void* data, int64_t bytes, int root) override {
    post(s, data, {});
    if (rank() != root && bytes != 0) std::memcpy(data, posts()[static_cast<size_t>(root)].data, static_cast<size_t>(bytes));
    meet(s);
  }

 private:
  const std::vector<LocalHub::Group::Post>& posts() const { return group_->posts; }

  void reduce_posts(void* out, int64_t begin, int64_t count, DType dtype, ReduceType type) {
    std::vector<const void*> inputs;
    for (const LocalHub::Group::Post& peer : posts()) {
      inputs.push_back(static_cast<const char*>(peer.data) + static_cast<size_t>(begin) * size_of(dtype));
    }
    if (count != 0) reduce_in_order(out, inputs, count, dtype, type);
  }

  /// Shows what this member brings, waits for all, and checks that all came for the same collective.
  void post(const Signature& s, const void* data, std::span<const int64_t> sizes) {
    {
      const std::lock_guard lock(group_->mutex);
      LocalHub::Group::Post& mine = group_->posts[static_cast<size_t>(rank())];
      mine.name = s.name;
      mine.op = s.cause.op;
      mine.argument = s.cause.argument;
      mine.sequence = s.sequence;
      mine.count = s.count;
      mine.detail = s.detail;
      mine.data = data;
      mine.sizes.assign(sizes.begin(), sizes.end());
    }
    meet(s);
    const LocalHub::Group::Post& mine = posts()[static_cast<size_t>(rank())];
    for (size_t i = 0; i < posts().size(); ++i) {
      const LocalHub::Group::Post& peer = posts()[i];
      if (peer.name != mine.name || peer.sequence != mine.sequence || peer.count != mine.count || peer.detail != mine.detail) {
        shard::fail(ErrorCode::communication,
                    "ranks have diverged: rank {} is at #{} {} of {} (op {}, argument '{}'), rank {} at #{} {} of {} (op {}, argument "
                    "'{}'). Every rank must make the same calls in the same order",
                    members()[static_cast<size_t>(rank())], mine.sequence, mine.name, mine.count, mine.op, mine.argument,
                    members()[i], peer.sequence, peer.name, peer.count, peer.op, peer.argument);
      }
    }
  }

  void meet(const Signature& s) {
    LocalHub::Group& group = *group_;
    std::unique_lock lock(group.mutex);
    if (group.failed) shard::fail(ErrorCode::peer_failed, "{}", group.reason);
    const uint64_t generation = group.generation;
    ++group.posts[static_cast<size_t>(rank())].arrivals;
    if (++group.arrived == group.members.size()) {
      group.arrived = 0;
      ++group.generation;
      group.changed.notify_all();
      return;
    }
    const auto ready = [&] { return group.generation != generation || group.failed; };
    const bool in_time = group.changed.wait_for(lock, timeout_, ready);
    if (group.generation != generation) return;
    if (in_time) shard::fail(ErrorCode::peer_failed, "{}", group.reason);
    fail_timeout(s);
  }

  [[noreturn]] void fail_timeout(const Signature& s) {
    const uint64_t mine = posts()[static_cast<size_t>(rank())].arrivals;
    std::string missing;
    for (size_t i = 0; i < posts().size(); ++i) {
      if (posts()[i].arrivals < mine) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", members()[i]);
    }
    shard::fail(ErrorCode::timeout, "rank {} never joined #{} {} for {} argument '{}' within {} ms", missing, s.sequence,
                s.name, s.cause.op, s.cause.argument, timeout_.count());
  }

  std::shared_ptr<LocalHub::Group> group_;
  std::chrono::milliseconds timeout_;
};

std::unique_ptr<Communicator> LocalHub::communicator(const std::vector<int>& members, int rank, TraceRing* trace) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Group>& group = groups_[members];
  if (!group) {
    group = std::make_shared<Group>(members);
    group->failed = failed_;
    group->reason = reason_;
  }
  return std::make_unique<LocalCommunicator>(group, timeout_, rank, trace);
}

}  // namespace shard
