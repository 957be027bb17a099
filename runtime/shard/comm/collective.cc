#include "shard/comm/collective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "shard/core/error.h"

namespace shard {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  // A 64-bit FNV-1a step on words, with a final shift that mixes high bits into low ones.
  hash = (hash ^ value) * 0x100000001b3ULL;
  return hash ^ (hash >> 29);
}

uint64_t mix(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = mix(hash, static_cast<uint64_t>(static_cast<unsigned char>(c)));
  return mix(hash, text.size());
}

int64_t total(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

/// The sizes of all_to_all differ from member to member.
bool compares_sizes(CommKind kind) { return kind == CommKind::all_gather || kind == CommKind::reduce_scatter; }

bool same_box(const BoxTransfer& a, const BoxTransfer& b) {
  return a.extent == b.extent && a.from_dims == b.from_dims && a.from_begin == b.from_begin;
}

}  // namespace

std::string_view to_string(CommKind kind) {
  switch (kind) {
    case CommKind::all_gather: return "all_gather";
    case CommKind::all_to_all: return "all_to_all";
    case CommKind::all_reduce: return "all_reduce";
    case CommKind::reduce_scatter: return "reduce_scatter";
    case CommKind::broadcast: return "broadcast";
    case CommKind::exchange: return "exchange";
  }
  fail(ErrorCode::internal, "unknown kind of collective {}", static_cast<int>(kind));
}

std::string Collective::describe() const {
  const std::string argument = cause.argument.empty() ? std::string() : fmt::format(" argument '{}'", cause.argument);
  return fmt::format("#{} {} for {}{}", sequence, to_string(kind), cause.op, argument);
}

size_t Collective::send_bytes(int me) const {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  const auto mine = static_cast<size_t>(me);
  switch (kind) {
    case CommKind::all_gather: return static_cast<size_t>(sizes[mine]);
    case CommKind::all_to_all: return static_cast<size_t>(total(sizes));
    case CommKind::reduce_scatter: return static_cast<size_t>(total(sizes) * bytes);
    case CommKind::all_reduce: return static_cast<size_t>(count * bytes);
    case CommKind::broadcast: return static_cast<size_t>(count);
    case CommKind::exchange: return sends.empty() ? 0 : static_cast<size_t>(sends[0].from_dims.numel() * count);
  }
  fail(ErrorCode::internal, "unknown kind of collective {}", static_cast<int>(kind));
}

size_t Collective::receive_bytes(int me) const {
  switch (kind) {
    case CommKind::all_gather: return static_cast<size_t>(total(sizes));
    case CommKind::all_to_all: return static_cast<size_t>(total(receive_sizes));
    case CommKind::reduce_scatter: return static_cast<size_t>(sizes[static_cast<size_t>(me)]) * size_of(dtype);
    case CommKind::all_reduce:
    case CommKind::broadcast: return send_bytes(me);
    case CommKind::exchange: return receives.empty() ? 0 : static_cast<size_t>(receives[0].to_dims.numel() * count);
  }
  fail(ErrorCode::internal, "unknown kind of collective {}", static_cast<int>(kind));
}

std::string Collective::agreement() const {
  std::string detail;
  switch (kind) {
    case CommKind::all_gather: detail = fmt::format("[{}] bytes", fmt::join(sizes, ", ")); break;
    case CommKind::all_to_all: detail = "bytes"; break;
    case CommKind::all_reduce: detail = fmt::format("{} {} ({})", count, to_string(dtype), to_string(type)); break;
    case CommKind::reduce_scatter:
      detail = fmt::format("[{}] {} ({})", fmt::join(sizes, ", "), to_string(dtype), to_string(type));
      break;
    case CommKind::broadcast: detail = fmt::format("{} bytes from member {}", count, root); break;
    case CommKind::exchange: detail = fmt::format("elements of {} bytes", count); break;
  }
  const std::string argument = cause.argument.empty() ? std::string() : fmt::format(" argument '{}'", cause.argument);
  return fmt::format("#{} {} of {} for {}{}", sequence, to_string(kind), detail, cause.op, argument);
}

bool Collective::agrees_with(const Collective& other) const {
  return kind == other.kind && sequence == other.sequence && count == other.count && dtype == other.dtype &&
         type == other.type && root == other.root && (!compares_sizes(kind) || sizes == other.sizes) &&
         cause.op == other.cause.op && cause.argument == other.cause.argument;
}

uint64_t Collective::hash() const {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const uint64_t value :
       {static_cast<uint64_t>(kind), sequence, static_cast<uint64_t>(count), static_cast<uint64_t>(dtype),
        static_cast<uint64_t>(type), static_cast<uint64_t>(root)}) {
    hash = mix(hash, value);
  }
  if (compares_sizes(kind)) {
    for (const int64_t size : sizes) hash = mix(hash, static_cast<uint64_t>(size));
  }
  return mix(mix(hash, cause.op), cause.argument);
}

void check_boxes(const Collective& sender, int from, const Collective& receiver, int to) {
  size_t sent = 0;
  const auto next_send = [&] {
    while (sent < sender.sends.size() && sender.sends[sent].peer != to) ++sent;
    return sent < sender.sends.size() ? &sender.sends[sent++] : nullptr;
  };
  for (const BoxTransfer& expected : receiver.receives) {
    if (expected.peer != from) continue;
    const BoxTransfer* box = next_send();
    if (box == nullptr) {
      fail(ErrorCode::communication, "[{}] in {} member {} expects a box of {} from member {}, which does not send it",
           receiver.cause.op, receiver.describe(), to, to_string(expected.extent), from);
    }
    if (!same_box(*box, expected)) {
      fail(ErrorCode::communication,
           "[{}] in {} member {} expects a box of {} at {} in {} from member {}, which sends one of {} at {} in {}",
           receiver.cause.op, receiver.describe(), to, to_string(expected.extent), to_string(expected.from_begin),
           to_string(expected.from_dims), from, to_string(box->extent), to_string(box->from_begin),
           to_string(box->from_dims));
    }
  }
  if (const BoxTransfer* box = next_send()) {
    fail(ErrorCode::communication, "[{}] in {} member {} sends a box of {} to member {}, which does not expect it",
         sender.cause.op, sender.describe(), from, to_string(box->extent), to);
  }
}

}  // namespace shard
