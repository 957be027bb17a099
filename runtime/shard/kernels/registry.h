// The table of kernels: name x backend x dtype -> function. Kernels of a new backend are added by
// its register function.
#pragma once

#include <initializer_list>
#include <string>
#include <typeindex>

#include "shard/core/device.h"
#include "shard/core/dtype.h"
#include "shard/core/export.h"
#include "shard/core/op_context.h"
#include "shard/core/op_def.h"

namespace shard {

class KernelTable;

/// A kernel that has been looked up. A call runs it by call::run (call/launch.h).
template <class Fn>
struct FoundKernel {
  Fn* function;
  const KernelTable* table;
};

/// The kernels of one op: a function per backend and dtype, all of one C++ signature.
class SHARD_API KernelTable {
 public:
  explicit KernelTable(std::string name) : name_(std::move(name)) {}

  /// The kernel of signature `Fn` for `device` and `dtype`. Throws no_kernel naming what is registered.
  template <class Fn>
  FoundKernel<Fn> find(const OpContext& ctx, Device device, DType dtype) const {
    const Entry& entry = entries_[device.backend][static_cast<int>(dtype)];
    if (entry.function == nullptr || *entry.signature != typeid(Fn)) fail_find(ctx, device, dtype, typeid(Fn));
    return {reinterpret_cast<Fn*>(entry.function), this};
  }
  /// The dry kernel of signature `Fn`, or null. Throws no_kernel if there is none for a kernel that
  /// has a reducer.
  template <class Fn>
  Fn* find_dry(const OpContext& ctx) const {
    if (dry_.function != nullptr && *dry_.signature == typeid(Fn)) return reinterpret_cast<Fn*>(dry_.function);
    if (ctx.reducer() != nullptr) fail_dry(ctx);
    return nullptr;
  }

  /// True when there is a dry kernel.
  bool has_dry() const { return dry_.function != nullptr; }
  /// Throws no_kernel where there is none for `device` and `dtype`.
  void check(const OpContext& ctx, Device device, DType dtype) const {
    if (!has(device, dtype)) fail_find(ctx, device, dtype, typeid(void));
  }
  /// True when there is a kernel for `device` and `dtype`.
  bool has(Device device, DType dtype) const {
    return entries_[device.backend][static_cast<int>(dtype)].function != nullptr;
  }

  void set(int backend, DType dtype, void (*function)(), const std::type_info& signature);
  void set_dry(void (*function)(), const std::type_info& signature) { dry_ = {function, &signature}; }

 private:
  struct Entry {
    void (*function)() = nullptr;
    const std::type_info* signature = nullptr;
  };
  [[noreturn]] void fail_find(const OpContext& ctx, Device device, DType dtype, const std::type_info& signature) const;
  [[noreturn]] void fail_dry(const OpContext& ctx) const;

  std::string name_;
  Entry dry_;
  Entry entries_[kMaxBackends][kNumDTypes];
};

/// The table of that name, which is created empty when nothing is registered yet. The reference
/// stays valid.
SHARD_API const KernelTable& kernel_table(const char* name);

/// Adds `function` for one dtype, before the first call that could use it. A kernel refuses
/// arguments by fail_check, before its first write. A later registration replaces an earlier one,
/// and the built-in kernels are registered first, so that a user can override any of them.
template <class... Args>
void register_kernel(const char* name, int backend, DType dtype, void (*function)(Args...));

/// Adds the dry kernel of that name, which dry worlds run instead of kernels that combine values by
/// ctx.local->reducer. It has their C++ signature and makes the same calls of the reducer, on
/// tensors without data. Kernels without a reducer need none.
template <class... Args>
void register_dry_kernel(const char* name, void (*function)(Args...));

/// The table of a name, looked up once: kernels<"add">().
template <FixedString name>
const KernelTable& kernels() {
  static const KernelTable& table = kernel_table(name.text);
  return table;
}

namespace detail {
SHARD_API KernelTable& mutable_kernel_table(const char* name);
}

template <class... Args>
void register_kernel(const char* name, int backend, DType dtype, void (*function)(Args...)) {
  detail::mutable_kernel_table(name).set(backend, dtype, reinterpret_cast<void (*)()>(function), typeid(void(Args...)));
}

template <class... Args>
void register_dry_kernel(const char* name, void (*function)(Args...)) {
  detail::mutable_kernel_table(name).set_dry(reinterpret_cast<void (*)()>(function), typeid(void(Args...)));
}

/// For dry kernels: the reduction that the real kernel does with a tensor of this meta by
/// ctx.local->reducer.
inline void dry_all_reduce(const OpContext& ctx, const Meta& meta, ReduceType type) {
  if (ctx.reducer() == nullptr) return;
  DenseTensor value = DenseTensor::allocate(kCpu, meta, ctx.meter());
  ctx.all_reduce(value, type);
}

/// For dry kernels: the same, for a tensor that the real kernel gathers from all ranks.
inline void dry_all_gather(const OpContext& ctx, const Meta& meta) {
  if (ctx.reducer() != nullptr) ctx.reducer()->all_gather(DenseTensor::allocate(kCpu, meta, ctx.meter()));
}

/// Registers every built-in kernel; called once, before anything else is registered or looked up.
SHARD_API void register_builtin_kernels();

}  // namespace shard
