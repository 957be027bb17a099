// matmul and the gradient of a linear layer on CUDA: floats through cuBLASLt, with a bias and an activation where a loop finds them behind
// the product, integers by a kernel; batches with broadcast leading dims, transpose flags, vectors.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/op_context.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/epilogue.h"
#include "shard/kernels/cuda/fused_loop.h"
#include "shard/kernels/cuda/product.cuh"
#include "shard/kernels/epilogue_ops.h"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr size_t kCachedPlans = 1024;
/// Of a call: cuBLASLt takes fewer than 2^16, and parts of this length stay aligned.
constexpr int64_t kMostMatrices = 1 << 15;
/// Vector accesses need no more. So buffers of a program, which are aligned to 64, have the plans of eager calls, and their bits.
constexpr uintptr_t kMostAlignment = 16;
static_assert(kBiasAlignment == kMostAlignment);

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ErrorCode::device, "{} failed: {}", call, cublasLtGetStatusString(status));
}

/// What is multiplied, as far as algorithms depend on it. The result has another dtype where it is not rounded to that of x and
/// y; `adds` to a matrix of the same dtype.
struct Shape {
  Product product;
  DType dtype = DType::float32, result = DType::float32;
  bool adds = false;
  uint32_t x_align = kMostAlignment, y_align = kMostAlignment, added_align = kMostAlignment, out_align = kMostAlignment;
  bool has_bias = false;
  Activation activation = Activation::none;

  bool has_epilogue() const { return has_bias || activation != Activation::none; }
  auto operator<=>(const Shape&) const = default;
};

/// The dtypes that are multiplied, and what cuBLAS calls them.
constexpr std::pair<DType, cudaDataType_t> kDataTypes[] = {{DType::float32, CUDA_R_32F},
                                                           {DType::float64, CUDA_R_64F},
                                                           {DType::bfloat16, CUDA_R_16BF},
                                                           {DType::float16, CUDA_R_16F}};

cudaDataType_t data_type(DType dtype) {
  return std::find_if(std::begin(kDataTypes), std::end(kDataTypes), [&](const auto& row) { return row.first == dtype; })
      ->second;
}

template <class T, cublasStatus_t (*Destroy)(T)>
struct Deleter {
  using pointer = T;
  void operator()(T handle) const { Destroy(handle); }
};
using Operation = std::unique_ptr<void, Deleter<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<void, Deleter<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<void, Deleter<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;
using Handle = std::unique_ptr<void, Deleter<cublasLtHandle_t, cublasLtDestroy>>;

/// A row-major rows x cols matrix, which cuBLAS reads as a column-major cols x rows one.
Layout make_layout(DType dtype, int64_t rows, int64_t cols, int64_t batch, int64_t step) {
  cublasLtMatrixLayout_t raw = nullptr;
  check_blas(cublasLtMatrixLayoutCreate(&raw, data_type(dtype), static_cast<uint64_t>(cols),
                                        static_cast<uint64_t>(rows), cols),
             "cublasLtMatrixLayoutCreate");
  Layout layout(raw);
  const int32_t count = static_cast<int32_t>(batch);
  check_blas(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
             "cublasLtMatrixLayoutSetAttribute");
  check_blas(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)),
             "cublasLtMatrixLayoutSetAttribute");
  return layout;
}

/// The descriptors of cuBLASLt for one shape. As its matrices are column-major, it computes out' = y' x', and a bias of its rows is one
/// of our columns.
struct Plan {
  Operation operation;
  Layout x, y, out;
  bool possible = true;  // false: there is no algorithm with this epilogue, or it was refused
  cublasLtMatmulHeuristicResult_t choice{};
};

cublasLtEpilogue_t epilogue_of(const Shape& shape) {
  const bool bias = shape.has_bias;
  switch (shape.activation) {
    case Activation::none: return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Activation::relu: return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::gelu_tanh: return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
  fail(ErrorCode::internal, "activation {} of a product", static_cast<int>(shape.activation));
}

void set_attribute(const Operation& operation, cublasLtMatmulDescAttributes_t what, const auto& value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation.get(), what, &value, sizeof(value)),
             "cublasLtMatmulDescSetAttribute");
}

