// The memory pools of devices, which keep nothing that is free.
#include <map>
#include <mutex>
#include <set>

#include "include/cuda_runtime_api.h"
#include "memory.h"

struct CUmemPoolHandle_st {
  int device = 0;
  std::set<int> peers;  // that may access its memory
};

namespace {

std::mutex& mutex() {
  static std::mutex instance;
  return instance;
}

CUmemPoolHandle_st& pool_of(int device) {
  static std::map<int, CUmemPoolHandle_st> pools;
  CUmemPoolHandle_st& pool = pools[device];
  pool.device = device;
  return pool;
}

}  // namespace

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  const std::lock_guard lock(mutex());
  *pool = &pool_of(device);
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* value) {
  size_t free = 0, total = 0;
  cuda_host::device_memory(pool->device, free, total);
  *static_cast<uint64_t*>(value) = total - free;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* devices, size_t count) {
  const std::lock_guard lock(mutex());
  for (size_t i = 0; i < count; ++i) {
    if (devices[i].location.id == pool->device) return cudaErrorInvalidValue;
    pool->peers.insert(devices[i].location.id);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  *can_access = device != peer ? 1 : 0;
  return cudaSuccess;
}

bool cuda_host::is_accessible(int device, int peer) {
  const std::lock_guard lock(mutex());
  return device == peer || pool_of(device).peers.contains(peer);
}
