// Elementwise kernels on CUDA: the numbers that formulas compute with, and the launcher for tensors whose inputs are broadcast. A formula is
// a struct with a static function `apply`, as in kernels/formulas; its file registers it by add_unary, add_binary or add_ternary.
#pragma once

#include <algorithm>
#include <utility>

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/formula.cuh"
#include "shard/kernels/cuda/fused_loop.h"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {

/// The elements of a result, and where its inputs have theirs. They are computed in packs that are aligned in the result: the first one
/// begins `shift` elements before it. Indices have 32 bits; larger tensors are several such parts (for_small_parts).
template <int Inputs>
struct PackShape {
  Strided<Inputs> dims;        // at least one; in the last one an input has neighbours, or one element for all
  bool is_contiguous[Inputs];  // in all dims
  int64_t in_offset[Inputs] = {}, out_offset = 0;
  uint32_t shift = 0;

  PackShape(const Dims& out, const DenseTensor* const (&inputs)[Inputs]) {
    for (int i = 0; i < out.rank(); ++i) {
      int64_t steps[Inputs];
      for (int n = 0; n < Inputs; ++n) steps[n] = stride_at(broadcast_strides(inputs[n]->dims()), out.rank(), i);
      dims.append(out[i], steps);
    }
    if (dims.rank == 0) {  // of one element
      dims.rank = 1;
      dims.sizes[0] = 1;
      for (int n = 0; n < Inputs; ++n) dims.strides[n][0] = 0;
    }
    for (int n = 0; n < Inputs; ++n) is_contiguous[n] = inputs[n]->numel() == out.numel();
  }

  __host__ __device__ int64_t count() const {
    int64_t count = 1;
    for (int d = 0; d < dims.rank; ++d) count *= dims.sizes[d];
    return count;
  }
};

/// Calls use(part) for parts of at most `most` elements.
template <int Inputs, class Use>
void for_small_parts(PackShape<Inputs> shape, int64_t most, const Use& use) {
  const int64_t count = shape.count();
  if (count <= most) return use(shape);
  int d = 0;
  while (shape.dims.sizes[d] == 1) ++d;
  const int64_t size = shape.dims.sizes[d];
  shape.dims.sizes[d] = size / 2;
  for_small_parts(shape, most, use);
  for (int n = 0; n < Inputs; ++n) shape.in_offset[n] += size / 2 * shape.dims.strides[n][d];
  shape.out_offset += size / 2 * (count / size);
  shape.dims.sizes[d] = size - size / 2;
  for_small_parts(shape, most, use);
}

/// One of the packs of a result: `K` neighbours, of which those are elements for which has(k).
template <int K, int Inputs>
class ResultPack {
 public:
  __device__ ResultPack(const PackShape<Inputs>& shape, uint32_t count, uint32_t pack)
      : shape_(shape), first_(pack * K - shape.shift), begin_(pack == 0 ? static_cast<int>(shape.shift) : 0),
        end_(static_cast<int>(min(count - first_, uint32_t{K}))) {
    const uint32_t row = static_cast<uint32_t>(shape.dims.sizes[shape.dims.rank - 1]);
    in_row_ = shape.dims.rank == 1 || first_ % row + K <= row;
    if (is_full() && in_row_) shape.dims.locate(first_, at_);
  }
  __device__ bool has(int k) const { return begin_ <= k && k < end_; }

  /// Where input n has the element k.
  __device__ int64_t place(int n, int k) const {
    const uint32_t element = first_ + static_cast<uint32_t>(k);
    if (shape_.is_contiguous[n]) return shape_.in_offset[n] + element;
    int64_t at[Inputs];
    shape_.dims.locate(element, at);
    return shape_.in_offset[n] + at[n];
  }
  template <class T>
  __device__ void read(int n, const T* in, T (&values)[K]) const {
    const bool is_contiguous = shape_.is_contiguous[n];
    if (!is_full() || (!is_contiguous && !in_row_)) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (has(k)) values[k] = in[place(n, k)];
      }
      return;
    }
    in += shape_.in_offset[n] + (is_contiguous ? int64_t{first_} : at_[n]);
    if (!is_contiguous && shape_.dims.strides[n][shape_.dims.rank - 1] == 0) {
      const T value = *in;
#pragma unroll
      for (int k = 0; k < K; ++k) values[k] = value;
    } else if (reinterpret_cast<uintptr_t>(in) % (K * sizeof(T)) == 0) {
      load_elements<K>(in, 0, values);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) values[k] = in[k];
    }
  }
  template <class T>
  __device__ void write(T* out, const T (&values)[K]) const {
    out += shape_.out_offset;
    if (is_full()) return store_elements<K>(out + first_, 0, values);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (has(k)) out[first_ + static_cast<uint32_t>(k)] = values[k];
    }
  }

 private:
  __device__ bool is_full() const { return end_ - begin_ == K; }

  const PackShape<Inputs>& shape_;
  uint32_t first_;  // the number of element 0, modulo 2^32
  int begin_, end_;
  bool in_row_;              // whether all are in one row of the last dim
  int64_t at_[Inputs] = {};  // of element 0 in each input, if so
};

