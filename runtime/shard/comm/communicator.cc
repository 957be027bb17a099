#include "shard/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "shard/core/error.h"
#include "shard/core/left_storages.h"
#include "shard/core/waiting.h"

namespace shard {
namespace {

int64_t total(std::span<const int64_t> values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

std::vector<int64_t> copy_of(std::span<const int64_t> values) { return {values.begin(), values.end()}; }

}  // namespace

void CommStats::count(CommKind kind, int64_t bytes) {
  ++collectives;
  bytes_sent += bytes;
  CommCount& of_kind = kinds[static_cast<size_t>(kind)];
  ++of_kind.calls;
  of_kind.bytes_sent += bytes;
}

CommStats& CommStats::operator+=(const CommStats& other) {
  collectives += other.collectives;
  bytes_sent += other.bytes_sent;
  for (size_t i = 0; i < kinds.size(); ++i) {
    kinds[i].calls += other.kinds[i].calls;
    kinds[i].bytes_sent += other.kinds[i].bytes_sent;
  }
  return *this;
}

namespace {

constexpr size_t kShownEvents = 4;

/// The last collectives of this rank, for a timeout's message.
std::string last_collectives(const TraceRing& trace) {
  const std::vector<TraceEvent> events = trace.events();
  std::string text;
  size_t shown = 0;
  for (auto event = events.rbegin(); event != events.rend() && shown < kShownEvents; ++event) {
    if (event->kind != TraceEvent::Kind::collective) continue;
    ++shown;
    const std::string time = event->end_ns == 0
                                 ? "not finished"
                                 : fmt::format("{:.3f} ms", static_cast<double>(event->end_ns - event->begin_ns) / 1e6);
    text = fmt::format("#{} {} for {} argument '{}' ({}){}{}", event->sequence, event->name, event->op, event->argument,
                       time, text.empty() ? "" : ", ", text);
  }
  return text;
}

}  // namespace

Operation::~Operation() {
  // A tensor that outlives its rank has only completed ones.
  if (queue_ != nullptr && status_ == Status::pending) std::erase(queue_->under_way_, this);
}

void Operation::wait() {
  if (status_ == Status::pending) queue_->finish_until(this);
  if (status_ == Status::failed) std::rethrow_exception(error_);
}

void CommQueue::finish() { finish_until(nullptr); }

void CommQueue::finish_until(const Operation* last) {
  const WaitScope scope;
  std::exception_ptr first_error;
  while (!under_way_.empty()) {
    Operation& next = *under_way_.front();
    under_way_.pop_front();
    try {
      next.complete();
      next.status_ = Operation::Status::done;
      trace_.finish(next.ticket_, now_ns());
    } catch (const Error& error) {
      next.status_ = Operation::Status::failed;
      next.error_ =
          error.code() == ErrorCode::timeout
              ? std::make_exception_ptr(Error(
                    error.code(), fmt::format("{}. Last on this rank: {}", error.what(), last_collectives(trace_))))
              : std::current_exception();
    } catch (...) {
      next.status_ = Operation::Status::failed;
      next.error_ = std::current_exception();
    }
    if (next.error_ && !first_error) first_error = next.error_;
    if (&next == last) break;
  }
  free_left_storages();
  if (first_error) std::rethrow_exception(first_error);
}

/// A collective of buffers on a device by a transport for the host: it works on copies on the host, and copies the result back.
class Communicator::Staged final : public Operation {
 public:
  /// Replaces the buffers of `collective`.
  Staged(Collective& collective, int me) : device_(collective.device), receive_(collective.receive) {
    const bool one = collective.send == collective.receive;
    const bool keeps = collective.kind == CommKind::exchange;  // what is outside of the boxes
    const size_t sent = collective.send_bytes(me), received = collective.receive_bytes(me);
    sent_.resize(one ? std::max(sent, received) : sent);
    received_.resize(one ? 0 : received);
    result_bytes_ = received;
    copy_bytes(kCpu, sent_.data(), device_, collective.send, sent);
    if (keeps) copy_bytes(kCpu, received_.data(), device_, collective.receive, received_.size());
    collective.send = sent_.data();
    collective.receive = one ? sent_.data() : received_.data();
    collective.device = kCpu;
    result_ = one ? &sent_ : &received_;
  }
  void start(std::unique_ptr<Operation> operation) { operation_ = std::move(operation); }

 protected:
  void complete() override {
    if (operation_) operation_->complete();
    copy_bytes(device_, receive_, kCpu, result_->data(), result_bytes_);
  }