/// `bias` is one of those that the operation is for: algorithms depend on its alignment.
Operation make_operation(const Shape& shape, const void* bias) {
  const Product& p = shape.product;
  const bool is_double = shape.dtype == DType::float64;
  cublasLtMatmulDesc_t raw = nullptr;
  check_blas(cublasLtMatmulDescCreate(&raw, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                      is_double ? CUDA_R_64F : CUDA_R_32F),
             "cublasLtMatmulDescCreate");
  Operation operation(raw);
  const cublasOperation_t first = p.transpose_y ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.transpose_x ? CUBLAS_OP_T : CUBLAS_OP_N;
  set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, first);
  set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, second);
  if (shape.has_epilogue())
    set_attribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue_of(shape)));
  if (bias != nullptr) set_attribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  return operation;
}

Preference make_preference(const Shape& shape) {
  cublasLtMatmulPreference_t raw = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  Preference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(raw, what, &value, sizeof(value)),
               "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Others round parts of a sum to the dtype of the result, or add them in an order that may change from run to run.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.y_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.added_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_align);
  return preference;
}

/// A plan without an algorithm.
Plan make_plan(const Shape& shape, const void* bias) {
  const Product& p = shape.product;
  Plan plan;
  plan.operation = make_operation(shape, bias);
  plan.x = make_layout(shape.dtype, p.transpose_x ? p.k : p.m, p.transpose_x ? p.m : p.k, p.batch, p.x_step);
  plan.y = make_layout(shape.dtype, p.transpose_y ? p.n : p.k, p.transpose_y ? p.k : p.n, p.batch, p.y_step);
  plan.out = make_layout(shape.result, p.m, p.n, p.batch, p.m * p.n);
  return plan;
}

void choose_algorithm(cublasLtHandle_t handle, const Shape& shape, Plan& plan) {
  const Preference preference = make_preference(shape);
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, plan.operation.get(), plan.y.get(), plan.x.get(), plan.out.get(),
                                     plan.out.get(), preference.get(), 1, &plan.choice, &found);
  plan.possible = status == CUBLAS_STATUS_SUCCESS && found != 0;
  if (plan.possible || shape.has_epilogue()) return;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  fail(ErrorCode::device, "cublasLtMatmulAlgoGetHeuristic found no algorithm for this shape");
}

/// Takes the algorithm of the product alone, so that its sums have the same bits.
void take_algorithm(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, Plan& plan) {
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, plan.operation.get(), plan.y.get(), plan.x.get(),
                                                        plan.out.get(), plan.out.get(), &algorithm, &plan.choice);
  plan.choice.algo = algorithm;
  plan.possible = status == CUBLAS_STATUS_SUCCESS && plan.choice.workspaceSize <= kWorkspaceBytes;
}

uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | kMostAlignment;
  return static_cast<uint32_t>(address & (~address + 1));
}

/// An address near that of a bias, which is aligned as each has to be and no more: an algorithm for it is one for all.
const void* least_aligned(const void* bias) {
  return static_cast<const char*>(bias) + (kBiasAlignment - reinterpret_cast<uintptr_t>(bias) % (2 * kBiasAlignment));
}

/// The handle of this thread for one device, and the plans it has made.
struct Blas {
  int device;
  Handle handle;
  std::map<Shape, Plan> plans;

  explicit Blas(int index) : device(index) {
    const std::lock_guard lock(recording_mutex());
    cublasLtHandle_t raw = nullptr;
    check_blas(cublasLtCreate(&raw), "cublasLtCreate");
    handle.reset(raw);
  }
  ~Blas() {
    const ReleaseScope scope(device);
    const std::lock_guard lock(recording_mutex());
    plans.clear();
    handle.reset();
  }
  Plan& plan(const Shape& shape, const void* bias) {
    if (const auto found = plans.find(shape); found != plans.end()) return found->second;
    Plan made = make_plan(shape, bias == nullptr ? nullptr : least_aligned(bias));
    if (shape.has_epilogue() && size_of(shape.dtype) > 2) {
      Shape alone = shape;
      alone.has_bias = false;
      take_algorithm(handle.get(), plan(alone, nullptr).choice.algo, made);
    } else {
      choose_algorithm(handle.get(), shape, made);
    }
    if (plans.size() == kCachedPlans) plans.clear();
    return plans.emplace(shape, std::move(made)).first->second;
  }
};

