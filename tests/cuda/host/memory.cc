// See memory.h. Allocations are placed first-fit in a reserved range; the gaps between them catch indices that are off by one.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "sanitizer.h"

namespace cuda_host {
namespace {

constexpr size_t kReserved = size_t{64} << 30;
constexpr size_t kDeviceBytes = size_t{16} << 30;  // what each device of the model has
constexpr size_t kAlignment = 256;
constexpr int kMaxDevices = 8;

size_t up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Allocation {
  Region region;
  size_t span = 0;  // with the gap behind it
  int device = 0;
};

class Arena {
 public:
  Arena() {
    void* const range = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(range);
    holes_[kAlignment] = kReserved - kAlignment;  // a gap before the first one too
  }

  void* allocate(int device, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t span = up(bytes, kAlignment) + kAlignment;
    if (bytes > kDeviceBytes || used_[device] + bytes > kDeviceBytes) return nullptr;
    const auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const auto& h) { return h.second >= span; });
    if (hole == holes_.end()) return nullptr;
    const auto [at, size] = *hole;
    holes_.erase(hole);
    if (size > span) holes_[at + span] = size - span;
    used_[device] += bytes;
    if (at + span > touched_) {
      touched_ = std::min(kReserved, up(at + span, size_t{64} << 20));
      if (open_ > 0) mprotect(base_, touched_, PROT_READ | PROT_WRITE);
    }
    Allocation& allocation = allocations_[at];
    allocation.region.data = base_ + at;
    allocation.region.bytes = bytes;
    allocation.region.id = ++last_id_;
    allocation.span = span;
    allocation.device = device;
    sanitizer::unpoison(base_ + at, bytes);
    sanitizer::poison(base_ + at + bytes, span - bytes);
    return base_ + at;
  }

  bool release(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(static_cast<size_t>(static_cast<char*>(data) - base_));
    if (found == allocations_.end()) return false;
    size_t at = found->first, span = found->second.span;
    used_[found->second.device] -= found->second.region.bytes;
    allocations_.erase(found);
    sanitizer::poison(base_ + at, span);
    const auto next = holes_.lower_bound(at);
    if (next != holes_.end() && next->first == at + span) {
      span += next->second;
      holes_.erase(next);
    }
    const auto after = holes_.lower_bound(at);
    if (after != holes_.begin() && std::prev(after)->first + std::prev(after)->second == at)
      std::prev(after)->second += span;
    else holes_[at] = span;
    return true;
  }

  Allocation* find(const void* at) {
    const std::lock_guard lock(mutex_);
    if (!contains(at)) return nullptr;
    const auto above = allocations_.upper_bound(static_cast<size_t>(static_cast<const char*>(at) - base_));
    if (above == allocations_.begin()) return nullptr;
    Allocation& allocation = std::prev(above)->second;
    return allocation.region.contains(at) ? &allocation : nullptr;
  }

  bool contains(const void* at) const {
    return static_cast<const char*>(at) >= base_ && static_cast<const char*>(at) < base_ + kReserved;
  }

  size_t free_bytes(int device) {
    const std::lock_guard lock(mutex_);
    return kDeviceBytes - used_[device];
  }

  void open() {
    const std::lock_guard lock(mutex_);
    if (open_++ == 0 && touched_ != 0) mprotect(base_, touched_, PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0 && touched_ != 0) mprotect(base_, touched_, PROT_NONE);
  }

 private:
  std::mutex mutex_;
  char* base_ = nullptr;
  std::map<size_t, size_t> holes_;
  std::map<size_t, Allocation> allocations_;
  size_t used_[kMaxDevices] = {};
  size_t touched_ = 0;
  int open_ = 0;
  uint64_t last_id_ = 0;
};

/// Never destroyed: tensors may be freed when the process ends.
Arena& arena() {
  static Arena* instance = new Arena;
  return *instance;
}

}  // namespace

void* allocate_device(int device, size_t bytes) { return arena().allocate(device, bytes); }
bool release_device(void* data) { return arena().release(data); }
bool is_device_memory(const void* at) { return arena().contains(at); }

Region* find_region(const void* at) {
  Allocation* const found = arena().find(at);
  return found == nullptr ? nullptr : &found->region;
}

int device_of(const void* data) {
  const Allocation* const found = arena().find(data);
  return found == nullptr ? -1 : found->device;
}

void device_memory(int device, size_t& free, size_t& total) {
  free = arena().free_bytes(device);
  total = kDeviceBytes;
}

void mark_written(void* at, size_t bytes) {
  Region* const region = find_region(at);
  if (region == nullptr || bytes == 0 || !region->is_tracked()) return;
  if (region->is_written.empty()) region->is_written.resize(region->bytes);
  std::fill_n(region->is_written.begin() + (static_cast<char*>(at) - region->data), bytes, uint8_t{1});
}

DeviceAccess::DeviceAccess() { arena().open(); }
DeviceAccess::~DeviceAccess() { arena().close(); }

}  // namespace cuda_host
