// See access.h.
#include "access.h"

#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <unordered_map>

#include "memory.h"

namespace cuda_host {
namespace {

constexpr uintptr_t kSector = 32;

/// The accesses of a warp's lanes to one place of the source, the nth time that each lane is there.
struct Request {
  bool reads = false, writes = false;
  std::vector<std::pair<uintptr_t, uint32_t>> sectors;  // with a bit for each byte that a lane accesses

  void add(uintptr_t first, size_t bytes) {
    for (uintptr_t at = first; at < first + bytes;) {
      const uintptr_t sector = at / kSector, end = std::min(first + bytes, (sector + 1) * kSector);
      const uint32_t mask = static_cast<uint32_t>(((uint64_t{1} << (end - at)) - 1) << at % kSector);
      const auto found =
          std::find_if(sectors.rbegin(), sectors.rend(), [&](const auto& each) { return each.first == sector; });
      if (found == sectors.rend()) sectors.emplace_back(sector, mask);
      else found->second |= mask;
      at = end;
    }
  }
  uint64_t bytes() const {
    uint64_t count = 0;
    for (const auto& [sector, mask] : sectors) count += static_cast<uint64_t>(std::popcount(mask));
    return count;
  }
};

struct State {
  int stream = 0;  // of the work that runs
  const StreamClock* before = nullptr;
  const Grid* grid = nullptr;
  uint32_t interval = 1, grid_first = 1, block_first = 1;
  int thread = 0, order = 0;
  const char* stack = nullptr;
  size_t stack_bytes = 0;
  char* shared = nullptr;
  size_t shared_bytes = 0;
  std::vector<Region> variables;
  Region* last = nullptr;  // region that was found last
  bool logging = false;
  std::vector<GridLog> logs;
  std::unordered_map<uint64_t, int> visits;        // of a thread to a place
  std::unordered_map<uint64_t, Request> requests;  // of a block
};
State state;  // of the one grid that runs
// True in the thread that runs it. The files of kernels hold host code, too, whose accesses in other threads are not the grid's.
thread_local bool running = false;

/// The range of the program's constants and code, which kernels may read.
struct Image {
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  Image() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD) continue;
            const uintptr_t first = info->dlpi_addr + part.p_vaddr;
            static_cast<Image*>(self)->ranges.emplace_back(first, first + part.p_memsz);
          }
          return 0;
        },
        this);
  }
  bool contains(const void* at) const {
    const auto address = reinterpret_cast<uintptr_t>(at);
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const auto& r) { return address >= r.first && address < r.second; });
  }
};

const char* verb(Kind kind) { return kind == Kind::read ? "reads" : "writes"; }

[[noreturn]] void refuse(Kind kind, const void* at, size_t bytes, const std::string& why) {
  abandon(fmt::format("{} {} {} bytes at {}: {}", running_thread(), verb(kind), bytes, at, why));
}

std::string describe(const Region& region, const void* at) {
  const auto offset = static_cast<const char*>(at) - region.data;
  if (region.name != nullptr)
    return fmt::format("byte {} of the {} of shared variable {}", offset, region.bytes, region.name);
  return fmt::format("byte {} of an allocation of {}", offset, region.bytes);
}

/// How an earlier access of this grid conflicts with one of the running thread; null where it does not.
const char* conflict(const Access& earlier, bool is_atomic, bool is_shared) {
  if (earlier.atomic && is_atomic) return nullptr;
  if (earlier.interval < state.block_first) return is_shared ? nullptr : "another block";
  if (earlier.interval != state.interval || earlier.thread == state.thread) return nullptr;
  if (earlier.thread / kWarpSize == state.thread / kWarpSize && earlier.order != state.order) return nullptr;
  return "another thread of the block, with no barrier in between";
}

/// Whether other work made an access that may happen at the same time.
bool is_unordered(const Access& earlier) {
  const int stream = static_cast<int>(earlier.stream);
  return stream != 0 && stream != state.stream && state.before != nullptr &&
         earlier.interval > state.before->of(stream);
}

constexpr const char* kOtherStream = "work of another stream, with no event or wait in between";

/// Why the work that runs may not use an allocation that another stream has made; null where it may.
const char* not_made(const Region& region) {
  if (region.made_by == 0 || region.made_by == state.stream || state.before == nullptr) return nullptr;
  if (region.made != 0 && region.made <= state.before->of(region.made_by)) return nullptr;
  return "is allocated in the order of another stream, with no event or wait in between";
}

[[noreturn, gnu::cold, gnu::noinline]] void refuse_race(const Region& region, Kind kind, const void* at, size_t bytes,
                                                        const Access& earlier, const char* did, const char* who) {
  refuse(kind, at, bytes, fmt::format("{} {} by {} (thread {})", describe(region, at), did, who, earlier.thread));
}

