#include "shard/kernels/registry.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "shard/core/error.h"

namespace shard {
namespace {

struct Tables {
  std::mutex mutex;
  std::map<std::string, KernelTable, std::less<>> by_name;
};

Tables& tables() {
  static Tables instance;
  return instance;
}

/// Registers the built-in kernels, unless their registration itself is calling.
void with_builtin_kernels() {
  static std::once_flag once;
  static thread_local bool registering = false;
  if (registering) return;
  std::call_once(once, [] {
    const struct Scope {
      Scope() { registering = true; }
      ~Scope() { registering = false; }
    } scope;
    register_builtin_kernels();
  });
}

}  // namespace

void KernelTable::set(int backend, DType dtype, void (*function)(), const std::type_info& signature) {
  entries_[backend][static_cast<int>(dtype)] = {function, &signature};
}

void KernelTable::fail_find(const OpContext& ctx, Device device, DType dtype, const std::type_info& signature) const {
  const Entry& entry = entries_[device.backend][static_cast<int>(dtype)];
  if (entry.function != nullptr) {
    fail(ErrorCode::internal, "[{}] kernel {} is registered with the signature {}, but the op calls it as {}", ctx.op,
         name_, entry.signature->name(), signature.name());
  }
  std::string known;
  for (int backend = 0; backend < kMaxBackends; ++backend) {
    for (int type = 0; type < kNumDTypes; ++type) {
      if (entries_[backend][type].function == nullptr) continue;
      const Device at{static_cast<uint8_t>(backend), 0};
      known +=
          fmt::format("{}{} {}", known.empty() ? "" : ", ", backend_of(at).name, to_string(static_cast<DType>(type)));
    }
  }
  if (known.empty()) {
    fail(ErrorCode::no_kernel,
         "[{}] no kernel registered for {} on {}, nor on any other device; add one with register_kernel", ctx.op, name_,
         to_string(device));
  }
  fail(ErrorCode::no_kernel,
       "[{}] no kernel registered for {} on {} with {}; there are kernels for: {}. Cast the arguments, or copy them to "
       "another device",
       ctx.op, name_, to_string(device), to_string(dtype), known);
}

void KernelTable::fail_dry(const OpContext& ctx) const {
  fail_check(ErrorCode::no_kernel,
             "[{}] kernel {} combines values over mesh axes, which a dry world cannot know; register its traffic with "
             "register_dry_kernel",
             ctx.op, name_);
}

const KernelTable& kernel_table(const char* name) { return detail::mutable_kernel_table(name); }

KernelTable& detail::mutable_kernel_table(const char* name) {
  with_builtin_kernels();
  Tables& all = tables();
  const std::lock_guard lock(all.mutex);
  return all.by_name.try_emplace(name, name).first->second;
}

}  // namespace shard
