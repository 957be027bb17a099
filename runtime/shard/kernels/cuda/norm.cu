// Normalisations of rows on CUDA: layer_norm, rms_norm, and their gradients. A row is read once where it fits in registers.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/weighted_rows.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// With `centred` as layer_norm, which subtracts the mean and keeps mean and variance; else as rms_norm, which keeps 1 / deviation.
template <class T, bool centred>
struct Normalise {
  using Element = T;
  using M = math_t<T>;
  static constexpr int kInputs = 1, kThreads = 1024;
  const T* in[1];
  T* out;
  M *mean, *spread;
  ColumnNumbers<T> scale, bias;
  M epsilon;

  template <class Plan>
  struct Work {
    const Normalise& op;
    MyNumbers<Plan> scale, bias;

    __device__ Work(const Normalise& op, int64_t size) : op(op), scale(op.scale, size), bias(op.bias, size) {}

    /// The mean over a row of what term(x) is.
    template <class Line, class F>
    __device__ M mean_of(const Line& row, F term) const {
      M sum = 0;
      row.each([&](int64_t, const auto& x) { sum += term(x[0]); });
      const M all = row.reduce(sum, Plus{});
      return row.size == 0 ? M(0) : all / static_cast<M>(row.size);
    }
    template <class Line>
    __device__ void operator()(const Line& row) const {
      M center = 0;
      if constexpr (centred) center = mean_of(row, [](M x) { return x; });
      const M variance = mean_of(row, [=](M x) { return (x - center) * (x - center); });
      const M inverse = M(1) / ::sqrt(variance + op.epsilon);
      row.each_piece([&](int64_t at, int chunk, const auto& x) {
        M factor[Plan::kWidth], numbers[Plan::kWidth];
        scale.get(at, chunk, factor);
        if constexpr (centred) bias.get(at, chunk, numbers);
#pragma unroll
        for (int w = 0; w < Plan::kWidth; ++w) {
          const M normal = (x[0][w] - center) * inverse * factor[w];
          numbers[w] = centred ? normal + numbers[w] : normal;
        }
        row.write_piece(op.out, at, numbers);
      });
      if (!row.leads()) return;
      if constexpr (centred) op.mean[row.index] = center;
      op.spread[row.index] = centred ? variance : inverse;
    }
    __device__ void finish(int64_t) const {}
  };
};

template <class T, bool centred>
void normalise(const OpContext& ctx, const Normalise<T, centred>& op, int64_t rows, int64_t size) {
  if (rows == 0) return;
  visit_row_plans<T, 1>(size, {op.in[0], op.out, op.scale.data, op.bias.data}, [&]<class Plan>(Plan) {
    const unsigned blocks = blocks_for_rows(rows, Plan::kThreads, Plan::kTogether, op.kThreads);
    launch_plan<Plan>(ctx, op, blocks, rows, size);
  });
}

template <class T>
void layer_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                float epsilon, int begin_norm_axis, DenseTensor& out, DenseTensor& mean, DenseTensor& variance) {
  using D = device_t<T>;
  refuse_reducer(ctx, "x");
  const Dims& dims = x.dims();
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, dims.rank());
  const DeviceScope scope(out.device().index);
  normalise<D, true>(ctx,
                     {{elements<const D>(x)},
                      elements<D>(out),
                      elements<math_t<D>>(mean),
                      elements<math_t<D>>(variance),
                      {scale, 1},
                      {bias, 0},
                      epsilon},
                     dims.numel(0, begin), dims.numel(begin, dims.rank()));
}

template <class T>
void rms_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, float epsilon, DenseTensor& out,
              DenseTensor& invvar) {
  using D = device_t<T>;
  refuse_reducer(ctx, "x");
  const int last = x.dims().rank() - 1;
  const DeviceScope scope(out.device().index);
  normalise<D, false>(ctx,
                      {{elements<const D>(x)},
                       elements<D>(out),
                       nullptr,
                       elements<math_t<D>>(invvar),
                       {scale, 1},
                       {DenseTensor(), 0},
                       epsilon},
                      x.dims().numel(0, last), x.dims()[last]);
}

template <class M>
struct TwoSums {
  M plain, normal;
};
struct AddTwo {
  template <class M>
  __device__ TwoSums<M> operator()(const TwoSums<M>& a, const TwoSums<M>& b) const {
    return {a.plain + b.plain, a.normal + b.normal};
  }
};

