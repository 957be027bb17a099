// cuSOLVER and cuBLAS of the host model: LAPACK's functions on the memory of the device. Ranges, sizes and workspaces are checked as
// the libraries document them.
#include "include/cusolverDn.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "access.h"
#include "memory.h"
#include "shard/kernels/cpu/lapack.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
};
struct cusolverDnContext {
  cudaStream_t stream = nullptr;
};
struct cusolverDnParams {};

namespace {

using cuda_host::Kind;
using shard::cpu::Lapack;

constexpr size_t kDeviceBytes = 512, kHostBytes = 64;  // not 0, so that they have to be there

size_t size_of(cudaDataType type) { return type == CUDA_R_64F ? 8 : 4; }

/// A column-major matrix, or a vector as a column.
struct Range {
  const char* name;
  const void* data;
  int64_t rows, columns, leading;
  size_t element;
  Kind kind = Kind::write;

  size_t bytes() const {
    return rows == 0 || columns == 0 ? 0 : static_cast<size_t>((columns - 1) * leading + rows) * element;
  }
};

/// Issues `body`, which reads and writes the ranges and the info.
cudaError_t issue(cudaStream_t stream, const char* call, std::vector<Range> ranges, int* info,
                  const std::function<void(int*)>& body) {
  if (info != nullptr) ranges.push_back({"info", info, 1, 1, 1, sizeof(int)});
  return cuda_host::submit(stream, [=] {
    const cuda_host::DeviceAccess access;
    for (const Range& range : ranges)
      cuda_host::use_range(std::string(call) + ": " + range.name, range.data, range.bytes(), range.kind);
    int result = 0;
    body(&result);
    if (info != nullptr) *info = result;
  });
}

/// As issue(), after a check of a workspace and of leading dims.
cusolverStatus_t solve(cusolverDnHandle_t handle, const char* call, const std::vector<Range>& ranges, int* info,
                       bool has_work, const std::function<void(int*)>& body) {
  for (const Range& range : ranges) {
    if (range.rows < 0 || range.columns < 0 || range.leading < std::max<int64_t>(range.rows, 1))
      return CUSOLVER_STATUS_INVALID_VALUE;
  }
  if (!has_work || info == nullptr) return CUSOLVER_STATUS_INVALID_VALUE;
  return issue(handle->stream, call, ranges, info, body) == cudaSuccess ? CUSOLVER_STATUS_SUCCESS
                                                                        : CUSOLVER_STATUS_INVALID_VALUE;
}

bool is_work(const void* device, size_t device_bytes, const void* host, size_t host_bytes) {
  return device_bytes >= kDeviceBytes && cuda_host::find_region(device) != nullptr && host_bytes >= kHostBytes &&
         host != nullptr;
}

cusolverStatus_t give_sizes(size_t* device_bytes, size_t* host_bytes) {
  *device_bytes = kDeviceBytes;
  *host_bytes = kHostBytes;
  return CUSOLVER_STATUS_SUCCESS;
}

/// Calls body(T()) for the type of elements.
template <class Body>
void with_type(cudaDataType type, const Body& body) {
  if (type == CUDA_R_64F) body(double());
  else body(float());
}

const char* name_of(cublasFillMode_t fill) { return fill == CUBLAS_FILL_MODE_UPPER ? "U" : "L"; }
int count(int64_t size) { return static_cast<int>(size); }

template <class T>
cublasStatus_t solve_triangular(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill,
                                cublasOperation_t trans, cublasDiagType_t diag, int m, int n, T alpha, const T* a,
                                int lda, T* b, int ldb) {
  const int order = side == CUBLAS_SIDE_LEFT ? m : n;
  if (m < 0 || n < 0 || lda < std::max(order, 1) || ldb < std::max(m, 1)) return CUBLAS_STATUS_INVALID_VALUE;
  const std::vector<Range> ranges = {{"A", a, order, order, lda, sizeof(T), Kind::read},
                                     {"B", b, m, n, ldb, sizeof(T)}};
  const auto body = [=](int*) {
    Lapack<T>::trsm(CblasColMajor, side == CUBLAS_SIDE_LEFT ? CblasLeft : CblasRight,
                    fill == CUBLAS_FILL_MODE_UPPER ? CblasUpper : CblasLower,
                    trans == CUBLAS_OP_T ? CblasTrans : CblasNoTrans,
                    diag == CUBLAS_DIAG_UNIT ? CblasUnit : CblasNonUnit, m, n, alpha, a, lda, b, ldb);
  };
  return issue(handle->stream, "cublasXtrsm", ranges, nullptr, body) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                                    : CUBLAS_STATUS_INVALID_VALUE;
}

template <class T>
cusolverStatus_t make_q(cusolverDnHandle_t handle, int m, int n, int k, T* a, int lda, const T* tau, T* work, int size,
                        int* info) {
  if (n < k || m < n || static_cast<size_t>(size) * sizeof(T) < kDeviceBytes) return CUSOLVER_STATUS_INVALID_VALUE;
  const std::vector<Range> ranges = {{"A", a, m, n, lda, sizeof(T)}, {"tau", tau, k, 1, std::max(k, 1), sizeof(T)}};
  return solve(handle, "cusolverDnXorgqr", ranges, info, cuda_host::find_region(work) != nullptr, [=](int* result) {
    const int space = 64 * std::max(n, 1);
    std::vector<T> memory(static_cast<size_t>(space));
    Lapack<T>::orgqr(&m, &n, &k, a, &lda, tau, memory.data(), &space, result);
  });
}

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasStrsm(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill, cublasOperation_t trans,
                           cublasDiagType_t diag, int m, int n, const float* alpha, const float* a, int lda, float* b,
                           int ldb) {
  return solve_triangular(handle, side, fill, trans, diag, m, n, *alpha, a, lda, b, ldb);
}
cublasStatus_t cublasDtrsm(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill, cublasOperation_t trans,
                           cublasDiagType_t diag, int m, int n, const double* alpha, const double* a, int lda,
                           double* b, int ldb) {
  return solve_triangular(handle, side, fill, trans, diag, m, n, *alpha, a, lda, b, ldb);
}

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  *handle = new cusolverDnContext;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  delete handle;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* parameters) {
  *parameters = new cusolverDnParams;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t parameters) {
  delete parameters;
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cublasFillMode_t, int64_t,
                                             cudaDataType, const void*, int64_t, cudaDataType, size_t* device_bytes,
                                             size_t* host_bytes) {
  return give_sizes(device_bytes, host_bytes);
}
cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t, cublasFillMode_t fill, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, cudaDataType, void* device,
                                  size_t device_bytes, void* host, size_t host_bytes, int* info) {
  return solve(
      handle, "cusolverDnXpotrf", {{"A", a, n, n, lda, size_of(type)}}, info,
      is_work(device, device_bytes, host, host_bytes), [=](int* result) {
        const int size = count(n), step = count(lda);
        with_type(type, [&]<class T>(T) { Lapack<T>::potrf(name_of(fill), &size, static_cast<T*>(a), &step, result); });
      });
}

