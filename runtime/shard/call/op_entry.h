// Ops as data: what is needed to call the dense function of an op whose arguments are known only at
// run time. Generated code has an entry for each op. Captured programs (program/) are checked,
// bound and loaded through these entries.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "shard/call/dense_call.h"
#include "shard/call/infer_call.h"

namespace shard {

/// The arguments of a call, and the results that it returned.
struct EntryCall {
  const OpContext& ctx;
  const OutputMetas& outputs;
  // Flat, ordered by slot. Undefined tensors are absent arguments. The call may replace tensors
  // that the op writes in place.
  std::span<DenseTensor> tensors;
  std::span<const SlotRange> slots;
  std::span<const Attr> attrs;
  // One entry for each output that the function returns. In-place forms return only the outputs
  // that are not targets.
  std::vector<std::vector<DenseTensor>> results;
};

/// A type-erased dense function.
struct DenseEntry {
  void (*function)() = nullptr;
  void (*call)(void (*function)(), EntryCall& call) = nullptr;
  std::span<const uint8_t> attr_types;  // for each attribute, its index in Attr

  explicit operator bool() const { return function != nullptr; }
  void operator()(EntryCall& args) const { call(function, args); }
};

/// An op: its facts, its infer function and its dense functions.
struct OpEntry {
  const OpDef* op = nullptr;
  InferEntry infer;
  DenseEntry functional;  // empty for an op that has only an in-place form
  DenseEntry inplace;
};

namespace detail {

template <class T, class Variant>
struct IndexIn;
template <class T, class... Each>
struct IndexIn<T, std::variant<Each...>> {
  static constexpr uint8_t value = [] {
    constexpr bool same[] = {std::is_same_v<T, Each>...};
    for (size_t i = 0; i < sizeof...(Each); ++i) {
      if (same[i]) return static_cast<uint8_t>(i);
    }
    return static_cast<uint8_t>(255);
  }();
};

template <class P>
inline constexpr bool is_dense_tensor = std::is_same_v<std::remove_cvref_t<P>, DenseTensor> ||
                                        std::is_same_v<std::remove_cvref_t<P>, std::span<const DenseTensor>> ||
                                        std::is_same_v<std::remove_cvref_t<P>, call::Targets>;

/// True for a parameter that takes the meta of an output.
template <class P>
inline constexpr bool is_output_meta =
    std::is_base_of_v<Meta, std::remove_cvref_t<P>> || std::is_same_v<P, std::span<const Meta>>;
template <class P>
inline constexpr bool is_attribute = !is_dense_tensor<P> && !is_output_meta<P>;

template <class... P>
struct AttrTypes {
  static constexpr size_t count = ((is_attribute<P> ? 1u : 0u) + ... + 0u);
  static constexpr auto make() {
    std::array<uint8_t, count + 1> types{};
    size_t next = 0;
    ((is_attribute<P> ? void(types[next++] = IndexIn<std::remove_cvref_t<P>, AttrVariant>::value) : void()), ...);
    return types;
  }
  static constexpr std::array<uint8_t, count + 1> types = make();
};

/// The argument for a parameter of type P. `index` counts the parameters of the same kind.
/// `targets` holds the pointers for a list that is written.
template <class P, size_t index>
decltype(auto) entry_argument(EntryCall& call, std::vector<std::vector<DenseTensor*>>& targets) {
  using T = std::remove_cvref_t<P>;
  if constexpr (std::is_same_v<T, DenseTensor>) {
    return static_cast<P>(call.tensors[call.slots[index].first]);
  } else if constexpr (std::is_same_v<T, std::span<const DenseTensor>>) {
    return std::span<const DenseTensor>(call.tensors.subspan(call.slots[index].first, call.slots[index].count));
  } else if constexpr (std::is_same_v<T, call::Targets>) {
    std::vector<DenseTensor*>& list = targets[index];
    for (DenseTensor& each : call.tensors.subspan(call.slots[index].first, call.slots[index].count))
      list.push_back(&each);
    return call::Targets(list);
  } else if constexpr (is_output_meta<P>) {
    const SlotRange& slot = call.outputs.slots[index];
    const auto metas = std::span(call.outputs.flat).subspan(slot.first, slot.count);
    if constexpr (std::is_same_v<T, std::span<const Meta>>) return metas;
    else return T{metas.front()};
  } else {
    return static_cast<const T&>(std::get<T>(call.attrs[index]));
  }
}

inline void append_result(EntryCall& call, DenseTensor&& value) { call.results.push_back({std::move(value)}); }
inline void append_result(EntryCall& call, std::vector<DenseTensor>&& values) {
  call.results.push_back(std::move(values));
}
template <class... T>
void append_result(EntryCall& call, std::tuple<T...>&& values) {
  std::apply([&](auto&... each) { (append_result(call, std::move(each)), ...); }, values);
}

template <class Result, class... P, size_t... i>
void call_entry(Result (*function)(const OpContext&, P...), EntryCall& call, std::index_sequence<i...>) {
  std::vector<std::vector<DenseTensor*>> targets(call.slots.size());
  constexpr auto index = []<size_t at>(std::integral_constant<size_t, at>) {
    constexpr size_t tensors = count_before<at, is_dense_tensor<P>...>(),
                     metas = count_before<at, is_output_meta<P>...>();
    using Each = std::tuple_element_t<at, std::tuple<P...>>;
    return is_dense_tensor<Each> ? tensors : is_output_meta<Each> ? metas : at - tensors - metas;
  };
  const auto run = [&]() -> Result {
    return function(call.ctx, entry_argument<P, index(std::integral_constant<size_t, i>())>(call, targets)...);
  };
  if constexpr (std::is_void_v<Result>) run();
  else append_result(call, run());
}

template <class Result, class... P>
void call_erased(void (*function)(), EntryCall& call) {
  call_entry(reinterpret_cast<Result (*)(const OpContext&, P...)>(function), call, std::index_sequence_for<P...>());
}

template <class Result, class... P>
DenseEntry dense_entry(Result (*function)(const OpContext&, P...)) {
  static_assert(((!is_attribute<P> || IndexIn<std::remove_cvref_t<P>, AttrVariant>::value != 255) && ...),
                "an attribute of a type that Attr does not have");
  return {reinterpret_cast<void (*)()>(function), &call_erased<Result, P...>,
          std::span(AttrTypes<P...>::types).first(AttrTypes<P...>::count)};
}

}  // namespace detail

/// The entry of an op, from its functions.
template <class Infer, class Dense>
OpEntry op_entry(const OpDef& op, Infer* infer, Dense* functional) {
  return {&op, infer_entry(infer), detail::dense_entry(functional), {}};
}
template <class Infer, class Dense, class Inplace>
OpEntry op_entry(const OpDef& op, Infer* infer, Dense* functional, Inplace* inplace) {
  return {&op, infer_entry(infer), detail::dense_entry(functional), detail::dense_entry(inplace)};
}
/// The entry of an op that has only an in-place form.
template <class Infer, class Inplace>
OpEntry op_entry(const OpDef& op, Infer* infer, std::nullptr_t, Inplace* inplace) {
  return {&op, infer_entry(infer), {}, detail::dense_entry(inplace)};
}

/// The metas of the outputs of a call on these tensors.
inline OutputMetas infer_outputs(const OpEntry& entry, const OpContext& ctx, std::span<const DenseTensor> tensors,
                                 std::span<const SlotRange> slots, std::span<const Attr> attrs) {
  std::vector<const Meta*> metas;
  for (const DenseTensor& tensor : tensors) metas.push_back(tensor.defined() ? &tensor.meta() : nullptr);
  return entry.infer({ctx, metas, slots, attr_refs(attrs)});
}

}  // namespace shard
