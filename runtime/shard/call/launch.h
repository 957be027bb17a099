// Runs the kernels and copies of a call: at once, or as the launcher of its context decides.
#pragma once

#include <type_traits>
#include <utility>

#include "shard/call/binder.h"
#include "shard/kernels/registry.h"

namespace shard::call {

namespace detail {

template <class Indices, class... P>
class KernelLaunch;
template <size_t... i, class... P>
class KernelLaunch<std::index_sequence<i...>, P...> final : public Launch, private Argument<i, P>... {
 public:
  using Function = void(const OpContext&, P...);
  KernelLaunch(const FoundKernel<Function>& kernel, const OpContext& ctx, P... args)
      : Argument<i, P>{args}..., kernel_(kernel), ctx_(ctx) {}
  void run_dry() const override {
    Function* const dry = kernel_.table->template find_dry<Function>(ctx_);
    if (dry != nullptr) dry(ctx_, Argument<i, P>::value...);
  }
  void keep(Binder& binder) const override { binder.add(kernel_.function, ctx_, Argument<i, P>::value...); }

 private:
  const FoundKernel<Function>& kernel_;
  const OpContext& ctx_;
};

template <class... P>
[[gnu::cold, gnu::noinline]] void hand_over(const FoundKernel<void(const OpContext&, P...)>& kernel,
                                            const OpContext& ctx, std::type_identity_t<P>... args) {
  ctx.launcher->launch(KernelLaunch<std::index_sequence_for<P...>, P...>(kernel, ctx, args...));
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
