// Blocks as fibers; see grid.h. A thread that never waits runs without a switch of stacks: a fiber runs threads one after
// another until one of them has to wait.
#include "grid.h"

#include <fmt/format.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "access.h"
#include "sanitizer.h"

namespace cuda_host {

thread_local Position position;

namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kSharedBytes = size_t{227} << 10;  // what a block may have on Hopper
constexpr size_t kSharedGap = 64;                   // between variables, so that an index that is off by one hits none
constexpr unsigned char kUninitialised = 0xff;      // NaN as a float, and an index that is out of range

enum class Wait { none, block, warp };

/// Where a stack was left. Stacks are switched by _longjmp, which makes no system call; only the first entry is by a ucontext.
struct Place {
  jmp_buf buffer;
};

struct Fiber {
  ucontext_t entry{};
  Place place{};
  bool is_fresh = true;
  void* stack = nullptr;
  void* fake_stack = nullptr;  // of AddressSanitizer

  Fiber()
      : stack(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (stack == MAP_FAILED) throw std::bad_alloc();
  }
  ~Fiber() { munmap(stack, kStackBytes); }
  void prepare(void (*function)()) {
    getcontext(&entry);
    entry.uc_stack.ss_sp = stack;
    entry.uc_stack.ss_size = kStackBytes;
    entry.uc_link = nullptr;
    makecontext(&entry, function, 0);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
};

/// Leaves the running stack at `from`, and goes on where `to` was left; a null fiber is the scheduler, which was left at `scheduler`.
[[gnu::noinline]] void transfer(Place& from, Fiber* to, Place& scheduler) {
  if (_setjmp(from.buffer) != 0) return;
  if (to == nullptr) _longjmp(scheduler.buffer, 1);
  if (!to->is_fresh) _longjmp(to->place.buffer, 1);
  to->is_fresh = false;
  setcontext(&to->entry);
}

/// Most texts are the same literal.
bool is_same(const char* a, const char* b) { return a == b || std::string_view(a) == b; }

struct Thread {
  uint3 index;
  int number = 0;
  Wait wait = Wait::none;
  const char* file = nullptr;  // of the barrier at which it waits
  int line = 0;
  const char* what = nullptr;  // or the function for which its warp meets
  bool started = false, exited = false;
  Fiber* fiber = nullptr;
  int warp_order = 0;  // how many __syncwarp it has passed since the last barrier
};

/// The lanes of a warp that meet under one mask; several masks can be under way at a time.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  const char* what = nullptr;
  uint64_t values[kWarpSize] = {};
  Lanes result{};
};

struct Warp {
  unsigned alive = 0;
  std::vector<std::unique_ptr<Meeting>> meetings;
};

/// Shared memory: variables in the order in which the block first reaches them.
class SharedMemory {
 public:
  SharedMemory() : data_(static_cast<char*>(aligned_alloc(1024, kSharedBytes + 1024))) {}
  ~SharedMemory() {
    sanitizer::unpoison(data_, kSharedBytes + 1024);
    free(data_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void begin(size_t dynamic) {
    variables_.clear();
    sanitizer::unpoison(data_, std::min(filled_, kSharedBytes + 1024));
    end_ = 0;
    used_ = 0;
    filled_ = 0;
    dynamic_ = dynamic;
    shared_begin(data_, kSharedBytes);
    if (dynamic != 0) place(nullptr, dynamic, 1024, "dynamic shared memory");
  }
  void* variable(const void* key, size_t bytes, size_t alignment, const char* name) {
    const auto found = variables_.find(key);
    return found != variables_.end() ? found->second : place(key, bytes, alignment, name);
  }
  void* dynamic() const {
    if (dynamic_ == 0) throw Finding("dynamic shared memory is used, and the launch asked for none");
    return data_;
  }

 private:
  void* place(const void* key, size_t bytes, size_t alignment, const char* name) {
    const size_t at = (end_ + alignment - 1) / alignment * alignment;
    used_ += bytes;
    if (used_ > kSharedBytes || at + bytes + kSharedGap > kSharedBytes + 1024) {
      throw Finding(fmt::format("{} bytes of shared memory with {}: a block may have {}", used_, name, kSharedBytes));
    }
    end_ = at + bytes + kSharedGap;
    std::fill_n(data_ + at, bytes, static_cast<char>(kUninitialised));
    sanitizer::poison(data_ + at + bytes, kSharedGap);
    filled_ = end_;
    shared_variable_added(data_ + at, bytes, name);
    return variables_[key] = data_ + at;
  }

  char* data_;
  std::map<const void*, void*> variables_;
  size_t end_ = 0, used_ = 0, filled_ = 0, dynamic_ = 0;
};

/// The block that runs, and the fibers and memory that blocks reuse.
class Block {
 public:
  void run(const Grid& grid, uint3 index);
  void wait_at_barrier(const char* file, int line);
  int count(bool value, const char* file, int line);
  const Lanes& meet(unsigned mask, uint64_t value, const char* what);
  void order_warp();
  int lane() const { return current_->number % kWarpSize; }
  SharedMemory& shared() { return shared_; }
  std::string place() const;
  bool running() const { return current_ != nullptr; }
  [[noreturn]] void abandon(const std::string& finding);

 private:
  static void enter();
  void fiber_loop();
  void resume(Thread& thread, Place& from, void** from_fake);
  void suspend();
  void leave(Thread& thread);
  void make_current(Thread& thread);
  void release_barrier();
  void complete(Warp& warp, Meeting& meeting);
  [[noreturn]] void fail_stuck() const;
  Thread* next_unstarted();
  Thread* next_ready();
  Fiber* idle_fiber();
  void switch_to(Place& from, void** from_fake, Fiber* to);
  void finish_switch(void* fake_stack);

  const Grid* grid_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<int> order_;
  size_t next_ = 0;
  std::vector<Thread*> ready_;
  std::vector<Warp> warps_;
  int waiting_ = 0, exited_ = 0, votes_ = 0, vote_result_ = 0;
  const Thread* first_waiting_ = nullptr;  // at the barrier
  Thread* current_ = nullptr;
  Place scheduler_{};
  void* scheduler_fake_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* fiber_ = nullptr;       // that runs; null is the scheduler
  bool left_scheduler_ = false;  // by the last switch
  std::exception_ptr error_;
  SharedMemory shared_;
  std::mt19937_64 random_{seed()};

  static uint64_t seed() {
    const char* const text = std::getenv("CUDA_HOST_SEED");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  }

  friend void ::cuda_host::run(const Grid&);
};

std::recursive_mutex& grid_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Never destroyed: streams may run work when the process ends.
Block& block() {
  static Block* instance = new Block;
  return *instance;
}

std::string Block::place() const {
  const uint3 b = position.block, t = position.thread;
  return fmt::format("kernel {}, block ({}, {}, {}), thread ({}, {}, {})", grid_->name, b.x, b.y, b.z, t.x, t.y, t.z);
}

void Block::switch_to(Place& from, void** from_fake, Fiber* to) {
  const void* stack = to == nullptr ? scheduler_stack_ : to->stack;
  const size_t bytes = to == nullptr ? scheduler_stack_bytes_ : kStackBytes;
  sanitizer::start_switch(from_fake, stack, bytes);
  Fiber* const self = fiber_;
  fiber_ = to;
  left_scheduler_ = self == nullptr;
  transfer(from, to, scheduler_);
  fiber_ = self;
  finish_switch(self == nullptr ? scheduler_fake_ : self->fake_stack);
}

void Block::finish_switch(void* fake_stack) {
  // The stack of the scheduler is told when it is left: another thread of the process may run the next grid.
  sanitizer::finish_switch(fake_stack, left_scheduler_ ? &scheduler_stack_ : nullptr,
                           left_scheduler_ ? &scheduler_stack_bytes_ : nullptr);
}

void Block::enter() {
  Block& self = block();
  self.finish_switch(nullptr);
  self.fiber_loop();
}

/// Runs threads that have not started, until none is left; then waits to be used again.
void Block::fiber_loop() {
  while (true) {
    while (Thread* thread = error_ == nullptr ? current_ : nullptr) {
      thread->started = true;
      thread->fiber = fiber_;
      make_current(*thread);
      try {
        grid_->thread(grid_->arguments.get());
      } catch (...) {
        if (error_ == nullptr) error_ = std::current_exception();
      }
      leave(*thread);
      current_ = error_ == nullptr ? next_unstarted() : nullptr;
    }
    idle_.push_back(fiber_);
    suspend();
  }
}

void Block::make_current(Thread& thread) {
  current_ = &thread;
  position.thread = thread.index;
  accessing_thread(thread.number, thread.warp_order, thread.fiber->stack, kStackBytes);
}

Thread* Block::next_unstarted() {
  return next_ < order_.size() ? &threads_[static_cast<size_t>(order_[next_++])] : nullptr;
}

Fiber* Block::idle_fiber() {
  if (!idle_.empty()) {
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }
  fibers_.push_back(std::make_unique<Fiber>());
  fibers_.back()->prepare(&Block::enter);
  return fibers_.back().get();
}

Thread* Block::next_ready() {
  if (ready_.empty()) return next_unstarted();
  Thread* const next = ready_.back();
  ready_.pop_back();
  return next;
}

void Block::resume(Thread& thread, Place& from, void** from_fake) {
  current_ = &thread;
  if (thread.started) make_current(thread);
  Fiber* const fiber = thread.started ? thread.fiber : idle_fiber();
  if (fiber != fiber_) switch_to(from, from_fake, fiber);
}

/// Leaves the fiber that runs for the next thread that can run, or else for the scheduler.
void Block::suspend() {
  Thread* const next = error_ == nullptr ? next_ready() : nullptr;
  if (next != nullptr) resume(*next, fiber_->place, &fiber_->fake_stack);
  else switch_to(fiber_->place, &fiber_->fake_stack, nullptr);
}

void Block::leave(Thread& thread) {
  thread.exited = true;
  ++exited_;
  Warp& warp = warps_[static_cast<size_t>(thread.number / kWarpSize)];
  warp.alive &= ~(1u << (thread.number % kWarpSize));
  for (const auto& meeting : warp.meetings) {
    if (meeting->arrived != 0 && (meeting->mask & warp.alive & ~meeting->arrived) == 0) complete(warp, *meeting);
  }
}

void Block::release_barrier() {
  for (Thread& thread : threads_) {
    thread.wait = Wait::none;
    thread.warp_order = 0;
    ready_.push_back(&thread);
  }
  std::shuffle(ready_.begin(), ready_.end(), random_);
  waiting_ = 0;
  vote_result_ = votes_;
  votes_ = 0;
  accessing_next_interval();
}

void Block::wait_at_barrier(const char* file, int line) {
  Thread& self = *current_;
  if (waiting_ == 0) first_waiting_ = &self;
  if (first_waiting_ != &self && (first_waiting_->line != line || !is_same(first_waiting_->file, file))) {
    throw Finding(
        fmt::format("{}: waits at the barrier in line {}, while thread {} of the block waits at that in line {}",
                    place(), line, first_waiting_->number, first_waiting_->line));
  }
  self.wait = Wait::block;
  self.file = file;
  self.line = line;
  ++waiting_;
  suspend();
}

int Block::count(bool value, const char* file, int line) {
  votes_ += value ? 1 : 0;
  wait_at_barrier(file, line);
  return vote_result_;
}

void Block::complete(Warp& warp, Meeting& meeting) {
  std::copy(std::begin(meeting.values), std::end(meeting.values), meeting.result.values);
  meeting.result.present = meeting.arrived;
  const unsigned first = static_cast<unsigned>(&warp - warps_.data()) * kWarpSize;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((meeting.arrived >> lane & 1u) == 0) continue;
    Thread& thread = threads_[first + lane];
    thread.wait = Wait::none;
    ready_.push_back(&thread);
  }
  meeting.arrived = 0;
}

const Lanes& Block::meet(unsigned mask, uint64_t value, const char* what) {
  Thread& self = *current_;
  const unsigned bit = 1u << lane();
  Warp& warp = warps_[static_cast<size_t>(self.number / kWarpSize)];
  if ((mask & bit) == 0)
    throw Finding(
        fmt::format("{}: the mask {:#x} of {} does not name the calling lane {}", place(), mask, what, lane()));
  Meeting* mine = nullptr;
  for (const auto& meeting : warp.meetings) {
    if (meeting->mask == mask) mine = meeting.get();
    else if (meeting->arrived != 0 && (meeting->mask & mask) != 0) {
      throw Finding(fmt::format("{}: {} with the mask {:#x}, while lanes of it wait in {} with the mask {:#x}", place(),
                                what, mask, meeting->what, meeting->mask));
    }
  }
  if (mine == nullptr) {
    mine = warp.meetings.emplace_back(std::make_unique<Meeting>()).get();
    mine->mask = mask;
  }
  if (mine->arrived != 0 && !is_same(mine->what, what)) {
    throw Finding(fmt::format("{}: {}, while other lanes of the warp wait in {}", place(), what, mine->what));
  }
  mine->what = what;
  mine->values[lane()] = value;
  mine->arrived |= bit;
  self.wait = Wait::warp;
  self.what = what;
  if ((mask & warp.alive & ~mine->arrived) == 0) complete(warp, *mine);
  suspend();
  return mine->result;
}

void Block::abandon(const std::string& finding) {
  error_ = std::make_exception_ptr(Finding(finding));
  suspend();
  std::terminate();  // nobody resumes a block that has failed
}

void Block::order_warp() {
  ++current_->warp_order;
  make_current(*current_);
}

void Block::fail_stuck() const {
  int at_barrier = 0;
  const Thread* example = nullptr;
  const Thread* in_warp = nullptr;
  for (const Thread& thread : threads_) {
    if (thread.wait == Wait::block) {
      ++at_barrier;
      example = &thread;
    } else if (thread.wait == Wait::warp) {
      in_warp = &thread;
    }
  }
  const uint3 b = position.block;
  const std::string where = fmt::format("kernel {}, block ({}, {}, {})", grid_->name, b.x, b.y, b.z);
  if (in_warp != nullptr) {
    throw Finding(fmt::format(
        "{}: thread {} waits in {} for lanes that do not come; {} of {} threads have ended, {} wait at a barrier",
        where, in_warp->number, in_warp->what, exited_, threads_.size(), at_barrier));
  }
  throw Finding(fmt::format("{}: {} of {} threads reach the barrier in line {}; the others have ended", where,
                            at_barrier, threads_.size(), example->line));
}

void Block::run(const Grid& grid, uint3 index) {
  grid_ = &grid;
  const dim3 size = grid.threads;
  const size_t count = size_t{size.x} * size.y * size.z;
  threads_.assign(count, {});
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0);
  std::shuffle(order_.begin(), order_.end(), random_);
  warps_.clear();
  warps_.resize((count + kWarpSize - 1) / kWarpSize);
  for (size_t i = 0; i < count; ++i) {
    const unsigned n = static_cast<unsigned>(i);
    threads_[i].number = static_cast<int>(i);
    threads_[i].index = {n % size.x, n / size.x % size.y, n / size.x / size.y};
    warps_[i / kWarpSize].alive |= 1u << (i % kWarpSize);
  }
  next_ = 0;
  waiting_ = exited_ = votes_ = 0;
  ready_.clear();
  error_ = nullptr;
  position.block = index;
  position.threads = grid.threads;
  position.blocks = grid.blocks;
  shared_.begin(grid.dynamic_shared);
  accessing_block(index);
  while (exited_ < static_cast<int>(count) && error_ == nullptr) {
    if (Thread* const next = next_ready()) {
      resume(*next, scheduler_, &scheduler_fake_);
    } else {
      if (waiting_ != static_cast<int>(count)) fail_stuck();
      release_barrier();
    }
  }
  current_ = nullptr;
  if (error_ != nullptr) {
    // The stacks of threads that still wait are lost; kernels own nothing.
    idle_.clear();
    fibers_.clear();
    std::rethrow_exception(error_);
  }
}

}  // namespace