/// in: x and out_grad. With n = (x - mean) / deviation and h = out_grad * scale: out = (h - mean(h) - n * mean(h * n)) / deviation, of which
/// the mean of h is left out unless `centred`. The sums of out_grad * n and of out_grad over the rows of a block are those of scale and bias.
template <class T, bool centred>
struct NormaliseGrad {
  using Element = T;
  using M = math_t<T>;
  static constexpr int kInputs = 2, kThreads = 512;
  const T* in[2];
  T* out;                  // null where nobody wants it
  const M *mean, *spread;  // as of Normalise
  ColumnNumbers<T> scale;
  M epsilon;
  M *scale_sums, *bias_sums;  // [blocks, size], or null

  __device__ M center(int64_t row) const { return centred ? mean[row] : M(0); }
  __device__ M inverse(int64_t row) const { return centred ? M(1) / ::sqrt(spread[row] + epsilon) : spread[row]; }

  template <class Plan>
  struct Work {
    const NormaliseGrad& op;
    MyNumbers<Plan> scale;
    MySums<Plan> of_scale, of_bias;

    __device__ Work(const NormaliseGrad& op, int64_t size) : op(op), scale(op.scale, size) {}

    template <class Line>
    __device__ void operator()(const Line& row) {
      const M center = op.center(row.index), inverse = op.inverse(row.index);
      TwoSums<M> sums{0, 0};
      row.each_piece([&](int64_t at, int chunk, const auto& v) {
        M factor[Plan::kWidth];
        scale.get(at, chunk, factor);
#pragma unroll
        for (int w = 0; w < Plan::kWidth; ++w) {
          const M grad = v[1][w], normal = (v[0][w] - center) * inverse;
          sums.plain += grad * factor[w];
          sums.normal += grad * factor[w] * normal;
          if constexpr (Plan::kKeeps) {
            of_scale.add(chunk, w, grad * normal);
            if constexpr (centred) of_bias.add(chunk, w, grad);
          }
        }
      });
      if (op.out == nullptr) return;
      M along = 0, across;
      if constexpr (centred) {
        const TwoSums<M> all = row.reduce(sums, AddTwo{});
        along = all.plain / static_cast<M>(row.size);
        across = all.normal / static_cast<M>(row.size);
      } else {
        across = row.reduce(sums.normal, Plus{}) / static_cast<M>(row.size);
      }
      row.each_piece([&](int64_t at, int chunk, const auto& v) {
        M factor[Plan::kWidth], results[Plan::kWidth];
        scale.get(at, chunk, factor);
#pragma unroll
        for (int w = 0; w < Plan::kWidth; ++w) {
          const M normal = (v[0][w] - center) * inverse;
          results[w] = (v[1][w] * factor[w] - along - normal * across) * inverse;
        }
        row.write_piece(op.out, at, results);
      });
    }
    __device__ void finish(int64_t size) {
      if constexpr (Plan::kKeeps) {
        if (op.scale_sums != nullptr) of_scale.write(op.scale_sums, size);
        if (op.bias_sums != nullptr) of_bias.write(op.bias_sums, size);
      }
    }
  };
};

constexpr int kColumnThreads = 256;

/// The sums of columns for rows that are too long for NormaliseGrad to add them up. Part blockIdx.y of the rows is that of its row of sums.
template <class T, bool centred>
__global__ void sum_columns(NormaliseGrad<T, centred> op, int64_t rows, int64_t size) {
  using M = math_t<T>;
  const int64_t column = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (column >= size) return;
  const int64_t each = (rows + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each, last = min(first + each, rows);
  M scale = 0, bias = 0;
#pragma unroll 4
  for (int64_t row = first; row < last; ++row) {
    const M grad = load(op.in[1][row * size + column]), x = load(op.in[0][row * size + column]);
    scale += grad * ((x - op.center(row)) * op.inverse(row));
    bias += grad;
  }
  if (op.scale_sums != nullptr) op.scale_sums[blockIdx.y * size + column] = scale;
  if (op.bias_sums != nullptr) op.bias_sums[blockIdx.y * size + column] = bias;
}

/// out[c] = the sum of parts[.., c].
template <class T, class Out>
__global__ void add_parts(Out* out, const math_t<T>* parts, int64_t count, int64_t size) {
  using M = math_t<T>;
  SHARD_SHARED(slices, M[8][kWarp]);
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  M sum = 0;
  if (column < size) {
    for (int64_t part = threadIdx.y; part < count; part += 8) sum += parts[part * size + column];
  }
  slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= size) return;
  for (int slice = 1; slice < 8; ++slice) sum += slices[slice][threadIdx.x];
  out[column] = store<Out>(sum);
}

