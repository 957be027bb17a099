// Dispatch of a public function's call: to the distributed layer if any tensor is distributed, else
// to the dense layer.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "shard/call/call_text.h"
#include "shard/call/capturing.h"
#include "shard/call/dense_call.h"
#include "shard/core/writing.h"

namespace shard::call {

template <class T>
inline constexpr bool is_tensor_argument =
    std::is_same_v<std::remove_cvref_t<T>, Tensor> || std::is_same_v<std::remove_cvref_t<T>, std::vector<Tensor>>;

/// The number of tensor arguments among the first `count` of Args, which is the slot of argument
/// `count`.
template <size_t count, class... Args>
consteval size_t slot_of() {
  constexpr bool tensors[] = {is_tensor_argument<Args>...};
  size_t slot = 0;
  for (size_t i = 0; i < count; ++i) slot += tensors[i];
  return slot;
}

template <class T>
bool is_distributed(const T& value) {
  if constexpr (is_tensor_argument<T>) return any_dist(value);
  else return false;
}

/// The value that the dense function gets for an argument. A tensor is checked for reading, or for
/// writing if the parameter is not a const reference. An attribute passes through unchanged.
template <class Param>
decltype(auto) dense_argument(const OpContext& ctx, const OpDef& op, size_t slot, std::type_identity_t<Param> value) {
  constexpr bool written = !std::is_const_v<std::remove_reference_t<Param>>;
  if constexpr (!is_tensor_argument<Param>) {
    return static_cast<Param>(value);
  } else if constexpr (std::is_same_v<std::remove_cvref_t<Param>, Tensor>) {
    const std::string_view name = op.inputs[slot].name;
    const bool optional = op.inputs[slot].kind == SlotDef::Kind::optional;
    if constexpr (!written) {
      if ((op.no_need_buffer >> slot & 1u) != 0) return shape_of(ctx, value, name, optional);
    }
    if constexpr (written) return optional ? write_optional(ctx, value, name) : write(ctx, value, name);
    else return optional ? read_optional(ctx, value, name) : read(ctx, value, name);
  } else if constexpr (written) {
    return write_list(ctx, value, op.inputs[slot].name);
  } else {
    return read_list(ctx, value, op.inputs[slot].name);
  }
}

template <class... Values>
std::tuple<decltype(wrap(std::declval<Values>()))...> wrap(std::tuple<Values...> values) {
  return std::apply([](auto&... each) { return std::make_tuple(wrap(std::move(each))...); }, values);
}

namespace detail {

/// The meta of a dense argument for a parameter of type P of an infer function. An attribute passes
/// through unchanged.
template <class P, class T>
decltype(auto) meta_argument(T& argument) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<P, const Meta*>) return meta_or_null(argument);
  else if constexpr (std::is_same_v<P, std::span<const Meta>>) return metas(argument);
  else if constexpr (std::is_same_v<Value, DenseTensor>) return (argument.meta());
  else return (argument);
}

/// Infers the metas of the outputs and calls the dense function with them.
template <class Metas, class... P, class Dense, class... Args>
auto infer_and_call(const OpContext& ctx, Metas (*infer)(const OpContext&, P...), Dense* dense, Args&... args) {
  const Metas metas = infer(ctx, meta_argument<P>(args)...);
  if constexpr (IsTuple<Metas>::value) {
    return std::apply([&](const auto&... meta) { return dense(ctx, meta..., args...); }, metas);
  } else {
    return dense(ctx, metas, args...);
  }
}

}  // namespace detail

/// Adds the text of the call to device errors. The text is only made when such an error occurs.
template <class... Params, class Infer, class Dense, size_t... i>
auto call_dense(const OpContext& ctx, const OpDef& op, Infer* infer, Dense* dense, std::index_sequence<i...>,
                std::type_identity_t<Params>... args) {
  try {
    // Braced initialisation fixes the order of the checks.
    std::tuple<decltype(dense_argument<Params>(ctx, op, 0, static_cast<Params>(args)))...> arguments{
        dense_argument<Params>(ctx, op, slot_of<i, Params...>(), static_cast<Params>(args))...};
    return detail::infer_and_call(ctx, infer, dense, std::get<i>(arguments)...);
  } catch (const Error& error) { rethrow_with_call(error, op, ctx.op, {tensor_argument(args)...}); }
}

