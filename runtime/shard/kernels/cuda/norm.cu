// Normalisations of rows on CUDA: layer_norm, rms_norm, and their gradients. A row is read once where it fits in registers.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/weighted_rows.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/device_work.h"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// Of rows of which other ranks hold parts: the sums over whole rows, which have `size` elements. Null where rows are whole.
struct RowTotals {
  const double *sums = nullptr, *squares = nullptr;  // of elements, and of their distances from the mean
  double size = 0;
};

template <class T>
struct SumsOfRows {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;  // null
  double* sums;

  template <class Line>
  __device__ void operator()(const Line& row) const {
    math_t<T> sum = 0;
    row.each([&](int64_t, const auto& x) { sum += x[0]; });
    sum = row.reduce(sum, Plus{});
    if (row.leads()) sums[row.index] = static_cast<double>(sum);
  }
};
/// Of distances from the mean, or of elements where `totals` has no sums.
template <class T>
struct SquaresOfRows {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;  // null
  RowTotals totals;
  double* squares;

  template <class Line>
  __device__ void operator()(const Line& row) const {
    using M = math_t<T>;
    const M center = totals.sums == nullptr ? M(0) : static_cast<M>(totals.sums[row.index] / totals.size);
    M sum = 0;
    row.each([&](int64_t, const auto& x) { sum += (x[0] - center) * (x[0] - center); });
    sum = row.reduce(sum, Plus{});
    if (row.leads()) squares[row.index] = static_cast<double>(sum);
  }
};

/// Rows of x [rows, size] whose other parts other ranks hold, `whole` elements in all.
struct CombinedRows {
  DenseTensor sums, squares;
  RowTotals totals;
};
template <class T>
CombinedRows combine_rows(const OpContext& ctx, const DenseTensor& x, int64_t rows, int64_t size, int64_t whole,
                          bool centred) {
  CombinedRows all;
  if (ctx.reducer() == nullptr) return all;
  const LineShape shape{rows, size, 1};
  const T* const from = elements<const T>(x);
  all.totals.size = static_cast<double>(whole);
  if (centred) {
    all.sums = numbers_of_lines(x, rows);
    launch_lines(ctx, SumsOfRows<T>{{from}, nullptr, all.sums.data<double>()}, shape);
    ctx.all_reduce(all.sums, ReduceType::sum);
    all.totals.sums = all.sums.data<double>();
  }
  all.squares = numbers_of_lines(x, rows);
  launch_lines(ctx, SquaresOfRows<T>{{from}, nullptr, all.totals, all.squares.data<double>()}, shape);
  ctx.all_reduce(all.squares, ReduceType::sum);
  all.totals.squares = all.squares.data<double>();
  return all;
}

/// Where the columns of a shard of x are in its whole rows, which begin at dim `begin`.
struct Columns {
  Dims local, whole, first;

  Columns(const Dims& dims, const Box& box, int begin) {
    for (int d = begin; d < dims.rank(); ++d) {
      local.push_back(dims[d]);
      whole.push_back(box.global[d]);
      first.push_back(box.begin[d]);
    }
  }
  bool are_whole() const { return local == whole; }
  Dims none() const { return Dims::filled(local.rank(), 0); }

  /// The numbers of these columns, of `of_whole`, of which every rank has all.
  DenseTensor mine(const DenseTensor& of_whole) const {
    if (!of_whole.defined() || are_whole()) return of_whole;
    const DenseTensor part = DenseTensor::allocate(of_whole.device(), {Dims{local.numel()}, of_whole.dtype()});
    if (part.numel() == 0) return part;
    device_work(part.device())
        ->copy_box(part.device().index, {part.data<char>(), local, none()}, {of_whole.data<char>(), whole, first},
                   local, size_of(part.dtype()));
    return part;
  }
  /// Writes the sums of these columns, and those of the other ranks, into the gradient of all columns.
  void write(const OpContext& ctx, const DenseTensor& part, DenseTensor& of_whole) const {
    if (!of_whole.defined()) return;
    fill_zeros(of_whole);
    if (part.numel() != 0) {
      device_work(part.device())
          ->copy_box(part.device().index, {of_whole.data<char>(), whole, first}, {part.data<char>(), local, none()},
                     local, size_of(part.dtype()));
    }
    ctx.all_reduce(of_whole, ReduceType::sum);
  }
};

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
  RowTotals totals;

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
      M center = 0, variance;
      if (op.totals.squares != nullptr) {
        if constexpr (centred) center = static_cast<M>(op.totals.sums[row.index] / op.totals.size);
        variance = static_cast<M>(op.totals.squares[row.index] / op.totals.size);
      } else {
        if constexpr (centred) center = mean_of(row, [](M x) { return x; });
        variance = mean_of(row, [=](M x) { return (x - center) * (x - center); });
      }
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
  const Dims& dims = x.dims();
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, dims.rank());
  const int64_t rows = dims.numel(0, begin), size = dims.numel(begin, dims.rank());
  const DeviceScope scope(out.device().index);
  const Columns columns(dims, ctx.input_box(0, x), begin);
  const CombinedRows all = combine_rows<D>(ctx, x, rows, size, columns.whole.numel(), true);
  const DenseTensor my_scale = columns.mine(scale), my_bias = columns.mine(bias);
  normalise<D, true>(ctx,
                     {{elements<const D>(x)},
                      elements<D>(out),
                      elements<math_t<D>>(mean),
                      elements<math_t<D>>(variance),
                      {my_scale, 1},
                      {my_bias, 0},
                      epsilon,
                      all.totals},
                     rows, size);
}

