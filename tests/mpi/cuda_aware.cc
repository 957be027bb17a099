// The MPI library of the tests as a CUDA-aware one: its calls may read and write memory of the model's devices, which end the process
// outside of them. By the profiling interface of MPI.
#include <mpi.h>

#include "cuda/host/memory.h"

extern "C" {

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
