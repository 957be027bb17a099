// Kernels of lists of tensors from those of single ones, and the other way round: each tensor argument becomes a list, or
// the only tensor of one. Other arguments are those of the kernel.
#pragma once

#include <span>
#include <type_traits>

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"

namespace shard {

/// Entry i of a list. A list of one has it for every i, and an empty one has an undefined tensor, which nobody may write
/// (it is not one for each thread: Python's loader has little room for variables of threads).
template <class Tensor>
Tensor& entry_of(std::span<Tensor> list, size_t i) {
  static std::remove_const_t<Tensor> none;
  return list.empty() ? none : list[list.size() == 1 ? 0 : i];
}

namespace detail {
template <class Arg>
inline constexpr bool is_tensor = std::is_same_v<std::remove_cvref_t<Arg>, DenseTensor>;
template <class Arg>
using ListOf = std::conditional_t<is_tensor<Arg>, std::span<std::remove_reference_t<Arg>>, Arg>;

template <class Arg>
struct IsList : std::false_type {};
template <class Tensor>
struct IsList<std::span<Tensor>> : std::bool_constant<is_tensor<Tensor>> {};

template <class Arg>
struct EntryOf {
  using type = Arg;
};
template <class Tensor>
struct EntryOf<std::span<Tensor>> {
  using type = Tensor&;
};
}  // namespace detail

/// `run` calls the kernel for each entry of its lists, as many as the first one has.
template <auto kernel>
struct OfEach;
template <class First, class... Args, void (*kernel)(const OpContext&, First, Args...)>
struct OfEach<kernel> {
  static void run(const OpContext& ctx, detail::ListOf<First> first, detail::ListOf<Args>... args) {
    for (size_t i = 0; i < first.size(); ++i) kernel(ctx, first[i], at<Args>(args, i)...);
  }

 private:
  template <class Arg>
  static Arg at(const detail::ListOf<Arg>& arg, size_t i) {
    if constexpr (detail::is_tensor<Arg>) return entry_of(arg, i);
    else return arg;
  }
};

/// `run` calls the kernel, which takes lists, with lists of one tensor.
template <auto kernel>
struct OfOne;
template <class... Args, void (*kernel)(const OpContext&, Args...)>
struct OfOne<kernel> {
  static void run(const OpContext& ctx, typename detail::EntryOf<Args>::type... args) {
    kernel(ctx, list_of<Args>(args)...);
  }

 private:
  template <class Arg>
  static Arg list_of(typename detail::EntryOf<Arg>::type arg) {
    if constexpr (detail::IsList<Arg>::value) return {&arg, 1};
    else return arg;
  }
};

}  // namespace shard
