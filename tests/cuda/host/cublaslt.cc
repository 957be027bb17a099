// cuBLASLt of the host model. Sizes, strides and alignments are checked as the library documents them; results are summed in
// double, and rounded to the type of the computation before the epilogue.
#include "include/cublasLt.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "access.h"
#include "memory.h"
#include "shard/core/float16.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;

  bool has(cublasLtEpilogue_t part) const { return (epilogue & static_cast<uint32_t>(part)) != 0; }
  bool has_epilogue() const { return epilogue != CUBLASLT_EPILOGUE_DEFAULT; }
};
struct cublasLtMatrixLayoutOpaque {
  cudaDataType_t type;
  int64_t rows, cols, leading;
  int32_t batch = 1;
  int64_t step = 0;
};
/// The alignments of A, B, C and D that an algorithm may rely on, in bytes, and how it may add up parts of a sum.
struct cublasLtMatmulPreferenceOpaque {
  uint16_t alignments[4] = {256, 256, 256, 256};
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

namespace {

using Layout = cublasLtMatrixLayoutOpaque;

std::atomic<int> heuristics = 0, products = 0, epilogues = 0;
std::atomic<cublasStatus_t> epilogue_searches = CUBLAS_STATUS_SUCCESS, epilogue_products = CUBLAS_STATUS_SUCCESS;

size_t size_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

double read(const void* data, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_32F: return static_cast<double>(static_cast<const float*>(data)[i]);
    case CUDA_R_64F: return static_cast<const double*>(data)[i];
    case CUDA_R_16F: return static_cast<double>(static_cast<float>(static_cast<const shard::float16*>(data)[i]));
    case CUDA_R_16BF: return static_cast<double>(static_cast<float>(static_cast<const shard::bfloat16*>(data)[i]));
  }
  return 0;
}

void write(void* data, cudaDataType_t type, int64_t i, double value) {
  switch (type) {
    case CUDA_R_32F: static_cast<float*>(data)[i] = static_cast<float>(value); break;
    case CUDA_R_64F: static_cast<double*>(data)[i] = value; break;
    case CUDA_R_16F: static_cast<shard::float16*>(data)[i] = shard::float16(static_cast<float>(value)); break;
    case CUDA_R_16BF: static_cast<shard::bfloat16*>(data)[i] = shard::bfloat16(static_cast<float>(value)); break;
  }
}

struct Call {
  cublasLtMatmulDescOpaque operation;
  double alpha, beta;
  const void *a, *b, *c;
  void* d;
  Layout of_a, of_b, of_c, of_d;
};

void use_matrices(const char* name, const void* data, const Layout& layout, cuda_host::Kind kind) {
  const int64_t last = (layout.batch - 1) * layout.step + (layout.cols - 1) * layout.leading + layout.rows;
  cuda_host::use_range(std::string("cublasLtMatmul: ") + name, data, static_cast<size_t>(last) * size_of(layout.type),
                       kind);
}

/// Matrix `n` of a batch as doubles, with the summed dim innermost.
std::vector<double> unpack(const void* data, const Layout& layout, int64_t n, bool rows_are_summed) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(layout.rows * layout.cols));
  const int64_t outer = rows_are_summed ? layout.cols : layout.rows,
                inner = rows_are_summed ? layout.rows : layout.cols;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t k = 0; k < inner; ++k) {
      const int64_t row = rows_are_summed ? k : i, col = rows_are_summed ? i : k;
      values.push_back(read(data, layout.type, n * layout.step + row + col * layout.leading));
    }
  }
  return values;
}

/// T is the type of the computation. NaN becomes 0 by relu, and -infinity becomes NaN by gelu, as on devices.
template <class T>
T finish(const Call& call, T value, int64_t row) {
  if (call.operation.has(CUBLASLT_EPILOGUE_BIAS))
    value += static_cast<T>(read(call.operation.bias, call.of_d.type, row));
  if (call.operation.has(CUBLASLT_EPILOGUE_RELU) && !(value > 0)) return 0;
  if (!call.operation.has(CUBLASLT_EPILOGUE_GELU)) return value;
  return T(0.5) * value * (1 + std::tanh(T(0.7978845608028654) * (value + T(0.044715) * value * value * value)));
}

void multiply(const Call& call) {
  const cuda_host::DeviceAccess access;
  using cuda_host::Kind;
  use_matrices("matrix A", call.a, call.of_a, Kind::read);
  use_matrices("matrix B", call.b, call.of_b, Kind::read);
  if (call.beta != 0) use_matrices("matrix C", call.c, call.of_c, Kind::read);
  use_matrices("matrix D", call.d, call.of_d, Kind::write);
  if (call.operation.has(
          CUBLASLT_EPILOGUE_BIAS)) {  // an element of D's type for each row, the same in each matrix of a batch
    Layout bias = call.of_d;
    bias.batch = bias.cols = 1;
    use_matrices("the bias", call.operation.bias, bias, Kind::read);
  }
  const bool a_turned = call.operation.transpose_a == CUBLAS_OP_T, b_turned = call.operation.transpose_b == CUBLAS_OP_T;
  const int64_t terms = a_turned ? call.of_a.rows : call.of_a.cols;
  for (int64_t n = 0; n < call.of_d.batch; ++n) {
    const std::vector<double> a = unpack(call.a, call.of_a, n, a_turned), b = unpack(call.b, call.of_b, n, !b_turned);
    for (int64_t col = 0; col < call.of_d.cols; ++col) {
      for (int64_t row = 0; row < call.of_d.rows; ++row) {
        const double sum =
            std::inner_product(a.begin() + row * terms, a.begin() + (row + 1) * terms, b.begin() + col * terms, 0.0);
        const int64_t at = n * call.of_d.step + row + col * call.of_d.leading;
        const double before = call.beta == 0 ? 0 : call.beta * read(call.c, call.of_c.type, at);
        const double product = call.alpha * sum + before;
        const bool is_double = call.operation.compute == CUBLAS_COMPUTE_64F;
        write(call.d, call.of_d.type, at,
              is_double ? finish(call, product, row) : finish(call, static_cast<float>(product), row));
      }
    }
  }
}

