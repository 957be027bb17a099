// matmul on CUDA through cuBLASLt, for the float dtypes: batches with broadcast leading dims, transpose flags, vectors.
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
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr size_t kCachedPlans = 1024;

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ErrorCode::device, "{} failed: {}", call, cublasLtGetStatusString(status));
}

/// The two multiplied dims, and one leading dim: out[b] = x[b * x_step] * y[b * y_step], row-major.
struct Product {
  int64_t m = 1, n = 1, k = 1;
  bool transpose_x = false, transpose_y = false;
  int64_t batch = 1, x_step = 0, y_step = 0;
  DType dtype = DType::float32;
  int x_align = 256, y_align = 256, out_align = 256;

  auto operator<=>(const Product&) const = default;
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

/// The descriptors of cuBLASLt for one shape. As its matrices are column-major, it computes out' =
/// y' x'.
struct Plan {
  Operation operation;
  Layout x, y, out;
  cublasLtMatmulHeuristicResult_t choice{};
};

Operation make_operation(const Product& p) {
  const bool is_double = p.dtype == DType::float64;
  cublasLtMatmulDesc_t raw = nullptr;
  check_blas(cublasLtMatmulDescCreate(&raw, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                      is_double ? CUDA_R_64F : CUDA_R_32F),
             "cublasLtMatmulDescCreate");
  Operation operation(raw);
  const cublasOperation_t first = p.transpose_y ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.transpose_x ? CUBLAS_OP_T : CUBLAS_OP_N;
  check_blas(cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)),
             "cublasLtMatmulDescSetAttribute");
  check_blas(cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)),
             "cublasLtMatmulDescSetAttribute");
  return operation;
}

