#include "comm/communicator.h"

#include <numeric>

namespace shard {
namespace {

int64_t total(std::span<const int64_t> values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

int detail_of(DType dtype, ReduceType type) { return static_cast<int>(dtype) * kNumReduceTypes + static_cast<int>(type); }

}  // namespace

template <class F>
void Communicator::traced(Signature signature, int64_t bytes_sent, F&& run) {
  signature.sequence = sequence_++;
  TraceEvent event{.kind = TraceEvent::Kind::collective,
                   .name = signature.name,
                   .op = signature.cause.op,
                   .argument = signature.cause.argument,
                   .sequence = signature.sequence,
                   .bytes = bytes_sent,
                   .begin_ns = now_ns()};
  run(signature);
  event.end_ns = now_ns();
  ++stats_.collectives;
  stats_.bytes_sent += bytes_sent;
  if (trace_ != nullptr) trace_->record(event);
}

void Communicator::all_gather(CommCause cause, const void* send, void* receive, std::span<const int64_t> bytes) {
  const int64_t sent = bytes[static_cast<size_t>(rank_)] * (size() - 1);
  traced({"all_gather", cause, 0, total(bytes), 0}, sent,
         [&](const Signature& s) { do_all_gather(s, send, receive, bytes); });
}

void Communicator::all_to_all(CommCause cause, const void* send, std::span<const int64_t> send_bytes, void* receive,
                              std::span<const int64_t> receive_bytes) {
  const int64_t sent = total(send_bytes) - send_bytes[static_cast<size_t>(rank_)];
  traced({"all_to_all", cause, 0, 0, 0}, sent,
         [&](const Signature& s) { do_all_to_all(s, send, send_bytes, receive, receive_bytes); });
}

void Communicator::all_reduce(CommCause cause, void* data, int64_t count, DType dtype, ReduceType type) {
  // As a reduce-scatter and an all-gather, which is what transports send.
  const int64_t mine = (count + size() - 1 - rank_) / size();
  const int64_t sent = (count - mine + mine * (size() - 1)) * static_cast<int64_t>(size_of(dtype));
  traced({"all_reduce", cause, 0, count, detail_of(dtype, type)}, sent,
         [&](const Signature& s) { do_all_reduce(s, data, count, dtype, type); });
}

void Communicator::reduce_scatter(CommCause cause, const void* send, void* receive, std::span<const int64_t> counts,
                                  DType dtype, ReduceType type) {
  const int64_t sent = (total(counts) - counts[static_cast<size_t>(rank_)]) * static_cast<int64_t>(size_of(dtype));
  traced({"reduce_scatter", cause, 0, total(counts), detail_of(dtype, type)}, sent,
         [&](const Signature& s) { do_reduce_scatter(s, send, receive, counts, dtype, type); });
}

void Communicator::broadcast(CommCause cause, void* data, int64_t bytes, int root) {
  traced({"broadcast", cause, 0, bytes, root}, rank_ == root ? bytes * (size() - 1) : 0,
         [&](const Signature& s) { do_broadcast(s, data, bytes, root); });
}

}  // namespace shard
