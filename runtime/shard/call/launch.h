// Runs the kernels and copies of a call: at once, or as the launcher of its context decides.
#pragma once

#include <tuple>
#include <type_traits>

#include "shard/call/binder.h"
#include "shard/kernels/registry.h"

namespace shard::call {

namespace detail {

template <class... P>
class KernelLaunch final : public Launch {
 public:
  using Function = void(const OpContext&, P...);
  KernelLaunch(const FoundKernel<Function>& kernel, const OpContext& ctx, P... args)
      : kernel_(kernel), ctx_(ctx), args_(args...) {}
  void run_dry() const override {
    Function* const dry = kernel_.table->template find_dry<Function>(ctx_);
    if (dry != nullptr) std::apply([&](P... each) { dry(ctx_, each...); }, args_);
  }
  void keep(Binder& binder) const override {
    std::apply([&](P... each) { binder.add(kernel_.function, ctx_, each...); }, args_);
  }

 private:
  const FoundKernel<Function>& kernel_;
  const OpContext& ctx_;
  std::tuple<P...> args_;
};

template <class... P>
[[gnu::cold, gnu::noinline]] void hand_over(const FoundKernel<void(const OpContext&, P...)>& kernel,
                                            const OpContext& ctx, std::type_identity_t<P>... args) {
  ctx.launcher->launch(KernelLaunch<P...>(kernel, ctx, args...));
}

}  // namespace detail

/// Runs a kernel, or hands it to the launcher of the context.
template <class... P>
void run(const FoundKernel<void(const OpContext&, P...)>& kernel, const OpContext& ctx,
         std::type_identity_t<P>... args) {
  if (ctx.launcher == nullptr) [[likely]]
    kernel.function(ctx, args...);
  else detail::hand_over(kernel, ctx, args...);
}

/// Copies the bytes of `from` to `to`, or hands the copy to the launcher of the context.
inline void copy(const OpContext& ctx, const DenseTensor& to, const DenseTensor& from) {
  if (ctx.launcher == nullptr) copy_into(to, from);
  else ctx.launcher->copy(to, from);
}

}  // namespace shard::call
