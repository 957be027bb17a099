#include "shard/call/failed_call.h"

#include <fmt/format.h>

#include "shard/core/error.h"

namespace shard::call {
namespace {

bool failed_world(const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  if (own == nullptr) return false;
  return own->code() == ErrorCode::peer_failed || own->code() == ErrorCode::timeout ||
         own->code() == ErrorCode::communication;
}

}  // namespace

void report_failed_call(Rank& rank, uint64_t call, const std::exception_ptr& error, std::string_view where) {
  // The call whose function makes this call fails with it, or has handled the error.
  if (rank.dry || rank.comm_queue().inside_call()) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    if (!failed_world(known)) rank.call_failed(call, fmt::format("{}{}", known.what(), where));
  } catch (...) { rank.call_failed(call, fmt::format("an exception that is not a std::exception{}", where)); }
}

}  // namespace shard::call