cusolverStatus_t cusolverDnXgetrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t, int64_t, cudaDataType,
                                             const void*, int64_t, cudaDataType, size_t* device_bytes,
                                             size_t* host_bytes) {
  return give_sizes(device_bytes, host_bytes);
}
cusolverStatus_t cusolverDnXgetrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, int64_t* pivots, cudaDataType, void* device,
                                  size_t device_bytes, void* host, size_t host_bytes, int* info) {
  const int64_t k = std::min(m, n);
  const std::vector<Range> ranges = {{"A", a, m, n, lda, size_of(type)},
                                     {"the pivots", pivots, k, 1, std::max<int64_t>(k, 1), sizeof(int64_t)}};
  return solve(handle, "cusolverDnXgetrf", ranges, info, is_work(device, device_bytes, host, host_bytes),
               [=](int* result) {
                 const int rows = count(m), columns = count(n), step = count(lda);
                 std::vector<int> exchanges(static_cast<size_t>(k));
                 with_type(type, [&]<class T>(T) {
                   Lapack<T>::getrf(&rows, &columns, static_cast<T*>(a), &step, exchanges.data(), result);
                 });
                 std::copy(exchanges.begin(), exchanges.end(), pivots);
               });
}

cusolverStatus_t cusolverDnXgetrs(cusolverDnHandle_t handle, cusolverDnParams_t, cublasOperation_t trans, int64_t n,
                                  int64_t columns, cudaDataType a_type, const void* a, int64_t lda,
                                  const int64_t* pivots, cudaDataType, void* b, int64_t ldb, int* info) {
  const size_t element = size_of(a_type);
  const std::vector<Range> ranges = {
      {"A", a, n, n, lda, element, Kind::read},
      {"B", b, n, columns, ldb, element},
      {"the pivots", pivots, n, 1, std::max<int64_t>(n, 1), sizeof(int64_t), Kind::read}};
  return solve(handle, "cusolverDnXgetrs", ranges, info, true, [=](int* result) {
    const int size = count(n), sides = count(columns), a_step = count(lda), b_step = count(ldb);
    const std::vector<int> exchanges(pivots, pivots + n);
    with_type(a_type, [&]<class T>(T) {
      Lapack<T>::getrs(trans == CUBLAS_OP_T ? "T" : "N", &size, &sides, static_cast<const T*>(a), &a_step,
                       exchanges.data(), static_cast<T*>(b), &b_step, result);
    });
  });
}

