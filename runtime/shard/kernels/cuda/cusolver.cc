// Calls of cuSOLVER and cuBLAS for batches of matrices.
#include "shard/kernels/cuda/cusolver.cuh"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/op_context.h"

namespace shard::cuda {
namespace {

/// cuSOLVER has no function for this. The statuses that are left are of calls that nothing here makes.
std::string text_of(cusolverStatus_t status) {
  switch (status) {
    case CUSOLVER_STATUS_NOT_INITIALIZED: return "the library could not be initialised";
    case CUSOLVER_STATUS_ALLOC_FAILED: return "the device has too little memory left for the library";
    case CUSOLVER_STATUS_INVALID_VALUE: return "an argument is invalid";
    case CUSOLVER_STATUS_ARCH_MISMATCH: return "this device does not support the call";
    case CUSOLVER_STATUS_EXECUTION_FAILED: return "a kernel failed";
    case CUSOLVER_STATUS_INTERNAL_ERROR: return "an internal error";
    case CUSOLVER_STATUS_NOT_SUPPORTED: return "the arguments are not supported";
    default: return fmt::format("status {}", static_cast<int>(status));
  }
}
void check_solver(cusolverStatus_t status, const char* call) {
  if (status != CUSOLVER_STATUS_SUCCESS) fail(ErrorCode::device, "{} failed: {}", call, text_of(status));
}
void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ErrorCode::device, "{} failed: {}", call, cublasLtGetStatusString(status));
}

/// The handles of this thread for one device.
class Handles {
 public:
  explicit Handles(int device) : device_(device) {
    const std::lock_guard lock(recording_mutex());
    check_solver(cusolverDnCreate(&solver_), "cusolverDnCreate");
    check_solver(cusolverDnCreateParams(&parameters_), "cusolverDnCreateParams");
    check_blas(cublasCreate(&blas_), "cublasCreate");
  }
  ~Handles() {
    const ReleaseScope scope(device_);
    const std::lock_guard lock(recording_mutex());
    if (blas_ != nullptr) cublasDestroy(blas_);
    if (parameters_ != nullptr) cusolverDnDestroyParams(parameters_);
    if (solver_ != nullptr) cusolverDnDestroy(solver_);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  /// Those of the current device, with the stream of this thread.
  static Handles& get() {
    thread_local std::map<int, Handles> of_device;
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    Handles& handles = of_device.try_emplace(device, device).first->second;
    check_solver(cusolverDnSetStream(handles.solver_, stream()), "cusolverDnSetStream");
    check_blas(cublasSetStream(handles.blas_, stream()), "cublasSetStream");
    return handles;
  }
  cusolverDnHandle_t solver() const { return solver_; }
  cusolverDnParams_t parameters() const { return parameters_; }
  cublasHandle_t blas() const { return blas_; }

 private:
  const int device_;
  cusolverDnHandle_t solver_ = nullptr;
  cusolverDnParams_t parameters_ = nullptr;
  cublasHandle_t blas_ = nullptr;
};

template <class T>
constexpr cudaDataType_t kType = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;

/// Memory for the functions of cuSOLVER, of the sizes that `ask(device bytes, host bytes)` gives.
class Workspace {
 public:
  template <class Ask>
  explicit Workspace(const Ask& ask)
      : sizes_(ask_for(ask)), device_(std::max<size_t>(sizes_.device, 1)), host_(sizes_.host) {}

  void* device() const { return device_.data(); }
  size_t device_bytes() const { return sizes_.device; }
  void* host() { return host_.empty() ? nullptr : host_.data(); }
  size_t host_bytes() const { return sizes_.host; }

 private:
  struct Sizes {
    size_t device = 0, host = 0;
  };
  template <class Ask>
  static Sizes ask_for(const Ask& ask) {
    Sizes sizes;
    ask(&sizes.device, &sizes.host);
    return sizes;
  }

  Sizes sizes_;
  Scratch device_;
  std::vector<char> host_;
};

cublasFillMode_t fill_mode(bool upper) { return upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER; }

template <class T, class F, class D>
constexpr auto pick(F of_float, D of_double) {
  if constexpr (std::is_same_v<T, float>) return of_float;
  else return of_double;
}

}  // namespace

template <class T>
void Solver<T>::potrf(bool upper, int64_t n, T* a, int64_t count, int* infos) {
  const Handles& h = Handles::get();
  Workspace work([&](size_t* device, size_t* host) {
    check_solver(cusolverDnXpotrf_bufferSize(h.solver(), h.parameters(), fill_mode(upper), n, kType<T>, a, n, kType<T>,
                                             device, host),
                 "cusolverDnXpotrf_bufferSize");
  });
  for (int64_t i = 0; i < count; ++i) {
    check_solver(cusolverDnXpotrf(h.solver(), h.parameters(), fill_mode(upper), n, kType<T>, a + i * n * n, n, kType<T>,
                                  work.device(), work.device_bytes(), work.host(), work.host_bytes(), infos + i),
                 "cusolverDnXpotrf");
  }
}

template <class T>
void Solver<T>::getrf(int64_t m, int64_t n, T* a, int64_t* pivots, int64_t count, int* infos) {
  const Handles& h = Handles::get();
  Workspace work([&](size_t* device, size_t* host) {
    check_solver(cusolverDnXgetrf_bufferSize(h.solver(), h.parameters(), m, n, kType<T>, a, m, kType<T>, device, host),
                 "cusolverDnXgetrf_bufferSize");
  });
  for (int64_t i = 0; i < count; ++i) {
    check_solver(
        cusolverDnXgetrf(h.solver(), h.parameters(), m, n, kType<T>, a + i * m * n, m, pivots + i * std::min(m, n),
                         kType<T>, work.device(), work.device_bytes(), work.host(), work.host_bytes(), infos + i),
        "cusolverDnXgetrf");
  }
}

