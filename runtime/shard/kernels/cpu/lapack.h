// The functions of LAPACK that kernels call, which OpenBLAS brings along. Matrices are in
// column-major order, and all arguments are pointers.
#pragma once

#include <type_traits>

#include <cblas.h>

#define SHARD_LAPACK(prefix, T)                                                                                        \
  void prefix##potrf_(const char* uplo, const int* n, T* a, const int* lda, int* info);                                \
  void prefix##getrf_(const int* m, const int* n, T* a, const int* lda, int* pivots, int* info);                       \
  void prefix##getrs_(const char* trans, const int* n, const int* nrhs, const T* a, const int* lda, const int* pivots, \
                      T* b, const int* ldb, int* info);                                                                \
  void prefix##syevd_(const char* jobz, const char* uplo, const int* n, T* a, const int* lda, T* w, T* work,           \
                      const int* lwork, int* iwork, const int* liwork, int* info);                                     \
  void prefix##geqrf_(const int* m, const int* n, T* a, const int* lda, T* tau, T* work, const int* lwork, int* info); \
  void prefix##orgqr_(const int* m, const int* n, const int* k, T* a, const int* lda, const T* tau, T* work,           \
                      const int* lwork, int* info);                                                                    \
  void prefix##gels_(const char* trans, const int* m, const int* n, const int* nrhs, T* a, const int* lda, T* b,       \
                     const int* ldb, T* work, const int* lwork, int* info);                                            \
  void prefix##gelsy_(const int* m, const int* n, const int* nrhs, T* a, const int* lda, T* b, const int* ldb,         \
                      int* pivots, const T* rcond, int* rank, T* work, const int* lwork, int* info);                   \
  void prefix##gelsd_(const int* m, const int* n, const int* nrhs, T* a, const int* lda, T* b, const int* ldb, T* s,   \
                      const T* rcond, int* rank, T* work, const int* lwork, int* iwork, int* info);                    \
  void prefix##gelss_(const int* m, const int* n, const int* nrhs, T* a, const int* lda, T* b, const int* ldb, T* s,   \
                      const T* rcond, int* rank, T* work, const int* lwork, int* info);                                \
  void prefix##gesdd_(const char* jobz, const int* m, const int* n, T* a, const int* lda, T* s, T* u, const int* ldu,  \
                      T* vt, const int* ldvt, T* work, const int* lwork, int* iwork, int* info);
extern "C" {
SHARD_LAPACK(s, float)
SHARD_LAPACK(d, double)
}
#undef SHARD_LAPACK

namespace shard::cpu {

/// The functions for T, float or double.
template <class T>
struct Lapack {
  template <class F, class D>
  static constexpr auto pick(F f, D d) {
    if constexpr (std::is_same_v<T, float>) return f;
    else return d;
  }
  static constexpr auto potrf = pick(&spotrf_, &dpotrf_);
  static constexpr auto getrf = pick(&sgetrf_, &dgetrf_);
  static constexpr auto getrs = pick(&sgetrs_, &dgetrs_);
  static constexpr auto syevd = pick(&ssyevd_, &dsyevd_);
  static constexpr auto gels = pick(&sgels_, &dgels_);
  static constexpr auto gelsy = pick(&sgelsy_, &dgelsy_);
  static constexpr auto gelsd = pick(&sgelsd_, &dgelsd_);
  static constexpr auto gelss = pick(&sgelss_, &dgelss_);
  static constexpr auto gesdd = pick(&sgesdd_, &dgesdd_);
  static constexpr auto geqrf = pick(&sgeqrf_, &dgeqrf_);
  static constexpr auto orgqr = pick(&sorgqr_, &dorgqr_);
  static constexpr auto trsm = pick(&cblas_strsm, &cblas_dtrsm);
};

}  // namespace shard::cpu