/// Runs a call on plain tensors. If this thread captures a program, the call is reported to it.
/// `run` returns the handles of the new results, if any.
template <class Run, class... Args>
auto run_captured(const OpDef& op, bool inplace, const Run& run, const Args&... args) {
  Tracer* const tracer = Tracer::current();
  if (tracer == nullptr) [[likely]]
    return run();
  Capturing capturing(*tracer, op, inplace);
  (capturing.argument(args), ...);
  if constexpr (std::is_void_v<decltype(run())>) {
    run();
    capturing.finish();
  } else {
    auto results = run();
    capturing.finish(results);
    return results;
  }
}

/// A call of a functional op. All layers have the same parameters, but the infer function takes
/// metas where the dense function takes dense tensors. The dense function also takes a context and
/// the metas of the outputs first.
template <class Result, class... Params, class Infer, class Dense>
Result dispatch(const OpDef& op, Result (*dist)(Params...), Infer* infer, Dense* dense,
                std::type_identity_t<Params>... args) {
  if ((is_distributed(args) || ...)) return dist(static_cast<Params>(args)...);
  const OpContext ctx = context(op.name.data());
  const auto run = [&] {
    return wrap(call_dense<Params...>(ctx, op, infer, dense, std::index_sequence_for<Params...>(),
                                      static_cast<Params>(args)...));
  };
  return run_captured(op, false, run, std::as_const(args)...);
}

/// The return value of an in-place form of the dist layer without its arguments: nothing, one new
/// result, or a tuple of several.
inline void new_results(Tensor&) {}
inline void new_results(std::vector<Tensor>&) {}
template <class... T>
auto new_results(std::tuple<T...>&& results) {
  const auto pick = []<class Each>(Each&& each) {
    if constexpr (std::is_lvalue_reference_v<Each>) return std::tuple<>();
    else return std::tuple<Each>(std::move(each));
  };
  const auto pick_all = [&]<size_t... i>(std::index_sequence<i...>) {
    return std::tuple_cat(pick(std::get<i>(std::move(results)))...);
  };
  auto picked = pick_all(std::index_sequence_for<T...>());
  constexpr size_t count = std::tuple_size_v<decltype(picked)>;
  if constexpr (count == 1) return std::get<0>(std::move(picked));
  else if constexpr (count > 1) return picked;
}

/// A call of the in-place form of an op. Returns only the new results; the caller returns these
/// together with the arguments that are written.
template <class Result, class... Params, class Infer, class Dense>
decltype(new_results(std::declval<Result>())) dispatch_inplace(const OpDef& op, Result (*dist)(Params...), Infer* infer,
                                                               Dense* dense, std::type_identity_t<Params>... args) {
  if ((is_distributed(args) || ...)) return new_results(dist(static_cast<Params>(args)...));
  const OpContext ctx = context(op.inplace_name.data());
  const auto run = [&] {
    const auto call = [&] {
      return call_dense<Params...>(ctx, op, infer, dense, std::index_sequence_for<Params...>(),
                                   static_cast<Params>(args)...);
    };
    if constexpr (std::is_void_v<decltype(call())>) call();
    else return wrap(call());
  };
  return run_captured(op, true, run, std::as_const(args)...);
}

/// A call, without a layout, of an op that has no tensor arguments.
template <class Infer, class Dense, class... Args>
auto call_local(const OpDef& op, Infer* infer, Dense* dense, const Args&... args) {
  const OpContext ctx = context(op.name.data());
  const auto run = [&] { return wrap(detail::infer_and_call(ctx, infer, dense, args...)); };
  return run_captured(op, false, run, args...);
}

}  // namespace shard::call
