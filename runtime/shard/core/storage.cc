#include "shard/core/storage.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "shard/core/dims.h"
#include "shard/core/error.h"
#include "shard/core/left_storages.h"
#include "shard/core/partial_failures.h"
#include "shard/core/small_blocks.h"
#include "shard/core/tracer.h"
#include "shard/core/writing.h"

namespace shard {
namespace {

// Small CPU buffers are allocated together with their Storage: one allocation instead of two.
constexpr size_t kInlineBytes = 512;
constexpr size_t kInlineOffset = (sizeof(Storage) + 63) / 64 * 64;

/// The bytes of the large buffers on each device, for messages. Small ones are not counted: they
/// are numerous, and rarely what fills a device.
constexpr size_t kCountedBytes = size_t{1} << 20;
std::atomic<int64_t>& held_bytes(Device device) {
  static std::array<std::array<std::atomic<int64_t>, 256>, kMaxBackends> held;
  return held[device.backend][device.index];
}
void count_held(Device device, size_t bytes, int64_t sign) {
  if (bytes >= kCountedBytes)
    held_bytes(device).fetch_add(sign * static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

/// Guards the source and copy relations of all storages, because the last tensor of a buffer may be
/// destroyed in any thread. Never held while a reference is dropped.
std::mutex& chains() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

void fail_no_memory(const char* op, const Meta& meta, Device device, std::string_view cause) {
  fail(ErrorCode::device,
       "{}no memory for {} on {}: {} bytes were requested, while tensors of this process hold {} bytes there in "
       "buffers of 1 MiB and more ({}). Free tensors that are not needed any more (under gradients also the results "
       "that hold their history), work in place or on smaller parts, recompute instead of keeping values for backward, "
       "or shard the tensor over more ranks",
       op == nullptr ? "" : fmt::format("[{}] ", op), to_string(meta), to_string(device), meta.bytes(),
       held_bytes(device).load(), cause);
}

/// A storage may hold the last reference to another one, and so on. They are destroyed one after
/// the other, not recursively.
struct DyingStorages {
  std::vector<Storage*> waiting;
};

struct Storage::Hazards {
  bool detached = false;
  Detachment detachment;
  Storage* previous_copy = nullptr;  // the other copies of the same source
  Storage* next_copy = nullptr;
  std::exception_ptr poison;
  std::string poisoned_by;
  std::shared_ptr<Work> pending;
  const Rank* pending_rank = nullptr;  // that waits for it
  Use pending_use = Use::reads;
};

std::string LastWrite::text(const LastWrite* write) {
  if (write == nullptr) return "an op";
  const std::string views = write->views.text();
  return fmt::format("[{}]{}{}{}", write->op, write->site.text(), views.empty() ? "" : " through a view by ", views);
}

Storage::Storage(size_t block_bytes) : block_bytes_(static_cast<uint32_t>(block_bytes)) {}
Storage::~Storage() = default;

void Storage::bump(const char* writer) {
  version_.store(version() + 1, std::memory_order_relaxed);
  if (!last_write_) last_write_ = std::make_unique<LastWrite>();
  *last_write_ = {.op = writer, .site = {}, .views = {}};
  const Writing* const writing = Writing::current();
  if (writing == nullptr) return;
  last_write_->site = writing->site();
  last_write_->views = writing->views_of(*this);
}

Ref<Storage> Storage::allocate(Device device, size_t bytes) {
  return allocate(device, bytes, nullptr, {Dims{static_cast<int64_t>(bytes)}, DType::uint8});
}

Ref<Storage> Storage::allocate(Device device, size_t bytes, const char* op, const Meta& tensor) {
  const bool inside = device.backend == 0 && bytes <= kInlineBytes;
  const size_t block_bytes = inside ? kInlineOffset + bytes : sizeof(Storage);
  void* memory = allocate_block(block_bytes);
  if (memory == nullptr) fail_no_memory(op, tensor, device, "malloc failed");
  Ref<Storage> storage = Ref<Storage>::adopt(new (memory) Storage(block_bytes));
  storage->device_ = device;
  if (inside) {
    storage->data_ = static_cast<char*>(memory) + kInlineOffset;
  } else {
    try {
      storage->data_ = backend_of(device).allocate(device.index, bytes);
    } catch (const Error& error) { fail_no_memory(op, tensor, device, error.what()); }
    count_held(device, bytes, 1);
  }
  storage->bytes_ = bytes;
  storage->state_ = State::held;
  if (Tracer* const tracer = Tracer::current()) tracer->made(*storage);
  return storage;
}

Ref<Storage> Storage::adopt(Device device, void* data, size_t bytes, std::shared_ptr<void> owner) {
  if (!owner) fail(ErrorCode::internal, "a storage cannot adopt bytes without an owner");
  void* memory = allocate_block(sizeof(Storage));
  if (memory == nullptr) fail(ErrorCode::device, "out of memory for a storage of adopted bytes");
  Ref<Storage> storage = Ref<Storage>::adopt(new (memory) Storage(sizeof(Storage)));
  storage->device_ = device;
  storage->data_ = data;
  storage->bytes_ = bytes;
  storage->owner_ = std::move(owner);
  storage->state_ = State::held;
  if (Tracer* const tracer = Tracer::current()) tracer->made(*storage);
  return storage;
}

Ref<Storage> Storage::absent() {
  Ref<Storage> storage = allocate(kCpu, 0);
  storage->state_ = State::absent;
  return storage;
}

Ref<Storage> Storage::shape_only(Device device) {
  // It is never written, so a thread shares one among the tensors of a device.
  [[gnu::tls_model("initial-exec")]] static thread_local Ref<Storage> shared;
  if (!shared || shared->device_ != device) {
    shared = allocate(kCpu, 0);
    shared->state_ = State::shape_only;
    shared->device_ = device;
  }
  return shared;
}

Ref<Storage> Storage::unallocated(Device device, size_t bytes, MemoryMeter& meter) {
  void* memory = allocate_block(sizeof(Storage));
  if (memory == nullptr) fail(ErrorCode::device, "out of memory for a storage without bytes");
  Ref<Storage> storage = Ref<Storage>::adopt(new (memory) Storage(sizeof(Storage)));
  storage->device_ = device;
  storage->bytes_ = bytes;
  storage->meter_ = &meter;
  meter.add(static_cast<int64_t>(bytes));
  return storage;
}

void Storage::drop_data(MemoryMeter& meter) {
  if (state_ != State::held) return;
  free_data();
  state_ = State::unallocated;
  meter_ = &meter;
  meter.add(static_cast<int64_t>(bytes_));
}

void Storage::free_data() {
  if (owner_) {
    data_ = nullptr;
    return owner_.reset();
  }
  // The address does not decide it: an allocator may place a buffer directly after this block.
  const bool inside = bytes_ <= kInlineBytes && (device_.backend == 0 || state_ == State::shape_only);
  if (!inside && data_ != nullptr) {
    backend_of(device_).free(device_.index, data_);
    count_held(device_, bytes_, -1);
  }
  data_ = nullptr;
}

void Storage::free_bytes() {
  free_data();
  if (meter_ != nullptr) meter_->add(-static_cast<int64_t>(bytes_));
  meter_ = nullptr;
}

SourceRef::SourceRef(const Ref<Storage>& storage) : storage_(storage.get()) {
  if (storage_ != nullptr) storage_->holders_.fetch_add(1, std::memory_order_relaxed);
}

SourceRef::SourceRef(const SourceRef& other) : storage_(other.storage_) {
  if (storage_ != nullptr) storage_->holders_.fetch_add(1, std::memory_order_relaxed);
}

SourceRef::~SourceRef() {
  if (storage_ != nullptr) storage_->drop_holder();
}

void Storage::drop_holder() {
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) free_block(this);
}

void Storage::free_block(Storage* storage) {
  const size_t bytes = storage->block_bytes_;
  storage->~Storage();
  shard::free_block(storage, bytes);
}

void Storage::destroy(Storage* storage) {
  if (!storage->hazards_ && storage->holders_.load(std::memory_order_acquire) == 1) {
    storage->free_bytes();
    return free_block(storage);
  }
  if (storage->pending() && leave_storage(storage->hazards_->pending_rank, storage)) return;
  if (this_thread.dying != nullptr) return this_thread.dying->waiting.push_back(storage);
  DyingStorages dying{{storage}};
  this_thread.dying = &dying;
  while (!dying.waiting.empty()) {
    Storage* const next = dying.waiting.back();
    dying.waiting.pop_back();
    next->retire();
  }
  this_thread.dying = nullptr;
}

void Storage::retire() {
  if (hazards_) {
    try {
      wait_pending();
    } catch (...) {  // the bytes are not read any more
    }
  }
  free_bytes();
  // Nothing can write these bytes any more: a copy that is stale stays stale, and needs only the
  // writer.
  reparent_copies([this](const Detachment& copy) { return copy.source_version == version(); });
  {
    // Remaining copies still ask, in their threads, whether this one is detached.
    std::unique_ptr<Hazards> gone;
    const std::lock_guard lock(chains());
    if (hazards_ && hazards_->detached) unlink_from_source();
    gone.swap(hazards_);
  }
  drop_holder();
}

void Storage::reparent_copies(const std::function<bool(Detachment&)>& follow) {
  if (detachment() == nullptr) return;
  const std::lock_guard lock(chains());
  const Detachment& mine = hazards_->detachment;
  for (Storage *copy = first_copy_, *next = nullptr; copy != nullptr; copy = next) {
    next = copy->hazards_->next_copy;
    Detachment& theirs = copy->hazards_->detachment;
    if (!follow(theirs)) continue;
    const bool behind = copy->behind_source();
    std::unique_ptr<LastWrite>& writer = mine.source->last_write_;
    if (behind && !writer && last_write_)
      writer = std::make_unique<LastWrite>(*last_write_);  // for the message of the copy
    copy->unlink_from_source();
    theirs.source_version = mine.source_version - (behind ? 1 : 0);
    theirs.source = mine.source;
    copy->link_to_source();
  }
}

void Storage::link_to_source() {
  Storage*& first = hazards_->detachment.source->first_copy_;
  hazards_->previous_copy = nullptr;
  hazards_->next_copy = first;
  if (first != nullptr) first->hazards_->previous_copy = this;
  first = this;
}

void Storage::unlink_from_source() {
  Storage* const previous = hazards_->previous_copy;
  Storage* const next = hazards_->next_copy;
  (previous != nullptr ? previous->hazards_->next_copy : hazards_->detachment.source->first_copy_) = next;
  if (next != nullptr) next->hazards_->previous_copy = previous;
}

Storage::Hazards& Storage::hazards() {
  if (!hazards_) hazards_ = std::make_unique<Hazards>();
  return *hazards_;
}

void Storage::detach(Detachment detachment) {
  if (!detachment.source && !hazards_) return;
  Hazards& t = hazards();
  if (!detachment.origin) detachment.origin = detachment.source;
  const std::lock_guard lock(chains());
  if (t.detached) unlink_from_source();
  t.detached = static_cast<bool>(detachment.source);
  std::swap(t.detachment, detachment);  // the previous one is destroyed after the lock is released
  if (t.detached) link_to_source();
}

const Detachment* Storage::detachment() const {
  return hazards_ && hazards_->detached ? &hazards_->detachment : nullptr;
}

/// For a detached storage, under the lock.
bool Storage::behind_source() const {
  const Detachment& d = hazards_->detachment;
  return d.source->version() != d.source_version;
}

bool Storage::stale() const {
  if (detachment() == nullptr) return false;
  const std::lock_guard lock(chains());
  for (const Storage* s = this; s->detachment() != nullptr; s = s->detachment()->source.get()) {
    if (s->behind_source()) return true;
  }
  return false;
}

Storage& Storage::root() {
  if (detachment() == nullptr) return *this;
  const std::lock_guard lock(chains());
  Storage* root = this;
  while (root->detachment() != nullptr) root = root->detachment()->source.get();
  return *root;
}

void Storage::for_each_source(const std::function<void(Storage&)>& f) {
  if (detachment() == nullptr) return;
  const std::lock_guard lock(chains());
  for (Storage* s = this; s->detachment() != nullptr; f(*s)) s = s->detachment()->source.get();
}

void Storage::mark_in_sync() {
  if (detachment() == nullptr) return;
  const std::lock_guard lock(chains());
  hazards_->detachment.source_version = hazards_->detachment.source->version();
}

void Storage::poison(std::exception_ptr cause, const char* op) {
  Hazards& t = hazards();
  t.poison = std::move(cause);
  t.poisoned_by = op;
}

void Storage::mark_maybe_poisoned(const std::shared_ptr<PartialFailures>& calls, uint64_t call) {
  if (partial_failures_ != calls) partial_failures_ = calls;
  written_by_ = call;
}

void Storage::set_pending(std::shared_ptr<Work> work, Use use) {
  if (hazards_) wait_pending();
  Hazards& t = hazards();
  t.pending = std::move(work);
  t.pending_rank = this_thread.rank;
  t.pending_use = use;
}

bool Storage::pending() const { return hazards_ && hazards_->pending && hazards_->pending->pending(); }

void Storage::wait_pending() const {
  if (!hazards_->pending) return;
  hazards_->pending->wait();
  hazards_->pending.reset();
}

void Storage::check_poison() const {
  if (partially_failed()) {
    fail(ErrorCode::poisoned,
         "this tensor has no valid value, because it was written by a call that failed on some ranks only: {}",
         partial_failures_->cause());
  }
  if (!hazards_ || !hazards_->poison) return;
  try {
    std::rethrow_exception(hazards_->poison);
  } catch (const std::exception& cause) {
    fail(ErrorCode::poisoned, "this tensor has no valid value, because {} failed while it wrote it: {}",
         hazards_->poisoned_by, cause.what());
  }
}

void Storage::fail_stale() const {
  const Detachment& d = hazards_->detachment;
  const char* writer = "an op";
  {
    // A view of a view is stale when any source in the chain was written.
    const std::lock_guard lock(chains());
    const Storage* view = this;
    while (!view->behind_source()) view = view->detachment()->source.get();
    const LastWrite* const write = view->detachment()->source->last_write();
    if (write != nullptr) writer = write->op;
  }
  if (d.argument.empty()) {
    fail(ErrorCode::stale_view,
         "this tensor is stale: it is a view or alias of a tensor {} whose buffer [{}] has replaced (now {}), and {} "
         "has written the new buffer since. Make the view again from that tensor, or make a copy (assign(x)) before "
         "[{}]",
         d.from, d.op, d.to, writer, d.op);
  }
  fail(ErrorCode::stale_view,
       "this view is stale: [{}] made it from a copy of argument '{}', which was resharded from {} to {}, and {} has "
       "written the source since. Make the view again after the write, or reshard '{}' to {} before [{}]",
       d.op, d.argument, d.from, d.to, writer, d.argument, d.to, d.op);
}

void Storage::check_read_slow() const {
  if (hazards_ && hazards_->pending_use == Use::writes) wait_pending();
  check_poison();
  if (stale()) fail_stale();
}

void Storage::check_write_slow(const char* op) const {
  wait_before_write();
  check_poison();
  if (!hazards_ || !hazards_->detached) return;
  if (stale()) fail_stale();
  const Detachment& d = hazards_->detachment;
  if (d.argument.empty()) {
    fail(ErrorCode::view_of_copy,
         "[{}] cannot write this tensor: it is a view or alias of a tensor {} whose buffer [{}] has replaced (now {}), "
         "so the write would not reach it. Write that tensor itself, or a copy of this one (assign(x))",
         op, d.from, d.op, d.to);
  }
  fail(ErrorCode::view_of_copy,
       "[{}] cannot write this tensor: it is a view by [{}] of argument '{}', which was resharded from {} to {}, so "
       "the write would not reach the source. Write the source itself, reshard '{}' to {} before [{}], or write a copy "
       "(assign(x))",
       op, d.op, d.argument, d.from, d.to, d.argument, d.to, d.op);
}

void Storage::refresh_if_stale() {
  if (!needs_checks()) return;
  if (!stale()) return check_read_slow();
  std::vector<Storage*> chain;  // the sources first; a loop instead of recursion, because chains may be long
  Storage* root = this;
  for (; root->detachment() != nullptr; root = root->detachment()->source.get()) chain.push_back(root);
  root->check_read();
  for (; !chain.empty(); chain.pop_back()) chain.back()->refresh_from_source();
}

void Storage::refresh_from_source() {
  wait_pending();  // also for work that reads the bytes that are about to be replaced
  check_poison();
  if (!behind_source()) return;
  Detachment& d = hazards_->detachment;
  if (!d.refresh) fail_stale();
  d.refresh();
  // Values that were saved from this view, or views of it, have changed; the writer is that of the
  // source.
  bump("refresh");
  if (d.source->last_write() != nullptr) *last_write_ = *d.source->last_write();
  d.source_version = d.source->version();
}

void Storage::write_back_to_source(const char* writer) {
  for (Storage* s = this; s->detachment() != nullptr; s = s->detachment()->source.get()) {
    Detachment& d = s->hazards_->detachment;
    if (!d.write_back) s->check_write_slow(writer);
    d.source->wait_before_write();
    d.write_back();
    d.source->bump(writer);
    d.source_version = d.source->version();
  }
}

}  // namespace shard