template <class Body>
__global__ void map_packs(PackShape<Body::kInputs> shape, uint32_t count, uint32_t packs, Body body) {
  for (uint32_t i = grid_first<uint32_t>(); i < packs; i += grid_step<uint32_t>())
    body.run(ResultPack<Body::kPack, Body::kInputs>(shape, count, i));
}

inline constexpr int kElementThreads = 256;
inline constexpr int64_t kMostOfPart = int64_t{1} << 31;

/// Issues map_packs for the packs of a part; `body` is the kernel's.
template <int Inputs>
using LaunchPacks = void(const OpContext& ctx, const PackShape<Inputs>& part, uint32_t count, uint32_t packs,
                         const void* body);

/// Launches all parts of `out`. It is compiled once for all bodies, of which there are thousands.
template <int Inputs>
void launch_parts(const OpContext& ctx, const DenseTensor& out, const DenseTensor* const (&inputs)[Inputs],
                  int64_t pack, int64_t most, LaunchPacks<Inputs>* launch_packs, const void* body) {
  if (out.numel() == 0) return;
  const int64_t element = static_cast<int64_t>(size_of(out.dtype()));
  for_small_parts(PackShape<Inputs>(out.dims(), inputs), most, [&](PackShape<Inputs> part) {
    part.shift = static_cast<uint32_t>((static_cast<int64_t>(address(out.raw())) / element + part.out_offset) % pack);
    const int64_t count = part.count(), packs = (count + part.shift + pack - 1) / pack;
    launch_packs(ctx, part, static_cast<uint32_t>(count), static_cast<uint32_t>(packs), body);
  });
}

/// Runs a body for the elements of `out`, to whose shape inputs are broadcast:
///   static constexpr int kInputs, kPack;
///   void run(const ResultPack<kPack, kInputs>& pack) const;   on the device
template <class Body>
void map_broadcast(const OpContext& ctx, const DenseTensor& out, const DenseTensor* const (&inputs)[Body::kInputs],
                   const Body& body, int64_t most = kMostOfPart) {
  constexpr auto launch_packs = [](const OpContext& op, const PackShape<Body::kInputs>& part, uint32_t count,
                                   uint32_t packs, const void* its_body) {
    launch(op, map_packs<Body>, grid_for(packs, kElementThreads), kElementThreads, part, count, packs,
           *static_cast<const Body*>(its_body));
  };
  launch_parts<Body::kInputs>(ctx, out, inputs, Body::kPack, most, launch_packs, &body);
}

/// As many elements of types of these sizes as have 16 bytes in the largest.
template <class... T>
inline constexpr int kTogether = 16 / static_cast<int>(std::max({sizeof(T)...}));

/// The inputs and the output of a formula, and the numbers of the op in the type of arithmetic.
template <class Formula, class V, class T, class Out, int Inputs>
struct FormulaBody {
  static constexpr int kInputs = Inputs, kPack = kTogether<T, Out>;
  const T* in[Inputs];
  Out* out;
  Numbers<V> numbers;

  __device__ void run(const ResultPack<kPack, Inputs>& pack) const {
    T values[Inputs][kPack];
#pragma unroll
    for (int n = 0; n < Inputs; ++n) pack.read(n, in[n], values[n]);
    Out results[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (!pack.has(k)) continue;
      if constexpr (Inputs == 1) results[k] = apply_formula<Formula, V, Out>(numbers, values[0][k]);
      else if constexpr (Inputs == 2) results[k] = apply_formula<Formula, V, Out>(numbers, values[0][k], values[1][k]);
      else results[k] = apply_formula<Formula, V, Out>(numbers, values[0][k], values[1][k], values[2][k]);
    }
    pack.write(out, results);
  }
};

template <class Formula, class V, class T, class Out, int Inputs>
void run_elementwise(const OpContext& ctx, const DenseTensor* const (&inputs)[Inputs], DenseTensor& out,
                     Numbers<V> numbers);

