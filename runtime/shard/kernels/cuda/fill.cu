// Copies and constants on CUDA: assign, full, full_like, numel, shape; and add_n, the sum of a list.
#include <optional>
#include <span>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/cuda/map.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {
namespace {

void assign(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  copy_all(x, out);
}

template <class Bits>
struct FillBody {
  Bits* out;
  Bits value;

  template <int N>
  __device__ void run(int64_t i) const {
    Bits values[N];
#pragma unroll
    for (Bits& one : values) one = value;
    store_elements<N>(out, i, values);
  }
};

template <size_t bytes>
using BitsOf =
    std::conditional_t<bytes == 1, uint8_t,
                       std::conditional_t<bytes == 2, uint16_t, std::conditional_t<bytes == 4, uint32_t, uint64_t>>>;

template <class T>
void full(const OpContext& ctx, const Scalar& value, DenseTensor& out) {
  using Bits = BitsOf<sizeof(T)>;
  const DeviceScope scope(out.device().index);
  const T element = value.to<T>();
  FillBody<Bits> body{elements<Bits>(out), 0};
  std::memcpy(&body.value, &element, sizeof(T));
  map(ctx, out.numel(), body, elements<const Bits>(out));
}

template <class T>
void full_like(const OpContext& ctx, const DenseTensor&, const Scalar& value, DenseTensor& out) {
  full<T>(ctx, value, out);
}

/// Sizes of a tensor are arguments of a kernel, so that nothing waits for a copy from the host.
struct Sizes {
  int64_t values[kMaxRank];
};
template <class I>
__global__ void write_sizes(int count, Sizes sizes, I* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) out[i] = static_cast<I>(sizes.values[i]);
}

void numel(const OpContext& ctx, const DenseTensor& x, DenseTensor& size) {
  const DeviceScope scope(size.device().index);
  const Sizes sizes{{ctx.input_box(0, x).global.numel()}};
  launch(ctx, write_sizes<int64_t>, 1, kWarp, 1, sizes, elements<int64_t>(size));
}

void shape(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  const Dims dims = ctx.input_box(0, x).global;
  if (dims.rank() == 0) return;
  static_assert(kMaxRank <= kWarp);
  const DeviceScope scope(out.device().index);
  Sizes sizes{};
  for (int d = 0; d < dims.rank(); ++d) sizes.values[d] = dims[d];
  launch(ctx, write_sizes<int32_t>, 1, kWarp, dims.rank(), sizes, elements<int32_t>(out));
}

constexpr int kAddends = 32;  // of a launch

/// The sum of the inputs in the order of the list, and before them of what earlier launches have added up.
template <class T, class Acc>
struct SumBody {
  const T* in[kAddends];
  int inputs;
  const Acc* before;  // null: nothing
  Acc* sums;          // null: the sum is complete
  T* out;

  template <int N>
  __device__ void run(int64_t i) const {
    Acc sum[N] = {};
    if (before != nullptr) load_elements<N>(before, i, sum);
    for (int n = 0; n < inputs; ++n) {
      math_t<T> addend[N];
      load_numbers<N>(in[n], i, addend);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = wrap_add(sum[k], addend[k]);
    }
    if (sums != nullptr) store_elements<N>(sums, i, sum);
    else store_numbers<N>(out, i, sum);
  }
};

/// 16-bit floats are rounded once, so that sums of more inputs than a launch takes stay in float32.
template <class T>
void add_n(const OpContext& ctx, std::span<const DenseTensor> inputs, DenseTensor& out) {
  using D = device_t<T>;
  using Acc = math_t<D>;
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  std::optional<Scratch> between;
  if (inputs.size() > kAddends) between.emplace(static_cast<size_t>(count) * sizeof(Acc));
  Acc* const sums = between ? static_cast<Acc*>(between->data()) : nullptr;
  for (size_t first = 0; first < inputs.size(); first += kAddends) {
    const size_t n = std::min<size_t>(kAddends, inputs.size() - first);
    const bool is_last = first + n == inputs.size();
    SumBody<D, Acc> body{
        {}, static_cast<int>(n), first == 0 ? nullptr : sums, is_last ? nullptr : sums, elements<D>(out)};
    bool aligned = true;
    for (size_t i = 0; i < n; ++i) {
      body.in[i] = elements<const D>(inputs[first + i]);
      aligned = aligned && is_aligned(body.in[i]);
    }
    if (aligned) map(ctx, count, body, elements<const D>(out), static_cast<const Acc*>(sums));
    else
      launch(ctx, map_kernel<1, decltype(body)>, grid_for(count, kElementThreads), kElementThreads, count, count, body);
  }
}

}  // namespace

void register_fill(int backend) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("assign", backend, dtype_of<T>, &assign);
    register_kernel("full", backend, dtype_of<T>, &full<T>);
    register_kernel("full_like", backend, dtype_of<T>, &full_like<T>);
    register_kernel("numel", backend, dtype_of<T>, &numel);
    register_kernel("shape", backend, dtype_of<T>, &shape);
  });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("add_n", backend, dtype_of<T>, &add_n<T>); });
}

}  // namespace shard::cuda