template <class T>
void rms_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, float epsilon, DenseTensor& out,
              DenseTensor& invvar) {
  using D = device_t<T>;
  const int last = x.dims().rank() - 1;
  const int64_t rows = x.dims().numel(0, last), size = x.dims()[last];
  const DeviceScope scope(out.device().index);
  const CombinedRows all = combine_rows<D>(ctx, x, rows, size, ctx.input_box(0, x).global[last], false);
  normalise<D, false>(ctx,
                      {{elements<const D>(x)},
                       elements<D>(out),
                       nullptr,
                       elements<math_t<D>>(invvar),
                       {scale, 1},
                       {DenseTensor(), 0},
                       epsilon,
                       all.totals},
                      rows, size);
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
  const double* totals;       // of whole rows [rows, centred ? 2 : 1], of which other ranks hold parts; or null
  M whole;                    // elements of such a row
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
      if (op.totals != nullptr) {
        const double* const all = op.totals + row.index * (centred ? 2 : 1);
        if constexpr (centred) along = static_cast<M>(*all) / op.whole;
        across = static_cast<M>(all[centred ? 1 : 0]) / op.whole;
      } else if constexpr (centred) {
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

/// Those of the parts of rows that are here.
template <class T, bool centred>
struct GradTotals {
  using Element = T;
  using M = math_t<T>;
  static constexpr int kInputs = 2;
  const T* in[2];
  T* out;  // null
  NormaliseGrad<T, centred> op;
  double* totals;

  template <class Line>
  __device__ void operator()(const Line& row) const {
    const M center = op.center(row.index), inverse = op.inverse(row.index);
    TwoSums<M> sums{0, 0};
    row.each([&](int64_t i, const auto& v) {
      M factor[1];
      op.scale.read(i, factor);
      sums.plain += v[1] * factor[0];
      sums.normal += v[1] * factor[0] * ((v[0] - center) * inverse);
    });
    sums = row.reduce(sums, AddTwo{});
    if (!row.leads()) return;
    double* const to = totals + row.index * (centred ? 2 : 1);
    if constexpr (centred) *to = static_cast<double>(sums.plain);
    to[centred ? 1 : 0] = static_cast<double>(sums.normal);
  }
};
/// Over all ranks; none where rows are whole, or nobody wants the gradient of x.
template <class T, bool centred>
DenseTensor combine_grads(const OpContext& ctx, NormaliseGrad<T, centred>& op, const DenseTensor& x,
                          const DenseTensor& x_grad, int64_t rows, int64_t size, int64_t whole) {
  if (ctx.reducer() == nullptr || !x_grad.defined()) return {};
  DenseTensor totals = numbers_of_lines(x, rows, centred ? 2 : 1);
  launch_lines(ctx, GradTotals<T, centred>{{op.in[0], op.in[1]}, nullptr, op, totals.data<double>()},
               LineShape{rows, size, 1});
  ctx.all_reduce(totals, ReduceType::sum);
  op.totals = totals.data<double>();
  op.whole = static_cast<math_t<T>>(whole);
  return totals;
}

constexpr int kColumnThreads = 256;

/// The sums of columns for rows that are too long for NormaliseGrad to add them up. Part blockIdx.y of the rows is that of its row of sums.
template <class T, bool centred>
__global__ void sum_norm_columns(NormaliseGrad<T, centred> op, int64_t rows, int64_t size) {
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
      launch(ctx, sum_norm_columns<T, centred>, grid, kColumnThreads, op, rows, size);
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
  using M = math_t<D>;
  const Dims& dims = x.dims();
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, dims.rank());
  const int64_t rows = dims.numel(0, begin), size = dims.numel(begin, dims.rank());
  const DeviceScope scope(x.device().index);
  const Columns columns(dims, ctx.input_box(0, x), begin);
  const DenseTensor my_scale = columns.mine(scale);
  NormaliseGrad<D, true> op{{elements<const D>(x), elements<const D>(out_grad)},
                            elements_or_null<D>(x_grad),
                            elements<const M>(mean),
                            elements<const M>(variance),
                            {my_scale, 1},
                            epsilon,
                            nullptr,
                            M(0),
                            nullptr,
                            nullptr};
  const DenseTensor totals = combine_grads(ctx, op, x, x_grad, rows, size, columns.whole.numel());
  if (ctx.reducer() == nullptr) return normalise_grad(ctx, op, rows, size, scale_grad, bias_grad);
  const auto part_of = [&](const DenseTensor& grad) {
    return grad.defined() ? DenseTensor::allocate(grad.device(), {Dims{size}, grad.dtype()}) : DenseTensor();
  };
  DenseTensor my_scale_grad = part_of(scale_grad), my_bias_grad = part_of(bias_grad);
  normalise_grad(ctx, op, rows, size, my_scale_grad, my_bias_grad);
  columns.write(ctx, my_scale_grad, scale_grad);
  columns.write(ctx, my_bias_grad, bias_grad);
}

template <class T>
void rms_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& invvar,
                   const DenseTensor& out_grad, DenseTensor& x_grad, DenseTensor& scale_grad) {
  using D = device_t<T>;
  using M = math_t<D>;
  const int last = x.dims().rank() - 1;
  const int64_t rows = x.dims().numel(0, last), size = x.dims()[last];
  const DeviceScope scope(x.device().index);
  DenseTensor no_bias;
  NormaliseGrad<D, false> op{{elements<const D>(x), elements<const D>(out_grad)},
                             elements_or_null<D>(x_grad),
                             nullptr,
                             elements<const M>(invvar),
                             {scale, 1},
                             0,
                             nullptr,
                             M(0),
                             nullptr,
                             nullptr};
  const DenseTensor totals = combine_grads(ctx, op, x, x_grad, rows, size, ctx.input_box(0, x).global[last]);
  normalise_grad(ctx, op, rows, size, scale_grad, no_bias);
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
