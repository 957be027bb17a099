#include "kernels/registry.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "core/error.h"

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
      known += fmt::format("{}{} {}", known.empty() ? "" : ", ", backend_of(at).name, to_string(static_cast<DType>(type)));
    }
  }
  if (known.empty()) fail(ErrorCode::no_kernel, "[{}] no kernel registered for {}", ctx.op, name_);
  fail(ErrorCode::no_kernel, "[{}] no kernel registered for {} with {} on {}; there is one for: {}. Cast or move the arguments",
       ctx.op, name_, to_string(dtype), to_string(device), known);
}

const KernelTable& kernel_table(const char* name) {
  static std::once_flag once;
  std::call_once(once, register_builtin_kernels);
  return detail::mutable_kernel_table(name);
}

KernelTable& detail::mutable_kernel_table(const char* name) {
  Tables& all = tables();
  const std::lock_guard lock(all.mutex);
  return all.by_name.try_emplace(name, name).first->second;
}

}  // namespace shard
