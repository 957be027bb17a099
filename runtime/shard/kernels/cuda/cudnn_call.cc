#include "shard/kernels/cuda/cudnn_call.cuh"

#include <string>

#include "shard/core/log.h"

namespace shard::cuda {

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string text = fmt::format("{} failed: status {}", call, static_cast<int>(status));
  const int category = static_cast<int>(status) / 1000 * 1000;
  if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM)
    throw Unsupported(ErrorCode::device, text);
  throw Error(ErrorCode::device, text);
}

void pass_over(const Error& error) {
  cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
  cudaError_t status = cudaStreamIsCapturing(stream(), &recording);
  // In a recording nothing can be asked.
  if (status == cudaSuccess && recording == cudaStreamCaptureStatusNone) status = cudaStreamQuery(stream());
  cudaGetLastError();  // otherwise the next launch would report it
  if ((status != cudaSuccess && status != cudaErrorNotReady) || recording == cudaStreamCaptureStatusInvalidated) throw;
  log_message(fmt::format("kernels of the library compute a call, because {}", error.what()));
}

Cudnn::~Cudnn() {
  const ReleaseScope scope(device_);
  plans_.clear();
  const std::lock_guard lock(recording_mutex());
  if (handle_ != nullptr) library_.destroy(handle_);
}

void Cudnn::open() {
  if (handle_ != nullptr) return;
  cudnnHandle_t created = nullptr;
  check(library_.create(&created), "cudnnCreate");
  handle_ = created;
}

Cudnn* Cudnn::of(int device) {
  const CudnnLibrary* const library = cudnn_library();
  if (library == nullptr) return nullptr;
  thread_local std::unique_ptr<std::map<int, Cudnn>> of_device;  // a pointer: libraries have little space for these
  if (of_device == nullptr) of_device = std::make_unique<std::map<int, Cudnn>>();
  return &of_device->try_emplace(device, device, *library).first->second;
}

cudnnHandle_t Cudnn::handle() const {
  check(library_.set_stream(handle_, stream()), "cudnnSetStream");
  return handle_;
}

}  // namespace shard::cuda