cusolverStatus_t cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t, int64_t, cudaDataType,
                                             const void*, int64_t, cudaDataType, const void*, cudaDataType,
                                             size_t* device_bytes, size_t* host_bytes) {
  return give_sizes(device_bytes, host_bytes);
}
cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, cudaDataType, void* tau, cudaDataType,
                                  void* device, size_t device_bytes, void* host, size_t host_bytes, int* info) {
  const int64_t k = std::min(m, n);
  const std::vector<Range> ranges = {{"A", a, m, n, lda, size_of(type)},
                                     {"tau", tau, k, 1, std::max<int64_t>(k, 1), size_of(type)}};
  return solve(handle, "cusolverDnXgeqrf", ranges, info, is_work(device, device_bytes, host, host_bytes),
               [=](int* result) {
                 const int rows = count(m), columns = count(n), step = count(lda), space = 64 * std::max(columns, 1);
                 with_type(type, [&]<class T>(T) {
                   std::vector<T> memory(static_cast<size_t>(space));
                   Lapack<T>::geqrf(&rows, &columns, static_cast<T*>(a), &step, static_cast<T*>(tau), memory.data(),
                                    &space, result);
                 });
               });
}

cusolverStatus_t cusolverDnSorgqr_bufferSize(cusolverDnHandle_t, int, int, int, const float*, int, const float*,
                                             int* size) {
  *size = static_cast<int>(kDeviceBytes / sizeof(float));
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDorgqr_bufferSize(cusolverDnHandle_t, int, int, int, const double*, int, const double*,
                                             int* size) {
  *size = static_cast<int>(kDeviceBytes / sizeof(double));
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSorgqr(cusolverDnHandle_t handle, int m, int n, int k, float* a, int lda, const float* tau,
                                  float* work, int size, int* info) {
  return make_q(handle, m, n, k, a, lda, tau, work, size, info);
}
cusolverStatus_t cusolverDnDorgqr(cusolverDnHandle_t handle, int m, int n, int k, double* a, int lda, const double* tau,
                                  double* work, int size, int* info) {
  return make_q(handle, m, n, k, a, lda, tau, work, size, info);
}

cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t,
                                             cublasFillMode_t, int64_t, cudaDataType, const void*, int64_t,
                                             cudaDataType, const void*, cudaDataType, size_t* device_bytes,
                                             size_t* host_bytes) {
  return give_sizes(device_bytes, host_bytes);
}
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t mode,
                                  cublasFillMode_t fill, int64_t n, cudaDataType type, void* a, int64_t lda,
                                  cudaDataType, void* w, cudaDataType, void* device, size_t device_bytes, void* host,
                                  size_t host_bytes, int* info) {
  const std::vector<Range> ranges = {{"A", a, n, n, lda, size_of(type)},
                                     {"W", w, n, 1, std::max<int64_t>(n, 1), size_of(type)}};
  return solve(
      handle, "cusolverDnXsyevd", ranges, info, is_work(device, device_bytes, host, host_bytes), [=](int* result) {
        const int size = count(n), step = count(lda), space = 1 + 6 * size + 2 * size * size, int_space = 3 + 5 * size;
        std::vector<int> ints(static_cast<size_t>(int_space));
        with_type(type, [&]<class T>(T) {
          std::vector<T> memory(static_cast<size_t>(space));
          Lapack<T>::syevd(mode == CUSOLVER_EIG_MODE_VECTOR ? "V" : "N", name_of(fill), &size, static_cast<T*>(a),
                           &step, static_cast<T*>(w), memory.data(), &space, ints.data(), &int_space, result);
        });
      });
}

