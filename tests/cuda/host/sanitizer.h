// What the model tells AddressSanitizer: switches of stacks, and memory that belongs to no variable. Nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_HOST_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_HOST_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef CUDA_HOST_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_host::sanitizer {

#ifdef CUDA_HOST_ADDRESS_SANITIZER
inline void start_switch(void** save, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(save, stack, bytes);
}
inline void finish_switch(void* saved, const void** old_stack, size_t* old_bytes) {
  __sanitizer_finish_switch_fiber(saved, old_stack, old_bytes);
}
inline void poison(const void* data, size_t bytes) { __asan_poison_memory_region(data, bytes); }
inline void unpoison(const void* data, size_t bytes) { __asan_unpoison_memory_region(data, bytes); }
#else
inline void start_switch(void**, const void*, size_t) {}
inline void finish_switch(void*, const void**, size_t*) {}
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
#endif

}  // namespace cuda_host::sanitizer
