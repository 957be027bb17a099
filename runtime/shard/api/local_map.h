// local_map: runs a user's function on the local shards of distributed tensors, as one step of a
// distributed program.
#pragma once

#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

#include "shard/call/local_map.h"
#include "shard/core/export.h"

namespace shard {
namespace detail {

/// Like call::run_local_map, and recorded for autograd.
SHARD_API std::vector<Tensor> run_local_map(const call::LocalFunction& function, std::span<const Tensor> inputs,
                                            std::span<const DistSpec* const> in_specs,
                                            std::span<const DistSpec* const> out_specs, const LocalMapOptions& options);

inline std::vector<Tensor> listed(Tensor value) { return {std::move(value)}; }
inline std::vector<Tensor> listed(std::vector<Tensor> values) { return values; }
template <class... T>
std::vector<Tensor> listed(std::tuple<T...> values) {
  return std::apply([](auto&... value) { return std::vector<Tensor>{std::move(value)...}; }, values);
}

template <class T>
struct Results;
template <>
struct Results<Tensor> {
  static constexpr size_t count = 1;
  static Tensor of(std::vector<Tensor> all) { return std::move(all[0]); }
};
template <>
struct Results<std::vector<Tensor>> {
  static std::vector<Tensor> of(std::vector<Tensor> all) { return all; }
};
template <class... T>
struct Results<std::tuple<T...>> {
  static constexpr size_t count = sizeof...(T);
  static std::tuple<T...> of(std::vector<Tensor> all) {
    return [&]<size_t... i>(std::index_sequence<i...>) { return std::tuple<T...>(std::move(all[i])...); }
    (std::index_sequence_for<T...>());
  }
};

}  // namespace detail

/// The result of local_map. Call it with distributed tensors, one for each input layout.
template <class Function>
class LocalMap {
 public:
  LocalMap(Function function, std::vector<const DistSpec*> in_specs, std::vector<const DistSpec*> out_specs,
           LocalMapOptions options)
      : function_(std::move(function)), in_specs_(std::move(in_specs)), out_specs_(std::move(out_specs)),
        options_(std::move(options)) {}

  template <std::same_as<Tensor>... T>
  auto operator()(const T&... inputs) const {
    return run(std::vector<Tensor>{inputs...}, std::index_sequence_for<T...>());
  }

 private:
  template <size_t... i>
  auto run(const std::vector<Tensor>& inputs, std::index_sequence<i...>) const {
    using Result = std::remove_cvref_t<decltype(function_(inputs[i]...))>;
    if constexpr (requires { detail::Results<Result>::count; }) {
      if (out_specs_.size() != detail::Results<Result>::count)
        call::fail_result_count(options_, detail::Results<Result>::count, out_specs_.size());
    }
    const auto local = [&](std::span<const Tensor> shards) { return detail::listed(function_(shards[i]...)); };
    return detail::Results<Result>::of(detail::run_local_map(local, inputs, in_specs_, out_specs_, options_));
  }

  Function function_;
  std::vector<const DistSpec*> in_specs_, out_specs_;
  LocalMapOptions options_;
};

/// Runs `function` as one step of a distributed program. Its inputs are resharded to `in_specs`,
/// and it gets this rank's local shards of them as plain tensors. The plain tensors that it returns
/// become local shards of outputs in `out_specs`, which may be pending. It takes as many tensors as
/// there are input layouts, and returns a Tensor, a std::tuple or a std::vector of them.
///
///     const auto f = local_map([](const Tensor& x, const Tensor& w) { return relu(matmul(x, w)); }, {rows, whole}, {rows});
///     const Tensor y = f(x, w);
///
/// All layouts are on one mesh. Ranks outside it do not run the function. An input with a null
/// layout stays as it is: a plain tensor is passed on, and of a distributed tensor the function
/// gets the existing local shard. CommPolicy applies to the reshards. Local shards are read-only
/// for the function, because the shard of an input that was not resharded is the tensor's own
/// buffer. A returned input is copied.
///
/// Global shapes come from `options.outputs`, or from an exchange of the local shapes over all
/// ranks of the world. Throws shape_mismatch with the rank whose result does not have the shape
/// that the layout assigns to it, dtype_mismatch if ranks disagree, layout for layouts that do not
/// fit, policy, and what `function` throws. None of these changes a tensor.
template <class Function>
LocalMap<Function> local_map(Function function, std::vector<const DistSpec*> in_specs,
                             std::vector<const DistSpec*> out_specs, LocalMapOptions options = {}) {
  return {std::move(function), std::move(in_specs), std::move(out_specs), std::move(options)};
}

}  // namespace shard