inline void check_race(const Region& region, Cell& cell, Kind kind, const void* at, size_t bytes) {
  const bool is_atomic = kind == Kind::atomic, is_shared = region.name != nullptr;
  const auto against = [&](const Access& earlier, const char* did) {
    if (earlier.interval < state.grid_first) {  // most cells: nobody, or other work
      if (is_unordered(earlier)) refuse_race(region, kind, at, bytes, earlier, did, kOtherStream);
      return;
    }
    if (const char* const who = conflict(earlier, is_atomic, is_shared))
      refuse_race(region, kind, at, bytes, earlier, did, who);
  };
  against(cell.write, "was written");
  const Access self{state.interval, static_cast<uint32_t>(state.thread), static_cast<uint32_t>(state.order),
                    static_cast<uint32_t>(state.stream), is_atomic};
  if (kind == Kind::read) {
    const bool keep = cell.read.interval < state.grid_first
                          ? is_unordered(cell.read)
                          : cell.read.thread != self.thread &&
                                (cell.read.interval == state.interval || cell.read.interval < state.block_first);
    (keep ? cell.other_read : cell.read) = self;
    return;
  }
  against(cell.read, "was read");
  against(cell.other_read, "was read");
  cell.write = self;
}

/// Whether all bytes were written; most accesses are of 4 or 8.
bool all_written(const uint8_t* written, size_t bytes) {
  uint64_t word = 0;
  if (bytes != 4 && bytes != 8) return std::memchr(written, 0, bytes) == nullptr;
  std::memcpy(&word, written, bytes == 4 ? 4 : 8);
  return word == (bytes == 4 ? 0x01010101u : 0x0101010101010101u);
}

/// The cells of a range that begins at `offset`; granules become smaller where it needs this.
std::span<Cell> cells_of(Region& region, size_t offset, size_t bytes) {
  const int shift = std::countr_zero(offset | bytes | 4);
  if (region.cells.empty()) {
    region.granule_shift = shift;
    region.cells.resize(((region.bytes - 1) >> shift) + 1);
  } else if (shift < region.granule_shift) {
    std::vector<Cell> finer(((region.bytes - 1) >> shift) + 1);
    for (size_t i = 0; i < finer.size(); ++i) finer[i] = region.cells[i >> (region.granule_shift - shift)];
    region.cells = std::move(finer);
    region.granule_shift = shift;
  }
  const size_t first = offset >> region.granule_shift, last = (offset + bytes - 1) >> region.granule_shift;
  return std::span(region.cells).subspan(first, last - first + 1);
}

void track(Region& region, Kind kind, const void* at, size_t bytes, bool is_copy) {
  if (!region.is_tracked()) return;
  region.last_use.advance(state.stream, state.interval);
  const size_t offset = static_cast<size_t>(static_cast<const char*>(at) - region.data);
  if (region.is_written.empty()) region.is_written.resize(region.bytes);
  uint8_t* const written = region.is_written.data() + offset;
  // A struct that is copied as a whole may have padding that nobody wrote.
  const bool is_unwritten = is_copy ? std::memchr(written, 1, bytes) == nullptr : !all_written(written, bytes);
  if (kind == Kind::read && is_unwritten) {
    refuse(kind, at, bytes, fmt::format("{} was never written", describe(region, at)));
  }
  if (kind != Kind::read && (is_copy || is_unwritten)) std::memset(written, 1, bytes);
  for (Cell& cell : cells_of(region, offset, bytes)) check_race(region, cell, kind, at, bytes);
}

void log_access(Kind kind, const void* at, size_t bytes, const void* place) {
  const uint64_t where = reinterpret_cast<uint64_t>(place) * 2 + (kind == Kind::read ? 0 : 1);
  const int visit = state.visits[where * 1031 + static_cast<uint64_t>(state.thread)]++;
  Request& request = state.requests[(where * 1000003 + static_cast<uint64_t>(visit)) * 37 +
                                    static_cast<uint64_t>(state.thread / kWarpSize)];
  request.reads = kind != Kind::write;
  request.writes = kind != Kind::read;
  request.add(reinterpret_cast<uintptr_t>(at), bytes);
}

void end_of_block_log() {
  if (!state.logging || state.logs.empty()) return;
  GridLog& log = state.logs.back();
  for (const auto& [key, request] : state.requests) {
    const uint64_t bytes = request.bytes();
    if (request.reads) log.bytes_read += bytes;
    if (request.writes) log.bytes_written += bytes;
    log.sectors += request.sectors.size();
    log.least_sectors += (bytes + kSector - 1) / kSector;
  }
  state.requests.clear();
  state.visits.clear();
}

Region* shared_region(const void* at) {
  for (Region& variable : state.variables) {
    if (variable.contains(at)) return &variable;
  }
  return nullptr;
}

