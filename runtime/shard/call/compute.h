// How a dense function runs its kernel: it looks the kernel up by the types of its arguments,
// allocates the outputs and calls it.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "shard/call/dense_call.h"

namespace shard::call {

/// Stands for the random key among a kernel's arguments. The key is drawn after all other arguments
/// have been checked.
struct DrawnKey {};
inline constexpr DrawnKey drawn_key{};

namespace detail {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// The type of a kernel's parameter for an argument of type T: small values by value, lists as
/// spans, everything else by const reference.
template <class T>
auto parameter_type() {
  if constexpr (std::is_same_v<T, std::vector<DenseTensor>> || std::is_same_v<T, std::span<const DenseTensor>> ||
                std::is_same_v<T, Targets>) {
    return std::type_identity<std::span<const DenseTensor>>();
  } else if constexpr (std::is_same_v<T, DrawnKey>) {
    return std::type_identity<RandomKey>();
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, Device> ||
                       IsOptional<T>::value) {
    return std::type_identity<T>();
  } else if constexpr (std::is_array_v<T>) {
    return std::type_identity<const std::remove_extent_t<T>*>();  // a string literal
  } else {
    return std::type_identity<const T&>();
  }
}
template <class T>
using Parameter = typename decltype(parameter_type<T>())::type;

template <class M>
using Output =
    std::conditional_t<std::is_base_of_v<Meta, std::remove_const_t<M>>, DenseTensor, std::vector<DenseTensor>>;
template <class M>
using OutputParameter =
    std::conditional_t<std::is_base_of_v<Meta, std::remove_const_t<M>>, DenseTensor&, std::span<DenseTensor>>;

template <class T>
void visit_device(const OpContext& ctx, const T& argument, const DenseTensor*& first) {
  if constexpr (std::is_same_v<T, DenseTensor> || std::is_same_v<Parameter<T>, std::span<const DenseTensor>>)
    gather_device(ctx, argument, first);
}

inline DenseTensor make(const OpContext& ctx, Device device, const Meta& meta) { return allocate(ctx, device, meta); }
inline DenseTensor make(const OpContext&, Device, const DynamicMeta&) { return {}; }
inline std::vector<DenseTensor> make(const OpContext& ctx, Device device, std::span<const Meta> metas) {
  return allocate_list(ctx, device, metas);
}

/// Throws for an output whose number of rows comes from data if this is a dry world, which has no
/// data.
inline void check_known(const OpContext&, const Meta&) {}
inline void check_known(const OpContext&, std::span<const Meta>) {}
inline void check_known(const OpContext& ctx, const DynamicMeta& most) {
  if (ctx.launcher != nullptr) fail_unbounded(ctx, most);
}

template <class T>
const T& given(const OpContext&, const T& argument) {
  return argument;
}
inline RandomKey given(const OpContext& ctx, const DrawnKey&) { return draw(ctx); }

}  // namespace detail

/// The device that the tensors among a kernel's arguments are on. Throws mixed_device.
template <class... Args>
Device device_of(const OpContext& ctx, const Args&... args) {
  const DenseTensor* first = nullptr;
  (detail::visit_device(ctx, args, first), ...);
  return first == nullptr ? kCpu : first->device();
}

namespace detail {

template <class... Metas, class... Args>
auto compute_on(Device device, const OpContext& ctx, const KernelTable& kernels, DType dtype,
                std::tuple<Metas&...> metas, const Args&... args) {
  using Kernel = void(const OpContext&, detail::Parameter<Args>..., detail::OutputParameter<Metas>...);
  using Outputs = std::tuple<detail::Output<Metas>...>;
  const auto make_all = [&](auto&... meta) {
    const auto kernel = kernels.find<Kernel>(ctx, device, dtype);
    (check_known(ctx, meta), ...);
    Outputs outputs{detail::make(ctx, device, meta)...};
    std::apply([&](auto&... output) { run(kernel, ctx, detail::given(ctx, args)..., output...); }, outputs);
    return outputs;
  };
  return std::apply(make_all, metas);
}

template <class M, class... Args>
Output<M> compute_one(Device device, const OpContext& ctx, const KernelTable& kernels, DType dtype, const M& meta,
                      const Args&... args) {
  using Kernel = void(const OpContext&, Parameter<Args>..., OutputParameter<M>);
  const auto kernel = kernels.find<Kernel>(ctx, device, dtype);
  check_known(ctx, meta);
  Output<M> output = make(ctx, device, meta);
  run(kernel, ctx, given(ctx, args)..., output);
  return output;
}

/// A single output is never moved: it needs no tuple around it and is constructed where it is
/// returned.
template <class M, class... Args>
Output<M> compute_on(Device device, const OpContext& ctx, const KernelTable& kernels, DType dtype, std::tuple<M&> meta,
                     const Args&... args) {
  return compute_one<M>(device, ctx, kernels, dtype, std::get<0>(meta), args...);
}

/// A single value as a tuple of one reference to it. A tuple is returned as it is.
template <class T>
auto as_tuple(T& value) {
  if constexpr (IsTuple<std::remove_const_t<T>>::value) return value;
  else return std::tie(value);
}

inline DenseTensor make_target(InplaceWrite& write, DenseTensor& x, const Meta& meta) { return write.target(x, meta); }
inline std::vector<DenseTensor> make_target(InplaceWrite& write, Targets x, std::span<const Meta> metas) {
  return write.targets(x, metas);
}

/// Like InplaceWrite::reader, but the argument is only copied if it has to be.
class SafeReader {
 public:
  SafeReader(const InplaceWrite& write, const DenseTensor& tensor) : tensor_(tensor) {
    if (write.must_copy(tensor)) copy_ = write.reader(tensor);
  }
  const DenseTensor& get() const { return copy_.defined() ? copy_ : tensor_; }

