// Ops as data: what is needed to call the dense function of an op whose arguments are known at run time only. Generated code has an entry
// for each op; programs (program/) are checked, bound and loaded through them.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "call/dense_call.h"
#include "core/attr.h"

namespace shard {

/// The arguments of a call, and what it gave.
struct EntryCall {
  const OpContext& ctx;
  std::span<DenseTensor>
      tensors;  // flat, by slots; undefined ones are absent. Those that the op writes in place may be replaced
  std::span<const SlotRange> slots;
  std::span<const Attr> attrs;
  std::vector<std::vector<DenseTensor>>
      results;  // by output that the function returns: in-place forms return those that are no targets
};

/// A dense function, whatever its type.
struct DenseEntry {
  void (*function)() = nullptr;
  void (*call)(void (*function)(), EntryCall& call) = nullptr;
  std::span<const uint8_t> attr_types;  // index in Attr, by attribute

  explicit operator bool() const { return function != nullptr; }
  void operator()(EntryCall& args) const { call(function, args); }
};

/// An op: its facts, and its dense functions.
struct OpEntry {
  const OpDef* op = nullptr;
  DenseEntry functional;  // none for an op that has only an in-place form
  DenseEntry inplace;
};

namespace detail {

template <class T, class Variant>
struct IndexIn;
template <class T, class... Each>
struct IndexIn<T, std::variant<Each...>> {
  static constexpr uint8_t value = [] {
    constexpr bool same[] = {std::is_same_v<T, Each>...};
    for (uint8_t i = 0; i < sizeof...(Each); ++i) {
      if (same[i]) return i;
    }
    return static_cast<uint8_t>(255);
  }();
};

template <class P>
inline constexpr bool is_dense_tensor = std::is_same_v<std::remove_cvref_t<P>, DenseTensor> ||
                                        std::is_same_v<std::remove_cvref_t<P>, std::span<const DenseTensor>> ||
                                        std::is_same_v<std::remove_cvref_t<P>, call::Targets>;

/// The number of tensor parameters, or of others, among the first `count` of P.
template <bool tensors, size_t count, class... P>
consteval size_t place_of() {
  constexpr bool each[] = {is_dense_tensor<P>..., false};
  size_t place = 0;
  for (size_t i = 0; i < count; ++i) place += each[i] == tensors;
  return place;
}

template <class... P>
struct AttrTypes {
  static constexpr size_t count = ((is_dense_tensor<P> ? 0u : 1u) + ... + 0u);
  static constexpr auto make() {
    std::array<uint8_t, count + 1> types{};
    size_t next = 0;
    ((is_dense_tensor<P> ? void() : void(types[next++] = IndexIn<std::remove_cvref_t<P>, Attr>::value)), ...);
    return types;
  }
  static constexpr std::array<uint8_t, count + 1> types = make();
};

/// What a parameter is given. `targets` keeps the list of one that is written.
template <class P, size_t tensor, size_t attr>
decltype(auto) entry_argument(EntryCall& call, std::vector<std::vector<DenseTensor*>>& targets) {
  using T = std::remove_cvref_t<P>;
  if constexpr (std::is_same_v<T, DenseTensor>) {
    return static_cast<P>(call.tensors[call.slots[tensor].first]);
  } else if constexpr (std::is_same_v<T, std::span<const DenseTensor>>) {
    return std::span<const DenseTensor>(call.tensors.subspan(call.slots[tensor].first, call.slots[tensor].count));
  } else if constexpr (std::is_same_v<T, call::Targets>) {
    std::vector<DenseTensor*>& list = targets[tensor];
    for (DenseTensor& each : call.tensors.subspan(call.slots[tensor].first, call.slots[tensor].count))
      list.push_back(&each);
    return call::Targets(list);
  } else {
    return static_cast<const T&>(std::get<T>(call.attrs[attr]));
  }
}

inline void give(EntryCall& call, DenseTensor&& value) { call.results.push_back({std::move(value)}); }
inline void give(EntryCall& call, std::vector<DenseTensor>&& values) { call.results.push_back(std::move(values)); }
template <class... T>
void give(EntryCall& call, std::tuple<T...>&& values) {
  std::apply([&](auto&... each) { (give(call, std::move(each)), ...); }, values);
}

template <class Result, class... P, size_t... i>
void call_entry(Result (*function)(const OpContext&, P...), EntryCall& call, std::index_sequence<i...>) {
  std::vector<std::vector<DenseTensor*>> targets(call.slots.size());
  const auto run = [&]() -> Result {
    return function(call.ctx,
                    entry_argument<P, place_of<true, i, P...>(), place_of<false, i, P...>()>(call, targets)...);
  };
  if constexpr (std::is_void_v<Result>) run();
  else give(call, run());
}

template <class Result, class... P>
void call_erased(void (*function)(), EntryCall& call) {
  call_entry(reinterpret_cast<Result (*)(const OpContext&, P...)>(function), call, std::index_sequence_for<P...>());
}

template <class Result, class... P>
DenseEntry dense_entry(Result (*function)(const OpContext&, P...)) {
  static_assert(((is_dense_tensor<P> || IndexIn<std::remove_cvref_t<P>, Attr>::value != 255) && ...),
                "an attribute of a type that Attr lacks");
  return {reinterpret_cast<void (*)()>(function), &call_erased<Result, P...>,
          std::span(AttrTypes<P...>::types).first(AttrTypes<P...>::count)};
}

}  // namespace detail

/// The entry of an op by its dense functions.
template <class Dense>
OpEntry op_entry(const OpDef& op, Dense* functional) {
  return {&op, detail::dense_entry(functional), {}};
}
template <class Dense, class Inplace>
OpEntry op_entry(const OpDef& op, Dense* functional, Inplace* inplace) {
  return {&op, detail::dense_entry(functional), detail::dense_entry(inplace)};
}
/// Of an op that has only an in-place form.
template <class Inplace>
OpEntry op_entry(const OpDef& op, std::nullptr_t, Inplace* inplace) {
  return {&op, {}, detail::dense_entry(inplace)};
}

}  // namespace shard