/// Whether the open loop of the thread takes the call of a formula.
template <class Formula, class V, class T, class Out, int Inputs>
bool join_loop(const OpContext& ctx, const DenseTensor* const (&inputs)[Inputs], const DenseTensor& out,
               const Numbers<V>& numbers) {
  using C = decltype(NumberValue<V>::of(numbers.first));
  const auto [space, name] = formula_name(__PRETTY_FUNCTION__);
  LoopCall call{
      .op = ctx.op, .formulas = space, .name = name, .number = dtype_of<C>, .is_vector = !std::is_same_v<V, C>};
  call.takes_numbers = []<int... n>(std::integer_sequence<int, n...>) {
    return TakesNumbers<Formula, V, std::conditional_t<n >= 0, V, V>...>;
  }
  (std::make_integer_sequence<int, Inputs>());
  const C values[2] = {NumberValue<V>::of(numbers.first), NumberValue<V>::of(numbers.second)};
  for (size_t i = 0; i < 2; ++i) memcpy(&call.numbers[i], &values[i], sizeof(C));
  call.inputs = inputs;
  call.out = &out;
  call.launch_alone = [](const OpContext& its_ctx, const LoopCall& its_call, std::span<const DenseTensor> in,
                         DenseTensor& result) {
    C its_values[2];
    for (size_t i = 0; i < 2; ++i) memcpy(&its_values[i], &its_call.numbers[i], sizeof(C));
    const DenseTensor* pointers[Inputs];
    for (size_t n = 0; n < Inputs; ++n) pointers[n] = &in[n];
    run_elementwise<Formula, V, T, Out, Inputs>(its_ctx, pointers, result,
                                                Numbers<V>{V(its_values[0]), V(its_values[1])});
  };
  return join_loop(call);
}

/// out = Formula of the inputs, which are broadcast to its shape.
template <class Formula, class V, class T, class Out, int Inputs>
void run_elementwise(const OpContext& ctx, const DenseTensor* const (&inputs)[Inputs], DenseTensor& out,
                     Numbers<V> numbers) {
  if (out.numel() == 0) return;
  if (loop_is_open() && join_loop<Formula, V, T, Out>(ctx, inputs, out, numbers)) return;
  const DeviceScope scope(out.device().index);
  FormulaBody<Formula, V, T, Out, Inputs> body{{}, elements<Out>(out), numbers};
  for (int n = 0; n < Inputs; ++n) body.in[n] = elements<const T>(*inputs[n]);
  map_broadcast(ctx, out, inputs, body);
}

/// The kernel of a formula of one, two or three tensors of T and of at most two numbers of types N; V is what it computes in.
template <class Formula, class V, class T, class R, class... N>
struct FormulaKernel {
  using D = device_t<T>;

  static void unary(const OpContext& ctx, const DenseTensor& x, N... numbers, DenseTensor& out) {
    run<1>(ctx, {&x}, out, numbers...);
  }
  static void binary(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, N... numbers, DenseTensor& out) {
    run<2>(ctx, {&x, &y}, out, numbers...);
  }
  static void ternary(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const DenseTensor& z,
                      N... numbers, DenseTensor& out) {
    run<3>(ctx, {&x, &y, &z}, out, numbers...);
  }

 private:
  template <int Inputs>
  static void run(const OpContext& ctx, const DenseTensor* const (&inputs)[Inputs], DenseTensor& out, N... numbers) {
    run_elementwise<Formula, V, D, device_t<R>, Inputs>(ctx, inputs, out,
                                                        Numbers<V>{V(static_cast<math_t<D>>(numbers))...});
  }
};

/// The kernel of a formula of vectors.
template <class Formula, class T, class... N>
using VectorKernel = FormulaKernel<Formula, number_t<device_t<T>>, T, T, N...>;
/// The kernel of a formula of single numbers.
template <class Formula, class T, class R>
using SingleKernel = FormulaKernel<Formula, math_t<device_t<T>>, T, R>;

/// The id of the backend "cuda".
inline int backend_id() {
  static const int id = find_backend("cuda");
  return id;
}

template <class Formula, class... N>
void add_unary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &VectorKernel<Formula, T, N...>::unary);
  });
}
template <class Formula, class... N>
void add_binary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &VectorKernel<Formula, T, N...>::binary);
  });
}
template <class Formula, class... N>
void add_ternary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &VectorKernel<Formula, T, N...>::ternary);
  });
}

}  // namespace shard::cuda