/// access() to memory that is not the stack of a thread, or one side of a copy, which may be of a struct.
void check_access_of_grid(const void* at, size_t bytes, Kind kind, const void* place, bool is_copy) {
  const char* const address = static_cast<const char*>(at);
  const char* const indices = reinterpret_cast<const char*>(&position);  // threadIdx and what is like it
  if (kind == Kind::read && address >= indices && address < indices + sizeof(position)) return;
  Region* region = state.last;
  if (region == nullptr || !region->contains(at)) {
    const bool is_shared = address >= state.shared && address < state.shared + state.shared_bytes;
    if (!is_shared && !is_device_memory(at)) {
      const char* const arguments = static_cast<const char*>(state.grid->arguments.get());
      const bool is_argument = address >= arguments && address < arguments + state.grid->argument_bytes;
      static const Image image;
      if (kind == Kind::read && (is_argument || image.contains(at))) return;
      if (is_pinned_memory(at, bytes)) return;
      refuse(kind, at, bytes, "it is not memory of the device");
    }
    region = is_shared ? shared_region(at) : find_region(at);
    if (region == nullptr)
      refuse(kind, at, bytes, is_shared ? "it is in no shared variable" : "it is in no allocation");
    if (const char* const why = not_made(*region))
      refuse(kind, at, bytes, fmt::format("{} {}", describe(*region, at), why));
    state.last = region;
  }
  if (address + bytes > region->data + region->bytes)
    refuse(kind, at, bytes, describe(*region, at) + " is too near to its end");
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0 && (bytes & (bytes - 1)) == 0)
    refuse(kind, at, bytes, "the address is not aligned");
  track(*region, kind, at, bytes, is_copy);
  if (state.logging && region->name == nullptr) log_access(kind, at, bytes, place);
}

/// The same where host code may run, too. Most accesses are to the stack of a thread, so that callers look at that themselves.
inline void check_access(const void* at, size_t bytes, Kind kind, const void* place, bool is_copy) {
  if (!running || reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(state.stack) < state.stack_bytes)
    return;
  check_access_of_grid(at, bytes, kind, place, is_copy);
}

}  // namespace

void accessing_grid(const Grid& grid) {
  running = true;
  state.grid = &grid;
  state.grid_first = ++state.interval;
  state.last = nullptr;
  if (state.logging) state.logs.emplace_back().kernel = grid.name;
}

void accessing_end() {
  end_of_block_log();
  running = false;
}

void accessing_block(uint3) {
  end_of_block_log();
  state.block_first = ++state.interval;
}

void accessing_next_interval() { ++state.interval; }

void accessing_thread(int number, int warp_order, const void* stack, size_t stack_bytes) {
  state.thread = number;
  state.order = warp_order;
  state.stack = static_cast<const char*>(stack);
  state.stack_bytes = stack_bytes;
}

void shared_begin(void* data, size_t bytes) {
  state.shared = static_cast<char*>(data);
  state.shared_bytes = bytes;
  state.variables.clear();
  state.last = nullptr;
}

void shared_variable_added(void* data, size_t bytes, const char* name) {
  Region region;
  region.data = static_cast<char*>(data);
  region.bytes = bytes;
  region.name = name;
  state.variables.push_back(std::move(region));
  state.last = nullptr;
}

void access(const void* at, size_t bytes, Kind kind, const void* place) { check_access(at, bytes, kind, place, false); }

StreamScope::StreamScope(int stream, const StreamClock& before)
    : outer_stream_(state.stream), outer_before_(state.before) {
  state.stream = stream;
  state.before = &before;
  ++state.interval;
}
StreamScope::~StreamScope() {
  state.stream = outer_stream_;
  state.before = outer_before_;
}
uint32_t StreamScope::now() { return state.interval; }

void use_range(const std::string& what, const void* data, size_t bytes, Kind kind) {
  if (bytes == 0) return;
  Region* const region = find_region(data);
  if (region == nullptr || static_cast<const char*>(data) + bytes > region->data + region->bytes)
    throw Finding(what + " is not within an allocation of the device");
  if (!region->is_tracked()) return;
  if (const char* const why = not_made(*region)) throw Finding(fmt::format("{} {}", what, why));
  region->last_use.advance(state.stream, state.interval);
  const size_t offset = static_cast<size_t>(static_cast<const char*>(data) - region->data);
  const Access self{state.interval, 0, 0, static_cast<uint32_t>(state.stream), false};
  for (Cell& cell : cells_of(*region, offset, bytes)) {
    const char* did = is_unordered(cell.write) ? "was written" : nullptr;
    if (kind != Kind::read && (is_unordered(cell.read) || is_unordered(cell.other_read))) did = "was read";
    if (did != nullptr) throw Finding(fmt::format("{}: {} {} by {}", what, describe(*region, data), did, kOtherStream));
    if (kind != Kind::read) cell.write = self;
    else (is_unordered(cell.read) ? cell.other_read : cell.read) = self;
  }
  if (kind == Kind::write) mark_written(const_cast<void*>(data), bytes);
}