 private:
  const DenseTensor& tensor_;
  DenseTensor copy_;
};
inline const DenseTensor& given(const OpContext&, const SafeReader& reader) { return reader.get(); }

/// An argument that can be read safely while the targets are written. An argument that is not a
/// const reference is a target; its reader is the kernel that computes its own result.
template <class T>
decltype(auto) safe(const InplaceWrite& write, T& argument) {
  using Value = std::remove_const_t<T>;
  if constexpr (std::is_same_v<T, const DenseTensor>) return SafeReader(write, argument);
  else if constexpr (std::is_same_v<Value, Targets>) return values(argument);
  else if constexpr (std::is_same_v<Parameter<Value>, std::span<const DenseTensor>>) return write.readers(argument);
  else return (argument);
}

template <class... Outs, class... Metas, class... Args>
void compute_inplace(const OpContext& ctx, const OpDef& op, const KernelTable& kernels, DType dtype,
                     std::tuple<Outs&...> targets, std::tuple<Metas&...> metas, Args&... args) {
  using Kernel =
      void(const OpContext&, detail::Parameter<std::remove_const_t<Args>>..., detail::OutputParameter<Metas>...);
  const auto kernel = kernels.find<Kernel>(ctx, device_of(ctx, args...), dtype);
  InplaceWrite write(ctx, op);
  const auto make_all = [&]<size_t... i>(std::index_sequence<i...>) {
    return std::tuple<detail::Output<Metas>...>{
        detail::make_target(write, std::get<i>(targets), std::get<i>(metas))...};
  };
  auto outputs = make_all(std::index_sequence_for<Metas...>());
  const auto readers = std::tuple<decltype(detail::safe(write, args))...>(detail::safe(write, args)...);
  std::apply(
      [&](const auto&... reader) {
        std::apply([&](auto&... output) { write.run(kernel, ctx, detail::given(ctx, reader)..., output...); }, outputs);
      },
      readers);
}

}  // namespace detail

/// Runs a kernel on `device` with new outputs of the given metas, and returns the outputs: a single
/// one for one meta, a tuple for std::tie of several metas. `args` are the kernel's arguments.
template <class Metas, class... Args>
auto compute_on(Device device, const OpContext& ctx, const KernelTable& kernels, DType dtype, const Metas& metas,
                const Args&... args) {
  return detail::compute_on(device, ctx, kernels, dtype, detail::as_tuple(metas), args...);
}

/// Like compute_on, on the device of the tensors.
template <class Metas, class... Args>
auto compute(const OpContext& ctx, const KernelTable& kernels, DType dtype, const Metas& metas, const Args&... args) {
  return detail::compute_on(device_of(ctx, args...), ctx, kernels, dtype, detail::as_tuple(metas), args...);
}

/// Runs a kernel that writes its outputs into `targets` (one, or std::tie of several), then bumps
/// their versions. The targets among `args` are the arguments that are not const references. A
/// tensor may be both a target and a read-only argument.
template <class Outs, class Metas, class... Args>
void compute_inplace(const OpContext& ctx, const OpDef& op, const KernelTable& kernels, DType dtype, Outs&& targets,
                     const Metas& metas, Args&&... args) {
  detail::compute_inplace(ctx, op, kernels, dtype, detail::as_tuple(targets), detail::as_tuple(metas), args...);
}

}  // namespace shard::call