Blas& blas(int device) {
  thread_local std::map<int, Blas> of_device;
  return of_device.try_emplace(device, device).first->second;
}

void fill_with_zeros(const DenseTensor& out) {
  check(cudaMemsetAsync(out.raw(), 0, out.meta().bytes(), stream()), "cudaMemsetAsync");
}

/// The matrices of a product; `added` is null where nothing is added.
struct Operands {
  const void *x, *y, *added;
  void* out;
};

/// Whether a product that the library refuses with an epilogue may be possible without.
bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/// False where cuBLASLt has no algorithm with this epilogue.
bool multiply(int device, Shape shape, const Operands& data, const Epilogue& epilogue = {}) {
  shape.adds = data.added != nullptr;
  shape.activation = epilogue.activation;
  shape.has_bias = epilogue.bias != nullptr;
  const void* const added = shape.adds ? data.added : data.out;
  shape.x_align = alignment(data.x);
  shape.y_align = alignment(data.y);
  shape.added_align = alignment(added);
  shape.out_align = alignment(data.out);
  // Before the plan: this issues what a loop has kept, which may be a product that needs room for a plan of its own.
  const cudaStream_t own = stream();
  Blas& library = blas(device);
  Plan& plan = library.plan(shape, epilogue.bias);
  if (!plan.possible) return false;
  if (epilogue.bias != nullptr) set_attribute(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.bias);
  const Scratch workspace(plan.choice.workspaceSize);
  const float one = 1, factor = shape.adds ? 1 : 0;
  const double double_one = 1, double_factor = shape.adds ? 1 : 0;
  const bool is_double = shape.dtype == DType::float64;
  const void* alpha = is_double ? static_cast<const void*>(&double_one) : &one;
  const void* beta = is_double ? static_cast<const void*>(&double_factor) : &factor;
  const cublasStatus_t status = cublasLtMatmul(
      library.handle.get(), plan.operation.get(), alpha, data.y, plan.y.get(), data.x, plan.x.get(), beta, added,
      plan.out.get(), data.out, plan.out.get(), &plan.choice.algo, workspace.data(), plan.choice.workspaceSize, own);
  plan.possible = !shape.has_epilogue() || !is_refusal(status);
  if (plan.possible) check_blas(status, "cublasLtMatmul");
  return plan.possible;
}

/// Calls body(x, y, out) with the places of the matrices of each product that remains when the innermost leading dim is in `p`, whose
/// batch is at most kMostMatrices. The `count` elements of the result are at `out`.
template <class Body>
void for_products(const DenseTensor& x, const DenseTensor& y, void* out, int64_t count, Product& p, const Body& body) {
  std::vector<Leading> dims = leading_dims(x.dims(), y.dims());
  const size_t element = size_of(x.dtype());
  const size_t x_bytes = static_cast<size_t>(p.m * p.k) * element;
  const size_t y_bytes = static_cast<size_t>(p.k * p.n) * element;
  take_innermost(p, dims);
  const int64_t batch = p.batch;
  const size_t out_bytes = static_cast<size_t>(p.m * p.n) * element;
  const int64_t calls = count / (batch * p.m * p.n);
  for (int64_t call = 0; call < calls; ++call) {
    int64_t x_at = 0, y_at = 0, rest = call;
    for (const Leading& dim : dims) {
      x_at += rest % dim.size * dim.x;
      y_at += rest % dim.size * dim.y;
      rest /= dim.size;
    }
    for (int64_t begin = 0; begin < batch; begin += kMostMatrices) {
      p.batch = std::min(kMostMatrices, batch - begin);
      body(static_cast<const char*>(x.raw()) + static_cast<size_t>(x_at) * x_bytes +
               static_cast<size_t>(begin * p.x_step) * element,
           static_cast<const char*>(y.raw()) + static_cast<size_t>(y_at) * y_bytes +
               static_cast<size_t>(begin * p.y_step) * element,
           static_cast<char*>(out) + static_cast<size_t>(call * batch + begin) * out_bytes);
    }
  }
}

}  // namespace

