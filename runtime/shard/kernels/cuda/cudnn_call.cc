#include "shard/kernels/cuda/cudnn_call.cuh"

namespace shard::cuda {

Cudnn::Cudnn(const CudnnLibrary& library) : library_(library) {
  const std::lock_guard lock(recording_mutex());
  if (library.create(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;  // parts of the installation are missing
}

Cudnn::~Cudnn() {
  plans_.clear();
  const std::lock_guard lock(recording_mutex());
  if (handle_ != nullptr) library_.destroy(handle_);
}

Cudnn* Cudnn::of(int device) {
  const CudnnLibrary* const library = cudnn_library();
  if (library == nullptr) return nullptr;
  thread_local std::unique_ptr<std::map<int, Cudnn>> of_device;  // a pointer: libraries have little space for these
  if (of_device == nullptr) of_device = std::make_unique<std::map<int, Cudnn>>();
  return &of_device->try_emplace(device, *library).first->second;
}

cudnnHandle_t Cudnn::handle() const {
  check(library_.set_stream(handle_, stream()), "cudnnSetStream");
  return handle_;
}

}  // namespace shard::cuda
