// Calls infer functions of ops by type-erased entries. An infer function maps the metas of the
// arguments and the attributes to the metas of the outputs.
#pragma once

#include <array>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "shard/core/attr.h"
#include "shard/core/op_context.h"
#include "shard/core/op_def.h"

namespace shard {

/// The arguments of an infer function: a call without its tensors.
struct InferCall {
  const OpContext& ctx;
  std::span<const Meta* const> inputs;  // flat; null for an absent argument
  std::span<const SlotRange> slots;
  std::span<const AttrRef> attrs;
};

/// The metas of the outputs of a call as a flat list, and the range that belongs to each output
/// slot.
struct OutputMetas {
  std::vector<Meta> flat;
  std::vector<SlotRange> slots;
};

/// A type-erased infer function.
struct InferEntry {
  void (*function)() = nullptr;
  OutputMetas (*call)(void (*function)(), const InferCall& call) = nullptr;

  OutputMetas operator()(const InferCall& args) const { return call(function, args); }
};

namespace detail {

/// The number of parameters of one kind among the first `count`. `is` has a bool for each
/// parameter: whether it is of that kind.
template <size_t count, bool... is>
consteval size_t count_before() {
  constexpr bool each[] = {is..., false};
  size_t number = 0;
  for (size_t i = 0; i < count; ++i) number += each[i];
  return number;
}

template <class P>
inline constexpr bool is_meta = std::is_same_v<std::remove_cvref_t<P>, Meta> || std::is_same_v<P, const Meta*> ||
                                std::is_same_v<std::remove_cvref_t<P>, std::span<const Meta>>;

/// The argument for a parameter of type P: tensor slot or attribute number `index` of the call.
/// `list` holds the metas of a list.
template <class P, size_t index>
decltype(auto) infer_argument(const InferCall& call, std::vector<Meta>& list) {
  using T = std::remove_cvref_t<P>;
  if constexpr (!is_meta<P>) {
    return static_cast<const T&>(*std::get<const T*>(call.attrs[index]));
  } else {
    const SlotRange& slot = call.slots[index];
    if constexpr (std::is_same_v<T, Meta>) {
      return *call.inputs[slot.first];
    } else if constexpr (std::is_same_v<T, const Meta*>) {
      return static_cast<const Meta*>(call.inputs[slot.first]);
    } else {
      for (const Meta* meta : call.inputs.subspan(slot.first, slot.count)) list.push_back(*meta);
      return std::span<const Meta>(list);
    }
  }
}

inline void add_output(OutputMetas& outputs, const Meta& meta) {
  outputs.slots.push_back({outputs.flat.size(), 1});
  outputs.flat.push_back(meta);
}
inline void add_output(OutputMetas& outputs, const std::vector<Meta>& metas) {
  outputs.slots.push_back({outputs.flat.size(), metas.size()});
  outputs.flat.insert(outputs.flat.end(), metas.begin(), metas.end());
}
template <class... Each>
void add_output(OutputMetas& outputs, const std::tuple<Each...>& metas) {
  std::apply([&](const auto&... each) { (add_output(outputs, each), ...); }, metas);
}

template <class Result, class... P>
OutputMetas call_infer(void (*function)(), const InferCall& call) {
  OutputMetas outputs;
  std::array<std::vector<Meta>, sizeof...(P) + 1> lists;
  const auto run = [&]<size_t... i>(std::index_sequence<i...>) {
    constexpr auto place = []<size_t at>(std::integral_constant<size_t, at>) {
      constexpr size_t tensors = count_before<at, is_meta<P>...>();
      return is_meta<std::tuple_element_t<at, std::tuple<P...>>> ? tensors : at - tensors;
    };
    return reinterpret_cast<Result (*)(const OpContext&, P...)>(function)(
        call.ctx, infer_argument<P, place(std::integral_constant<size_t, i>())>(call, lists[i])...);
  };
  add_output(outputs, run(std::index_sequence_for<P...>()));
  return outputs;
}

}  // namespace detail

/// The entry of an infer function.
template <class Result, class... P>
InferEntry infer_entry(Result (*function)(const OpContext&, P...)) {
  return {reinterpret_cast<void (*)()>(function), &detail::call_infer<Result, P...>};
}

}  // namespace shard