void check_unused(const void* data, int stream, const StreamClock& before) {
  const Region* const region = find_region(data);
  if (region == nullptr) return;
  for (int other = 1; other < kMostStreams; ++other) {
    if (other != stream && region->last_use.of(other) > before.of(other))
      throw Finding(fmt::format("an allocation of {} bytes is freed, and was used by {}", region->bytes, kOtherStream));
  }
}

void made(const void* data) {
  Region* const region = find_region(data);
  if (region == nullptr) return;
  region->made_by = state.stream;  // of a graph, the one that runs it
  region->made = state.interval;
}

void begin_log() {
  state.logs.clear();
  state.logging = true;
}

std::vector<GridLog> end_log() {
  state.logging = false;
  return std::move(state.logs);
}

}  // namespace cuda_host

// What -fsanitize=thread calls.
using cuda_host::check_access;
using cuda_host::Kind;

#define CUDA_HOST_PLACE __builtin_return_address(0)
#define CUDA_HOST_ACCESS(size)                                                                                 \
  void __tsan_read##size(void* at) { check_access(at, size, Kind::read, CUDA_HOST_PLACE, false); }             \
  void __tsan_write##size(void* at) { check_access(at, size, Kind::write, CUDA_HOST_PLACE, false); }           \
  void __tsan_unaligned_read##size(void* at) { check_access(at, size, Kind::read, CUDA_HOST_PLACE, false); }   \
  void __tsan_unaligned_write##size(void* at) { check_access(at, size, Kind::write, CUDA_HOST_PLACE, false); } \
  void __tsan_volatile_read##size(void* at) { check_access(at, size, Kind::read, CUDA_HOST_PLACE, false); }    \
  void __tsan_volatile_write##size(void* at) { check_access(at, size, Kind::write, CUDA_HOST_PLACE, false); }

extern "C" {
CUDA_HOST_ACCESS(1)
CUDA_HOST_ACCESS(2)
CUDA_HOST_ACCESS(4)
CUDA_HOST_ACCESS(8)
CUDA_HOST_ACCESS(16)
void __tsan_read_range(void* at, size_t bytes) { check_access(at, bytes, Kind::read, CUDA_HOST_PLACE, false); }
void __tsan_write_range(void* at, size_t bytes) { check_access(at, bytes, Kind::write, CUDA_HOST_PLACE, false); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
}

// What files of kernels call in place of memcpy, memmove and memset (cuda_runtime.h).
extern "C" {
void* cuda_host_memmove(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return to;
  check_access(from, bytes, Kind::read, CUDA_HOST_PLACE, true);
  check_access(to, bytes, Kind::write, CUDA_HOST_PLACE, true);
  return std::memmove(to, from, bytes);
}
void* cuda_host_memcpy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return to;
  check_access(from, bytes, Kind::read, CUDA_HOST_PLACE, true);
  check_access(to, bytes, Kind::write, CUDA_HOST_PLACE, true);
  return std::memcpy(to, from, bytes);
}
void* cuda_host_memset(void* to, int value, size_t bytes) {
  if (bytes == 0) return to;
  check_access(to, bytes, Kind::write, CUDA_HOST_PLACE, true);
  return std::memset(to, value, bytes);
}
}

// The sources of kernels also hold host code, whose atomic operations go through these; kernels use the functions of language.h.
#define CUDA_HOST_FETCH(type, bits, name)                                       \
  type __tsan_atomic##bits##_fetch_##name(volatile type* at, type value, int) { \
    return __atomic_fetch_##name(at, value, __ATOMIC_SEQ_CST);                  \
  }
#define CUDA_HOST_ATOMIC(type, bits)                                                                              \
  type __tsan_atomic##bits##_load(const volatile type* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile type* at, type value, int) {                                          \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                                \
  }                                                                                                               \
  type __tsan_atomic##bits##_exchange(volatile type* at, type value, int) {                                       \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                               \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected, type value, int, int) {    \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);           \
  }                                                                                                               \
  CUDA_HOST_FETCH(type, bits, add)                                                                                \
  CUDA_HOST_FETCH(type, bits, sub)                                                                                \
  CUDA_HOST_FETCH(type, bits, and)                                                                                \
  CUDA_HOST_FETCH(type, bits, or)                                                                                 \
  CUDA_HOST_FETCH(type, bits, xor)

extern "C" {
CUDA_HOST_ATOMIC(uint8_t, 8)
CUDA_HOST_ATOMIC(uint32_t, 32)
CUDA_HOST_ATOMIC(uint64_t, 64)
}