Preference make_preference(const Product& p) {
  cublasLtMatmulPreference_t raw = nullptr;
  check_blas(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  Preference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(raw, what, &value, sizeof(value)),
               "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.y_align));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.x_align));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.out_align));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.out_align));
  return preference;
}

Plan make_plan(cublasLtHandle_t handle, const Product& p) {
  Plan plan;
  plan.operation = make_operation(p);
  plan.x = make_layout(p.dtype, p.transpose_x ? p.k : p.m, p.transpose_x ? p.m : p.k, p.batch, p.x_step);
  plan.y = make_layout(p.dtype, p.transpose_y ? p.n : p.k, p.transpose_y ? p.k : p.n, p.batch, p.y_step);
  plan.out = make_layout(p.dtype, p.m, p.n, p.batch, p.m * p.n);
  const Preference preference = make_preference(p);
  int found = 0;
  check_blas(cublasLtMatmulAlgoGetHeuristic(handle, plan.operation.get(), plan.y.get(), plan.x.get(), plan.out.get(),
                                            plan.out.get(), preference.get(), 1, &plan.choice, &found),
             "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0) fail(ErrorCode::device, "cublasLtMatmulAlgoGetHeuristic found no algorithm for this shape");
  return plan;
}

/// The handle of this thread for one device, and the plans it has made.
struct Blas {
  Handle handle;
  std::map<Product, Plan> plans;

  Blas() {
    const std::lock_guard lock(recording_mutex());
    cublasLtHandle_t raw = nullptr;
    check_blas(cublasLtCreate(&raw), "cublasLtCreate");
    handle.reset(raw);
  }
  ~Blas() {
    const std::lock_guard lock(recording_mutex());
    plans.clear();
    handle.reset();
  }
  const Plan& plan(const Product& product) {
    if (const auto found = plans.find(product); found != plans.end()) return found->second;
    if (plans.size() == kCachedPlans) plans.clear();
    return plans.emplace(product, make_plan(handle.get(), product)).first->second;
  }
};

Blas& blas(int device) {
  thread_local std::map<int, Blas> of_device;
  return of_device[device];
}

int alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<int>(address & (~address + 1));
}

void multiply(int device, Product product, const char* x, const char* y, char* out) {
  product.x_align = alignment(x);
  product.y_align = alignment(y);
  product.out_align = alignment(out);
  Blas& library = blas(device);
  const Plan& plan = library.plan(product);
  const Scratch workspace(plan.choice.workspaceSize);
  const float one = 1, zero = 0;
  const double double_one = 1, double_zero = 0;
  const bool is_double = product.dtype == DType::float64;
  const void* alpha = is_double ? static_cast<const void*>(&double_one) : &one;
  const void* beta = is_double ? static_cast<const void*>(&double_zero) : &zero;
  check_blas(cublasLtMatmul(library.handle.get(), plan.operation.get(), alpha, y, plan.y.get(), x, plan.x.get(), beta,
                            out, plan.out.get(), out, plan.out.get(), &plan.choice.algo, workspace.data(),
                            plan.choice.workspaceSize, stream()),
             "cublasLtMatmul");
}

/// One leading dim: its size, and how many matrices each operand advances (0: broadcast).
struct Leading {
  int64_t size, x, y;
};

/// The leading dims without those of size 1; neighbours are merged where both operands traverse
/// them uniformly.
std::vector<Leading> leading_dims(const Dims& x, const Dims& y) {
  const int x_rank = std::max(x.rank() - 2, 0);
  const int y_rank = std::max(y.rank() - 2, 0);
  std::vector<Leading> joined;  // innermost first
  int64_t x_step = 1, y_step = 1;
  for (int back = 1; back <= std::max(x_rank, y_rank); ++back) {
    const int64_t x_size = back <= x_rank ? x[x_rank - back] : 1;
    const int64_t y_size = back <= y_rank ? y[y_rank - back] : 1;
    const Leading dim{std::max(x_size, y_size), x_size == 1 ? 0 : x_step, y_size == 1 ? 0 : y_step};
    x_step *= x_size;
    y_step *= y_size;
    if (dim.size == 1) continue;
    if (!joined.empty() && dim.x == joined.back().x * joined.back().size &&
        dim.y == joined.back().y * joined.back().size) {
      joined.back().size *= dim.size;
    } else {
      joined.push_back(dim);
    }
  }
  return joined;
}

Product product_of(const Meta& x, const Meta& y, bool transpose_x, bool transpose_y) {
  Product p;
  p.dtype = x.dtype;
  p.transpose_x = transpose_x && x.dims.rank() > 1;
  p.transpose_y = transpose_y && y.dims.rank() > 1;
  const auto size = [](const Dims& dims, int from_end) { return dims[dims.rank() - from_end]; };
  p.k = x.dims.rank() == 1 ? x.dims[0] : size(x.dims, p.transpose_x ? 2 : 1);
  p.m = x.dims.rank() == 1 ? 1 : size(x.dims, p.transpose_x ? 1 : 2);
  p.n = y.dims.rank() == 1 ? 1 : size(y.dims, p.transpose_y ? 2 : 1);
  return p;
}

/// Moves the innermost leading dim into the product: as more rows where all share one y, else as
/// its batch.
void take_innermost(Product& p, std::vector<Leading>& dims) {
  if (dims.empty()) return;
  const Leading dim = dims.front();
  dims.erase(dims.begin());
  if (dim.y == 0 && dim.x == 1 && !p.transpose_x) {
    p.m *= dim.size;
    return;
  }
  p.batch = dim.size;
  p.x_step = dim.x * p.m * p.k;
  p.y_step = dim.y * p.k * p.n;
}

void matmul(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool transpose_x, bool transpose_y,
            DenseTensor& out) {
  if (out.numel() == 0) return;
  const int device = out.device().index;
  const DeviceScope scope(device);
  Product p = product_of(x.meta(), y.meta(), transpose_x, transpose_y);
  if (p.k == 0) return check(cudaMemsetAsync(out.raw(), 0, out.meta().bytes(), stream()), "cudaMemsetAsync");
  std::vector<Leading> dims = leading_dims(x.dims(), y.dims());
  const size_t element = size_of(p.dtype);
  const size_t x_bytes = static_cast<size_t>(p.m * p.k) * element;
  const size_t y_bytes = static_cast<size_t>(p.k * p.n) * element;
  take_innermost(p, dims);
  const size_t out_bytes = static_cast<size_t>(p.batch * p.m * p.n) * element;
  const int64_t calls = out.numel() / (p.batch * p.m * p.n);
  for (int64_t call = 0; call < calls; ++call) {
    int64_t x_at = 0, y_at = 0, rest = call;
    for (const Leading& dim : dims) {
      x_at += rest % dim.size * dim.x;
      y_at += rest % dim.size * dim.y;
      rest /= dim.size;
    }
    try {
      multiply(device, p, static_cast<char*>(x.raw()) + static_cast<size_t>(x_at) * x_bytes,
               static_cast<char*>(y.raw()) + static_cast<size_t>(y_at) * y_bytes,
               static_cast<char*>(out.raw()) + static_cast<size_t>(call) * out_bytes);
    } catch (const Error& error) {
      fail(error.code(), "[{}] {} times {}: {}", ctx.op, to_string(x.meta()), to_string(y.meta()), error.what());
    }
  }
}

}  // namespace

void register_matmul(int backend) {
  for (const auto& row : kDataTypes) register_kernel("matmul", backend, row.first, matmul);
}

}  // namespace shard::cuda