constexpr int32_t kMostMatrices = 65535;

bool agree(const cublasLtMatmulDescOpaque& operation, const Layout& a, const Layout& b, const Layout& d) {
  const bool a_turned = operation.transpose_a == CUBLAS_OP_T, b_turned = operation.transpose_b == CUBLAS_OP_T;
  return (a_turned ? a.cols : a.rows) == d.rows && (b_turned ? b.rows : b.cols) == d.cols &&
         (a_turned ? a.rows : a.cols) == (b_turned ? b.cols : b.rows) && a.batch == d.batch && b.batch == d.batch &&
         d.batch <= kMostMatrices && a.type == b.type;
}

/// What an algorithm relies on: the alignments of A, B, C and D, and that of the bias, if it is for one.
struct Algorithm {
  uint16_t alignments[4];
  uint64_t bias_alignment;
};

uint64_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 256;
  return address & (~address + 1);
}

/// Whether there is an algorithm with the epilogue of the operation.
cublasStatus_t support(const cublasLtMatmulDescOpaque& operation, cublasStatus_t of_epilogues) {
  if (!operation.has_epilogue()) return CUBLAS_STATUS_SUCCESS;
  return operation.has(CUBLASLT_EPILOGUE_BIAS) && operation.bias == nullptr ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                            : of_epilogues;
}

}  // namespace

cuda_host::BlasCalls cuda_host::blas_calls() { return {heuristics, products, epilogues}; }
cuda_host::NoEpilogues::NoEpilogues(cublasStatus_t of_searches, cublasStatus_t of_products) {
  epilogue_searches = of_searches;
  epilogue_products = of_products;
}
cuda_host::NoEpilogues::~NoEpilogues() { epilogue_searches = epilogue_products = CUBLAS_STATUS_SUCCESS; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
  *made = new cublasLtMatmulDescOpaque{compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  const auto set = [&](auto& attribute) {
    if (bytes != sizeof(attribute)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&attribute, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(operation->transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(operation->transpose_b);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(operation->bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: break;
  }
  if (set(operation->epilogue) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
  switch (operation->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS: return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t leading) {
  if (rows == 0 || cols == 0 || leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *made = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what,
                                                const void* value, size_t bytes) {
  const bool is_batch = what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (bytes != (is_batch ? sizeof(layout->batch) : sizeof(layout->step))) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(is_batch ? static_cast<void*>(&layout->batch) : &layout->step, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new cublasLtMatmulPreferenceOpaque;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                                    size_t bytes) {
  const bool is_size = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  if (bytes != (is_size ? sizeof(uint64_t) : sizeof(uint32_t))) return CUBLAS_STATUS_INVALID_VALUE;
  if (is_size) return CUBLAS_STATUS_SUCCESS;
  uint32_t number = 0;
  std::memcpy(&number, value, bytes);
  if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) preference->reductions = number;
  else preference->alignments[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = static_cast<uint16_t>(number);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  ++heuristics;
  if ((preference->reductions & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) != 0)
    throw cuda_host::Finding(
        "cublasLtMatmulAlgoGetHeuristic: an algorithm may round parts of a sum, or add them in any order");
  const cublasStatus_t status =
      agree(*operation, *a, *b, *d) ? support(*operation, epilogue_searches) : CUBLAS_STATUS_NOT_SUPPORTED;
  *found = status == CUBLAS_STATUS_SUCCESS ? 1 : 0;
  if (*found != 0) {
    results[0].workspaceSize = 1024;  // not 0, so that it has to be allocated
    // One that is chosen without a bias may rely on what its vector accesses need.
    Algorithm algorithm{{}, operation->bias == nullptr ? 16 : alignment_of(operation->bias)};
    std::memcpy(algorithm.alignments, preference->alignments, sizeof(algorithm.alignments));
    std::memcpy(&results[0].algo.data, &algorithm, sizeof(algorithm));
  }
  return status;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
  ++heuristics;
  if (!agree(*operation, *a, *b, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = 1024;  // `algo` stays as it was
  return support(*operation, epilogue_searches);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (!agree(*operation, *a_layout, *b_layout, *d_layout)) return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes < 1024 || cuda_host::find_region(workspace) == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t status = support(*operation, epilogue_products); status != CUBLAS_STATUS_SUCCESS)
    return status;
  Algorithm relies{};
  std::memcpy(&relies, &algorithm->data, sizeof(relies));
  const void* const matrices[4] = {a, b, c, d};
  for (size_t i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(matrices[i]) % relies.alignments[i] != 0) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (reinterpret_cast<uintptr_t>(operation->bias) % relies.bias_alignment != 0) return CUBLAS_STATUS_INVALID_VALUE;
  ++products;
  if (operation->has_epilogue()) ++epilogues;
  const auto scale = [&](const void* value) { return read(value, operation->scale, 0); };
  const Call call{*operation, scale(alpha), scale(beta), a, b, c, d, *a_layout, *b_layout, *c_layout, *d_layout};
  return cuda_host::submit(stream, [call] { multiply(call); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                              : CUBLAS_STATUS_INVALID_VALUE;
}