 private:
  Device device_;
  void* receive_;
  std::vector<char> sent_, received_;
  const std::vector<char>* result_;
  size_t result_bytes_;
  std::unique_ptr<Operation> operation_;  // reads the copies, so it is destroyed before them
};

void Communicator::check_member(const Collective& collective, int member) const {
  if (member < 0 || member >= size()) {
    fail(ErrorCode::invalid_argument, "[{}] {} names member {} of a group of {}", collective.cause.op,
         collective.describe(), member, size());
  }
}

Work Communicator::start(Collective collective, int64_t bytes_sent) {
  collective.sequence = sequence_++;
  stats_.count(collective.kind, bytes_sent);
  const uint64_t ticket = queue_.trace_.record({.kind = TraceEvent::Kind::collective,
                                                .name = to_string(collective.kind),
                                                .op = collective.cause.op,
                                                .argument = collective.cause.argument,
                                                .sequence = collective.sequence,
                                                .bytes = bytes_sent,
                                                .begin_ns = now_ns()});
  std::unique_ptr<Operation> operation;
  if (collective.device == kCpu || takes(collective.device)) {
    operation = do_start(std::move(collective));
  } else {
    auto staged = std::make_unique<Staged>(collective, rank_);
    staged->start(do_start(std::move(collective)));
    operation = std::move(staged);
  }
  if (!operation) {
    queue_.trace_.finish(ticket, now_ns());
    return {};
  }
  operation->queue_ = &queue_;
  operation->ticket_ = ticket;
  queue_.under_way_.push_back(operation.get());
  return Work(std::move(operation));
}

Work Communicator::all_gather(CommCause cause, const void* send, void* receive, std::span<const int64_t> bytes,
                              Device device) {
  Collective collective{.kind = CommKind::all_gather,
                        .cause = cause,
                        .send = send,
                        .receive = receive,
                        .sizes = copy_of(bytes),
                        .device = device};
  return start(std::move(collective), bytes[static_cast<size_t>(rank_)] * (size() - 1));
}

Work Communicator::all_to_all(CommCause cause, const void* send, std::span<const int64_t> send_bytes, void* receive,
                              std::span<const int64_t> receive_bytes, Device device) {
  Collective collective{.kind = CommKind::all_to_all,
                        .cause = cause,
                        .send = send,
                        .receive = receive,
                        .sizes = copy_of(send_bytes),
                        .receive_sizes = copy_of(receive_bytes),
                        .device = device};
  return start(std::move(collective), total(send_bytes) - send_bytes[static_cast<size_t>(rank_)]);
}

Work Communicator::all_reduce(CommCause cause, void* data, int64_t count, DType dtype, ReduceType type, Device device) {
  // Counted as the reduce-scatter and all-gather that transports send.
  const int64_t mine = (count + size() - 1 - rank_) / size();
  const int64_t sent = (count - mine + mine * (size() - 1)) * static_cast<int64_t>(size_of(dtype));
  return start({.kind = CommKind::all_reduce,
                .cause = cause,
                .send = data,
                .receive = data,
                .count = count,
                .dtype = dtype,
                .type = type,
                .device = device},
               sent);
}

Work Communicator::reduce_scatter(CommCause cause, const void* send, void* receive, std::span<const int64_t> counts,
                                  DType dtype, ReduceType type, Device device) {
  const int64_t sent = (total(counts) - counts[static_cast<size_t>(rank_)]) * static_cast<int64_t>(size_of(dtype));
  Collective collective{.kind = CommKind::reduce_scatter,
                        .cause = cause,
                        .send = send,
                        .receive = receive,
                        .sizes = copy_of(counts),
                        .dtype = dtype,
                        .type = type,
                        .device = device};
  return start(std::move(collective), sent);
}

Work Communicator::broadcast(CommCause cause, void* data, int64_t bytes, int root, Device device) {
  Collective collective{.kind = CommKind::broadcast,
                        .cause = cause,
                        .send = data,
                        .receive = data,
                        .count = bytes,
                        .root = root,
                        .device = device};
  check_member(collective, root);
  return start(std::move(collective), rank_ == root ? bytes * (size() - 1) : 0);
}

Work Communicator::exchange(CommCause cause, const void* send, std::span<const BoxTransfer> sends, void* receive,
                            std::span<const BoxTransfer> receives, size_t element_bytes, Device device) {
  Collective collective{.kind = CommKind::exchange,
                        .cause = cause,
                        .send = send,
                        .receive = receive,
                        .sends = {sends.begin(), sends.end()},
                        .receives = {receives.begin(), receives.end()},
                        .count = static_cast<int64_t>(element_bytes),
                        .device = device};
  int64_t elements = 0;
  for (const BoxTransfer& box : sends) {
    check_member(collective, box.peer);
    if (box.peer != rank_) elements += box.extent.numel();
  }
  for (const BoxTransfer& box : receives) check_member(collective, box.peer);
  return start(std::move(collective), elements * static_cast<int64_t>(element_bytes));
}

}  // namespace shard