template <class T>
void write_sums(const OpContext& ctx, const math_t<T>* parts, int64_t count, DenseTensor& out) {
  if (!out.defined()) return;
  const int64_t size = out.numel();
  const auto blocks = static_cast<unsigned>((size + kWarp - 1) / kWarp);
  if (size_of(out.dtype()) == sizeof(T))
    launch(ctx, add_parts<T, T>, blocks, dim3(kWarp, 8), elements<T>(out), parts, count, size);
  else launch(ctx, add_parts<T, math_t<T>>, blocks, dim3(kWarp, 8), elements<math_t<T>>(out), parts, count, size);
}

template <class T, bool centred>
void normalise_grad(const OpContext& ctx, NormaliseGrad<T, centred> op, int64_t rows, int64_t size,
                    DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using M = math_t<T>;
  if (size == 0) return;
  if (rows == 0) {
    for (const DenseTensor* grad : {&scale_grad, &bias_grad}) {
      if (grad->defined()) fill_zeros(*grad);
    }
    return;
  }
  const bool sums = scale_grad.defined() || bias_grad.defined();
  visit_row_plans<T, 2>(size, {op.in[0], op.in[1], op.out, op.scale.data}, [&]<class Plan>(Plan) {
    unsigned blocks = blocks_for_rows(rows, Plan::kThreads, Plan::kTogether, op.kThreads), parts = blocks;
    if (!Plan::kKeeps) parts = static_cast<unsigned>(std::clamp<int64_t>(rows / 32, 1, 64));
    else if (sums) parts = blocks = std::min(blocks, blocks_for_rows((rows + 3) / 4, 1, Plan::kTogether, 1 << 20));
    const Scratch memory(sums ? 2 * sizeof(M) * parts * static_cast<size_t>(size) : sizeof(M));
    M* const numbers = static_cast<M*>(memory.data());
    if (scale_grad.defined()) op.scale_sums = numbers;
    if (bias_grad.defined()) op.bias_sums = numbers + parts * size;
    if (op.out != nullptr || (sums && Plan::kKeeps)) launch_plan<Plan>(ctx, op, blocks, rows, size);
    if (!Plan::kKeeps && sums) {
      const dim3 grid(static_cast<unsigned>((size + kColumnThreads - 1) / kColumnThreads), parts);
      launch(ctx, sum_columns<T, centred>, grid, kColumnThreads, op, rows, size);
    }
    write_sums<T>(ctx, op.scale_sums, parts, scale_grad);
    write_sums<T>(ctx, op.bias_sums, parts, bias_grad);
  });
}

template <class T>
T* elements_or_null(const DenseTensor& tensor) {
  return tensor.defined() ? elements<T>(tensor) : nullptr;
}

template <class T>
void layer_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& mean, const DenseTensor& variance, const DenseTensor& out_grad, float epsilon,
                     int begin_norm_axis, DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using D = device_t<T>;
  refuse_reducer(ctx, "x");
  const Dims& dims = x.dims();
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, dims.rank());
  const DeviceScope scope(x.device().index);
  normalise_grad<D, true>(ctx,
                          {{elements<const D>(x), elements<const D>(out_grad)},
                           elements_or_null<D>(x_grad),
                           elements<const math_t<D>>(mean),
                           elements<const math_t<D>>(variance),
                           {scale, 1},
                           epsilon,
                           nullptr,
                           nullptr},
                          dims.numel(0, begin), dims.numel(begin, dims.rank()), scale_grad, bias_grad);
}

template <class T>
void rms_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& invvar,
                   const DenseTensor& out_grad, DenseTensor& x_grad, DenseTensor& scale_grad) {
  using D = device_t<T>;
  refuse_reducer(ctx, "x");
  const int last = x.dims().rank() - 1;
  const DeviceScope scope(x.device().index);
  DenseTensor no_bias;
  normalise_grad<D, false>(ctx,
                           {{elements<const D>(x), elements<const D>(out_grad)},
                            elements_or_null<D>(x_grad),
                            nullptr,
                            elements<const math_t<D>>(invvar),
                            {scale, 1},
                            0,
                            nullptr,
                            nullptr},
                           x.dims().numel(0, last), x.dims()[last], scale_grad, no_bias);
}

}  // namespace

void register_norm(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("layer_norm", backend, dtype_of<T>, &layer_norm<T>);
    register_kernel("rms_norm", backend, dtype_of<T>, &rms_norm<T>);
    register_kernel("layer_norm_grad", backend, dtype_of<T>, &layer_norm_grad<T>);
    register_kernel("rms_norm_grad", backend, dtype_of<T>, &rms_norm_grad<T>);
  });
}

}  // namespace shard::cuda
