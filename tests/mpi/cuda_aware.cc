// The MPI library of the tests as a CUDA-aware one: its calls may read and write memory of the model's devices, which end the process
// outside of them. By the profiling interface of MPI.
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // after mpi.h
#endif

#include "cuda/host/memory.h"
#include "mpi/device_checks.h"

namespace {
bool takes_cuda = false;
}

bool shard::test::set_mpi_takes_cuda(bool takes) {
  takes_cuda = takes;
#if (defined(OPEN_MPI) && defined(MPIX_CUDA_AWARE_SUPPORT)) || defined(MPIX_GPU_SUPPORT_CUDA)
  return true;
#else
  return false;
#endif
}

extern "C" {

#if defined(OPEN_MPI) && defined(MPIX_CUDA_AWARE_SUPPORT)
int MPIX_Query_cuda_support() { return takes_cuda ? 1 : 0; }
#elif defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH
int MPIX_GPU_query_support(int, int* is_supported) {
  *is_supported = takes_cuda ? 1 : 0;
  return MPI_SUCCESS;
}
#endif

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  const cuda_host::DeviceAccess access;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  const cuda_host::DeviceAccess access;
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  if (cuda_host::is_device_memory(data))
    cuda_host::mark_written(data, static_cast<size_t>(count) * static_cast<size_t>(bytes));
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  const cuda_host::DeviceAccess access;
  return PMPI_Test(request, done, status);
}

int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status* statuses) {
  const cuda_host::DeviceAccess access;
  return PMPI_Testall(count, requests, done, statuses);
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int* found, MPI_Status* status) {
  const cuda_host::DeviceAccess access;
  return PMPI_Iprobe(from, tag, comm, found, status);
}

int MPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  const cuda_host::DeviceAccess access;
  return PMPI_Recv(data, count, type, from, tag, comm, status);
}

}  // extern "C"
