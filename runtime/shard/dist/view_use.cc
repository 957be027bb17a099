#include "shard/dist/view_use.h"

#include "shard/dist/world.h"

namespace shard {
std::string_view view_advice(const Storage& storage, ErrorCode code, ViewPolicy policy) {
  if (code != ErrorCode::stale_view && code != ErrorCode::view_of_copy) return "";
  const Detachment* const from = storage.detachment();
  const bool moves = from != nullptr && from->refresh;
  switch (policy) {
    case ViewPolicy::strict:
      return moves ? "; ViewPolicy::sync would keep the two in sync, and ViewPolicy::temporary would make them "
                     "independent"
                   : "; ViewPolicy::temporary would make the two independent";
    case ViewPolicy::sync:
      return moves ? "; full_tensor(tensor), reshard(tensor, spec) and any op refresh it"
                   : "; ViewPolicy::temporary would make the two independent";
    case ViewPolicy::temporary: return "";
  }
  return "";
}

namespace {

template <class Check>
void check_with_advice(const Storage& storage, ViewPolicy policy, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    const std::string_view advice = view_advice(storage, error.code(), policy);
    if (advice.empty()) throw;
    fail(error.code(), "{}{}", error.what(), advice);
  }
}

}  // namespace

void separate(Storage& storage) { storage.detach({}); }

void check_read(Storage& storage, ViewPolicy policy) {
  if (policy == ViewPolicy::temporary && storage.stale()) separate(storage);
  check_with_advice(storage, policy, [&] { storage.check_read(); });
}

void check_write(Storage& storage, const char* op, ViewPolicy policy) {
  if (policy == ViewPolicy::temporary && storage.detachment() != nullptr) separate(storage);
  check_with_advice(storage, policy, [&] { storage.check_write(op); });
}

ViewPolicy view_policy() {
  const Rank* const rank = current_rank_or_null();
  return rank == nullptr ? ViewPolicy::strict : rank->policies.view;
}

}  // namespace shard