template <class T>
void Solver<T>::getrs(bool transpose, int64_t n, int64_t columns, const T* a, const int64_t* pivots, T* b, int* info) {
  const Handles& h = Handles::get();
  check_solver(cusolverDnXgetrs(h.solver(), h.parameters(), transpose ? CUBLAS_OP_T : CUBLAS_OP_N, n, columns, kType<T>,
                                a, n, pivots, kType<T>, b, n, info),
               "cusolverDnXgetrs");
}

template <class T>
void Solver<T>::geqrf(int64_t m, int64_t n, T* a, int64_t step, T* factors, int64_t count, int* infos) {
  const Handles& h = Handles::get();
  Workspace work([&](size_t* device, size_t* host) {
    check_solver(cusolverDnXgeqrf_bufferSize(h.solver(), h.parameters(), m, n, kType<T>, a, m, kType<T>, factors,
                                             kType<T>, device, host),
                 "cusolverDnXgeqrf_bufferSize");
  });
  for (int64_t i = 0; i < count; ++i) {
    check_solver(cusolverDnXgeqrf(h.solver(), h.parameters(), m, n, kType<T>, a + i * step, m, kType<T>,
                                  factors + i * std::min(m, n), kType<T>, work.device(), work.device_bytes(),
                                  work.host(), work.host_bytes(), infos + i),
                 "cusolverDnXgeqrf");
  }
}

template <class T>
void Solver<T>::orgqr(int64_t m, int64_t columns, int64_t k, T* a, int64_t step, const T* factors, int64_t count,
                      int* infos) {
  const Handles& h = Handles::get();
  const auto ask = pick<T>(&cusolverDnSorgqr_bufferSize, &cusolverDnDorgqr_bufferSize);
  const auto run = pick<T>(&cusolverDnSorgqr, &cusolverDnDorgqr);
  const int rows = static_cast<int>(m), made = static_cast<int>(columns), reflections = static_cast<int>(k);
  int size = 0;
  check_solver(ask(h.solver(), rows, made, reflections, a, rows, factors, &size), "cusolverDnXorgqr_bufferSize");
  const Scratch work(static_cast<size_t>(std::max(size, 1)) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    check_solver(run(h.solver(), rows, made, reflections, a + i * step, rows, factors + i * k,
                     static_cast<T*>(work.data()), size, infos + i),
                 "cusolverDnXorgqr");
  }
}

template <class T>
void Solver<T>::syevd(bool upper, int64_t n, T* a, T* w, int64_t count, int* infos) {
  const Handles& h = Handles::get();
  Workspace work([&](size_t* device, size_t* host) {
    check_solver(cusolverDnXsyevd_bufferSize(h.solver(), h.parameters(), CUSOLVER_EIG_MODE_VECTOR, fill_mode(upper), n,
                                             kType<T>, a, n, kType<T>, w, kType<T>, device, host),
                 "cusolverDnXsyevd_bufferSize");
  });
  for (int64_t i = 0; i < count; ++i) {
    check_solver(cusolverDnXsyevd(h.solver(), h.parameters(), CUSOLVER_EIG_MODE_VECTOR, fill_mode(upper), n, kType<T>,
                                  a + i * n * n, n, kType<T>, w + i * n, kType<T>, work.device(), work.device_bytes(),
                                  work.host(), work.host_bytes(), infos + i),
                 "cusolverDnXsyevd");
  }
}

template <class T>
void Solver<T>::gesvd(bool full, int64_t m, int64_t n, T* a, T* s, T* u, T* vt, int64_t count, int* infos) {
  const Handles& h = Handles::get();
  const signed char job = full ? 'A' : 'S';
  Workspace work([&](size_t* device, size_t* host) {
    check_solver(cusolverDnXgesvd_bufferSize(h.solver(), h.parameters(), job, job, m, n, kType<T>, a, m, kType<T>, s,
                                             kType<T>, u, m, kType<T>, vt, n, kType<T>, device, host),
                 "cusolverDnXgesvd_bufferSize");
  });
  for (int64_t i = 0; i < count; ++i) {
    check_solver(
        cusolverDnXgesvd(h.solver(), h.parameters(), job, job, m, n, kType<T>, a + i * m * n, m, kType<T>, s + i * n,
                         kType<T>, u + i * m * (full ? m : n), m, kType<T>, vt + i * n * n, n, kType<T>, work.device(),
                         work.device_bytes(), work.host(), work.host_bytes(), infos + i),
        "cusolverDnXgesvd");
  }
}

template <class T>
void Solver<T>::trsm(bool upper, bool transpose, bool unit, int64_t m, int64_t n, const T* a, T* b) {
  const auto run = pick<T>(&cublasStrsm, &cublasDtrsm);
  const T one = 1;
  check_blas(run(Handles::get().blas(), CUBLAS_SIDE_RIGHT, fill_mode(upper), transpose ? CUBLAS_OP_T : CUBLAS_OP_N,
                 unit ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT, static_cast<int>(m), static_cast<int>(n), &one, a,
                 static_cast<int>(n), b, static_cast<int>(m)),
             "cublasXtrsm");
}

template struct Solver<float>;
template struct Solver<double>;

}  // namespace shard::cuda