cusolverStatus_t cusolverDnXgesvd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, signed char, signed char,
                                             int64_t m, int64_t n, cudaDataType, const void*, int64_t, cudaDataType,
                                             const void*, cudaDataType, const void*, int64_t, cudaDataType, const void*,
                                             int64_t, cudaDataType, size_t* device_bytes, size_t* host_bytes) {
  if (m < n) return CUSOLVER_STATUS_INVALID_VALUE;
  return give_sizes(device_bytes, host_bytes);
}
cusolverStatus_t cusolverDnXgesvd(cusolverDnHandle_t handle, cusolverDnParams_t, signed char jobu, signed char jobvt,
                                  int64_t m, int64_t n, cudaDataType type, void* a, int64_t lda, cudaDataType, void* s,
                                  cudaDataType, void* u, int64_t ldu, cudaDataType, void* vt, int64_t ldvt,
                                  cudaDataType, void* device, size_t device_bytes, void* host, size_t host_bytes,
                                  int* info) {
  if (m < n || jobu != jobvt) return CUSOLVER_STATUS_INVALID_VALUE;
  const size_t element = size_of(type);
  const std::vector<Range> ranges = {{"A", a, m, n, lda, element},
                                     {"S", s, n, 1, std::max<int64_t>(n, 1), element},
                                     {"U", u, m, jobu == 'A' ? m : n, ldu, element},
                                     {"VT", vt, n, n, ldvt, element}};
  return solve(
      handle, "cusolverDnXgesvd", ranges, info, is_work(device, device_bytes, host, host_bytes), [=](int* result) {
        const int rows = count(m), columns = count(n), step = count(lda), u_step = count(ldu), vt_step = count(ldvt);
        std::vector<int> ints(static_cast<size_t>(8 * columns));
        with_type(type, [&]<class T>(T) {
          const char* const job = jobu == 'A' ? "A" : "S";
          T wanted = 0;
          int space = -1;
          const auto run = [&](T* memory) {
            Lapack<T>::gesdd(job, &rows, &columns, static_cast<T*>(a), &step, static_cast<T*>(s), static_cast<T*>(u),
                             &u_step, static_cast<T*>(vt), &vt_step, memory, &space, ints.data(), result);
          };
          run(&wanted);
          space = static_cast<int>(wanted) + 1;
          std::vector<T> memory(static_cast<size_t>(space));
          run(memory.data());
        });
      });
}