void run(const Grid& grid) {
  const std::lock_guard lock(grid_mutex());
  Block& b = block();
  if (b.running()) throw Finding("a kernel launches another one, which the model does not know");
  const uint64_t blocks = uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  accessing_grid(grid);
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), b.random_);
  try {
    for (uint32_t n : order) {
      b.run(grid, {n % grid.blocks.x, n / grid.blocks.x % grid.blocks.y, n / grid.blocks.x / grid.blocks.y});
    }
  } catch (...) {
    b.current_ = nullptr;
    accessing_end();
    throw;
  }
  accessing_end();
}

void barrier(const char* file, int line) { block().wait_at_barrier(file, line); }
int barrier_count(bool value, const char* file, int line) { return block().count(value, file, line); }
const Lanes& meet(unsigned mask, uint64_t value, const char* what) { return block().meet(mask, value, what); }
void meet_and_order(unsigned mask) {
  block().meet(mask, 0, "__syncwarp");
  block().order_warp();
}
int lane() { return block().lane(); }
void copy_of_lane(const Lanes& lanes, int source, void* to, size_t bytes) {
  if (source < 0 || source >= kWarpSize || (lanes.present >> source & 1u) == 0) fail_lane("with_lanes", source);
  std::memcpy(to, reinterpret_cast<const void*>(lanes.values[source]), bytes);
}
void end_reads_of_lanes(unsigned mask, uint64_t reads) {
  const Lanes& all = meet(mask, reads, "the end of with_lanes");
  for (int i = 0; i < kWarpSize; ++i) {
    if ((all.present >> i & 1u) != 0 && all.values[i] != reads)
      throw Finding(fmt::format("{}: with_lanes reads {} values here and {} in lane {}", block().place(), reads,
                                all.values[i], i));
  }
}
void fail_lane(const char* what, int source) {
  throw Finding(fmt::format("{}: {} reads lane {}, which takes no part in it", block().place(), what, source));
}
void* shared_variable(const void* key, size_t bytes, size_t alignment, const char* name) {
  return block().shared().variable(key, bytes, alignment, name);
}
void* dynamic_shared() { return block().shared().dynamic(); }
std::string running_thread() { return block().place(); }
void abandon(const std::string& finding) { block().abandon(finding); }

}  // namespace cuda_host