bool run_product(const ProductCall& call, const Epilogue& epilogue, void* to) {
  const auto& [op, x, y, transpose_x, transpose_y, out] = call;
  const int device = out.device().index;
  // The product alone may have another algorithm there, and so other bits.
  if (alignment(to) != alignment(out.raw())) return false;
  const DeviceScope scope(device);
  Shape shape{product_of(x.dims(), y.dims(), transpose_x, transpose_y), x.dtype(), x.dtype()};
  bool possible = true;
  try {
    for_products(x, y, to, out.numel(), shape.product, [&](const char* x_of, const char* y_of, char* out_of) {
      possible = possible && multiply(device, shape, {x_of, y_of, nullptr, out_of}, epilogue);
    });
  } catch (const Error& error) {
    fail(error.code(), "[{}] {} times {}: {}", op, to_string(x.meta()), to_string(y.meta()), error.what());
  }
  return possible;
}

void matmul(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool transpose_x, bool transpose_y,
            DenseTensor& out) {
  if (out.numel() == 0) return;
  if (product_of(x.dims(), y.dims(), transpose_x, transpose_y).k == 0) {
    const DeviceScope scope(out.device().index);
    return fill_with_zeros(out);
  }
  const ProductCall call{ctx.op, x, y, transpose_x, transpose_y, out};
  if (loop_is_open() && lead_loop(call)) return;
  run_product(call, {}, out.raw());
}

namespace {

void matmul_integers(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool transpose_x,
                     bool transpose_y, DenseTensor& out) {
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  Product p = product_of(x.dims(), y.dims(), transpose_x, transpose_y);
  if (p.k == 0) return fill_with_zeros(out);
  for_products(x, y, out.raw(), out.numel(), p, [&](const char* x_of, const char* y_of, char* out_of) {
    multiply_integers(ctx, p, size_of(x.dtype()), x_of, y_of, out_of);
  });
}

/// Leading dims of x and dout count as one: the gradient of a weight is one product.
void linear_param_grad_add(const OpContext& ctx, const DenseTensor& x, const DenseTensor& dout,
                           const DenseTensor& dweight, const DenseTensor& dbias, bool, bool has_bias,
                           DenseTensor& dweight_out, DenseTensor& dbias_out) {
  const int last = x.dims().rank() - 1, device = dweight_out.device().index;
  const DeviceScope scope(device);
  Product p;
  p.m = x.dims()[last];
  p.n = dout.dims()[last];
  p.k = x.dims().numel(0, last);
  p.transpose_x = true;
  if (p.m != 0 && p.n != 0) {
    if (p.k != 0) {
      multiply(device, {p, x.dtype(), dweight_out.dtype()},
               {x.raw(), dout.raw(), dweight.defined() ? dweight.raw() : nullptr, dweight_out.raw()});
    } else if (dweight.defined()) {
      check(
          cudaMemcpyAsync(dweight_out.raw(), dweight.raw(), dweight.meta().bytes(), cudaMemcpyDeviceToDevice, stream()),
          "cudaMemcpyAsync");
    } else {
      fill_with_zeros(dweight_out);
    }
  }
  if (has_bias) sum_columns(ctx, dout, dbias, dbias_out);
}

}  // namespace

void register_matmul(int backend) {
  for (const auto& row : kDataTypes) {
    register_kernel("matmul", backend, row.first, matmul);
    register_kernel("fused_linear_param_grad_add", backend, row.first, linear_param_grad_add);
  }
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("matmul", backend, dtype_of<T>, matmul_integers); });
  note_epilogue_op(backend, "add", [](DType, const std::vector<Attr>&) { return true; });
  note_epilogue_op(backend, "relu", [](DType dtype, const std::vector<Attr>&) { return takes_activations(dtype); });
  note_epilogue_op(backend, "gelu", [](DType dtype, const std::vector<Attr>& attrs) {
    return takes_activations(dtype) && std::get<bool>(attrs[0]);  // by tanh
  });
}

}  // namespace shard::cuda
