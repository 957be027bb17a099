// The part of cuSOLVER that shard calls, of the host model: LAPACK's functions of the same names.
#pragma once

#include "cublas_v2.h"

enum cusolverStatus_t {
  CUSOLVER_STATUS_SUCCESS = 0,
  CUSOLVER_STATUS_NOT_INITIALIZED = 1,
  CUSOLVER_STATUS_ALLOC_FAILED = 2,
  CUSOLVER_STATUS_INVALID_VALUE = 3,
  CUSOLVER_STATUS_ARCH_MISMATCH = 4,
  CUSOLVER_STATUS_EXECUTION_FAILED = 6,
  CUSOLVER_STATUS_INTERNAL_ERROR = 7,
  CUSOLVER_STATUS_NOT_SUPPORTED = 9
};
enum cusolverEigMode_t { CUSOLVER_EIG_MODE_NOVECTOR = 0, CUSOLVER_EIG_MODE_VECTOR = 1 };
using cudaDataType = cudaDataType_t;
using cusolverDnHandle_t = struct cusolverDnContext*;
using cusolverDnParams_t = struct cusolverDnParams*;

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle);
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle);
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream);
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* parameters);
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t parameters);

cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t parameters,
                                             cublasFillMode_t fill, int64_t n, cudaDataType type, const void* a,
                                             int64_t lda, cudaDataType compute, size_t* device_bytes,
                                             size_t* host_bytes);
cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t parameters, cublasFillMode_t fill,
                                  int64_t n, cudaDataType type, void* a, int64_t lda, cudaDataType compute,
                                  void* device, size_t device_bytes, void* host, size_t host_bytes, int* info);
cusolverStatus_t cusolverDnXgetrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t parameters, int64_t m,
                                             int64_t n, cudaDataType type, const void* a, int64_t lda,
                                             cudaDataType compute, size_t* device_bytes, size_t* host_bytes);
cusolverStatus_t cusolverDnXgetrf(cusolverDnHandle_t handle, cusolverDnParams_t parameters, int64_t m, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, int64_t* pivots, cudaDataType compute,
                                  void* device, size_t device_bytes, void* host, size_t host_bytes, int* info);
cusolverStatus_t cusolverDnXgetrs(cusolverDnHandle_t handle, cusolverDnParams_t parameters, cublasOperation_t trans,
                                  int64_t n, int64_t columns, cudaDataType a_type, const void* a, int64_t lda,
                                  const int64_t* pivots, cudaDataType b_type, void* b, int64_t ldb, int* info);
cusolverStatus_t cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t parameters, int64_t m,
                                             int64_t n, cudaDataType type, const void* a, int64_t lda,
                                             cudaDataType tau_type, const void* tau, cudaDataType compute,
                                             size_t* device_bytes, size_t* host_bytes);
cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t handle, cusolverDnParams_t parameters, int64_t m, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, cudaDataType tau_type, void* tau,
                                  cudaDataType compute, void* device, size_t device_bytes, void* host,
                                  size_t host_bytes, int* info);
cusolverStatus_t cusolverDnSorgqr_bufferSize(cusolverDnHandle_t handle, int m, int n, int k, const float* a, int lda,
                                             const float* tau, int* size);
cusolverStatus_t cusolverDnDorgqr_bufferSize(cusolverDnHandle_t handle, int m, int n, int k, const double* a, int lda,
                                             const double* tau, int* size);
cusolverStatus_t cusolverDnSorgqr(cusolverDnHandle_t handle, int m, int n, int k, float* a, int lda, const float* tau,
                                  float* work, int size, int* info);
cusolverStatus_t cusolverDnDorgqr(cusolverDnHandle_t handle, int m, int n, int k, double* a, int lda, const double* tau,
                                  double* work, int size, int* info);
cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t parameters,
                                             cusolverEigMode_t mode, cublasFillMode_t fill, int64_t n,
                                             cudaDataType type, const void* a, int64_t lda, cudaDataType w_type,
                                             const void* w, cudaDataType compute, size_t* device_bytes,
                                             size_t* host_bytes);
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t parameters, cusolverEigMode_t mode,
                                  cublasFillMode_t fill, int64_t n, cudaDataType type, void* a, int64_t lda,
                                  cudaDataType w_type, void* w, cudaDataType compute, void* device, size_t device_bytes,
                                  void* host, size_t host_bytes, int* info);
cusolverStatus_t cusolverDnXgesvd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t parameters, signed char jobu,
                                             signed char jobvt, int64_t m, int64_t n, cudaDataType type, const void* a,
                                             int64_t lda, cudaDataType s_type, const void* s, cudaDataType u_type,
                                             const void* u, int64_t ldu, cudaDataType vt_type, const void* vt,
                                             int64_t ldvt, cudaDataType compute, size_t* device_bytes,
                                             size_t* host_bytes);
cusolverStatus_t cusolverDnXgesvd(cusolverDnHandle_t handle, cusolverDnParams_t parameters, signed char jobu,
                                  signed char jobvt, int64_t m, int64_t n, cudaDataType type, void* a, int64_t lda,
                                  cudaDataType s_type, void* s, cudaDataType u_type, void* u, int64_t ldu,
                                  cudaDataType vt_type, void* vt, int64_t ldvt, cudaDataType compute, void* device,
                                  size_t device_bytes, void* host, size_t host_bytes, int* info);
