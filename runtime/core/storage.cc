#include "core/storage.h"

#include <cstdlib>
#include <new>

#include "core/error.h"
#include "core/recorder.h"
#include "core/writing.h"

namespace shard {
namespace {

// Small CPU buffers live behind their Storage: one allocation instead of two.
constexpr size_t kInlineBytes = 512;
constexpr size_t kInlineOffset = (sizeof(Storage) + 63) / 64 * 64;

}  // namespace

struct Storage::Trouble {
  bool detached = false;
  Detachment detachment;
  std::exception_ptr poison;
  std::string poisoned_by;
  std::shared_ptr<Work> pending;
  Use pending_use = Use::reads;
};

std::string LastWrite::text(const LastWrite* write) {
  if (write == nullptr) return "an op";
  const std::string views = write->views.text();
  return fmt::format("[{}]{}{}{}", write->op, write->site.text(), views.empty() ? "" : " through a view by ", views);
}

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
  const bool inside = device.backend == 0 && bytes <= kInlineBytes;
  void* memory = std::malloc(inside ? kInlineOffset + bytes : sizeof(Storage));
  if (memory == nullptr) fail(ErrorCode::device, "out of memory for a buffer of {} bytes", bytes);
  Ref<Storage> storage = Ref<Storage>::adopt(new (memory) Storage());
  storage->device_ = device;
  storage->bytes_ = bytes;
  storage->data_ = inside ? static_cast<char*>(memory) + kInlineOffset : backend_of(device).allocate(device.index, bytes);
  storage->state_ = State::held;
  if (Recorder* const recorder = Recorder::current()) recorder->made(*storage);
  return storage;
}

Ref<Storage> Storage::absent() {
  Ref<Storage> storage = allocate(kCpu, 0);
  storage->state_ = State::absent;
  return storage;
}

Ref<Storage> Storage::shape_only(Device device) {
  // It is never written: a thread shares one among the tensors of a device.
  static thread_local Ref<Storage> shared;
  if (!shared || shared->device_ != device) {
    shared = allocate(kCpu, 0);
    shared->state_ = State::shape_only;
    shared->device_ = device;
  }
  return shared;
}

Ref<Storage> Storage::unallocated(Device device, size_t bytes, MemoryMeter& meter) {
  void* memory = std::malloc(sizeof(Storage));
  if (memory == nullptr) fail(ErrorCode::device, "out of memory for a storage without bytes");
  Ref<Storage> storage = Ref<Storage>::adopt(new (memory) Storage());
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
  const bool inside = data_ == reinterpret_cast<char*>(this) + kInlineOffset;
  if (!inside && data_ != nullptr) backend_of(device_).free(device_.index, data_);
  data_ = nullptr;
}

void Storage::destroy(Storage* storage) {
  if (storage->trouble_) {
    try {
      storage->wait_pending();
    } catch (...) {  // nobody will read the bytes any more
    }
  }
  storage->free_data();
  if (storage->meter_ != nullptr) storage->meter_->add(-static_cast<int64_t>(storage->bytes_));
  storage->~Storage();
  std::free(storage);
}

Storage::Trouble& Storage::trouble() {
  if (!trouble_) trouble_ = std::make_unique<Trouble>();
  return *trouble_;
}

void Storage::detach(Detachment detachment) {
  Trouble& t = trouble();
  t.detached = true;
  t.detachment = std::move(detachment);
}

const Detachment* Storage::detachment() const { return trouble_ && trouble_->detached ? &trouble_->detachment : nullptr; }

bool Storage::stale() const {
  const Detachment* d = detachment();
  return d != nullptr && (d->source->version() != d->source_version || d->source->stale());
}

void Storage::mark_in_step() {
  if (trouble_ && trouble_->detached) trouble_->detachment.source_version = trouble_->detachment.source->version();
}

void Storage::poison(std::exception_ptr cause, const char* op) {
  Trouble& t = trouble();
  t.poison = std::move(cause);
  t.poisoned_by = op;
}

void Storage::set_pending(std::shared_ptr<Work> work, Use use) {
  if (trouble_) wait_pending();
  Trouble& t = trouble();
  t.pending = std::move(work);
  t.pending_use = use;
}

bool Storage::pending() const { return trouble_ && trouble_->pending && trouble_->pending->pending(); }

void Storage::wait_pending() const {
  if (!trouble_->pending) return;
  trouble_->pending->wait();
  trouble_->pending.reset();
}

void Storage::check_poison() const {
  if (!trouble_->poison) return;
  try {
    std::rethrow_exception(trouble_->poison);
  } catch (const std::exception& cause) {
    fail(ErrorCode::poisoned, "this tensor holds no value, because {} failed while it wrote it: {}",
         trouble_->poisoned_by, cause.what());
  }
}

void Storage::fail_stale() const {
  const Detachment& d = trouble_->detachment;
  // A view of a view is stale when any source on the way was written.
  const Storage* view = this;
  while (view->trouble_->detachment.source->version() == view->trouble_->detachment.source_version) {
    view = view->trouble_->detachment.source.get();
  }
  const Storage* written = view->trouble_->detachment.source.get();
  fail(ErrorCode::stale_view,
       "this view is stale: [{}] made it from a copy of argument '{}', which had to move from {} to {}, and {} has "
       "written the source since. Make the view again after the write, give '{}' the layout {} first, or use "
       "ViewPolicy::sync",
       d.op, d.argument, d.from, d.to, written->last_write() != nullptr ? written->last_write()->op : "an op", d.argument, d.to);
}

void Storage::check_read_slow() const {
  if (trouble_->pending_use == Use::writes) wait_pending();
  check_poison();
  if (stale()) fail_stale();
}

void Storage::check_write_slow(const char* op) const {
  wait_pending();
  check_poison();
  if (!trouble_->detached) return;
  if (stale()) fail_stale();
  const Detachment& d = trouble_->detachment;
  fail(ErrorCode::detached_view,
       "[{}] cannot write this tensor: it is a view by [{}] of argument '{}', which had to move from {} to {}, so the "
       "write would not reach the source. Write the source itself, give '{}' the layout {} before [{}], or use "
       "ViewPolicy::sync (writes through) or ViewPolicy::temporary (the two part)",
       op, d.op, d.argument, d.from, d.to, d.argument, d.to, d.op);
}

void Storage::refresh_if_stale() {
  if (!trouble_) return;
  if (trouble_->pending_use == Use::writes) wait_pending();
  check_poison();
  if (!trouble_->detached || !stale()) return;
  Detachment& d = trouble_->detachment;
  if (!d.refresh) fail_stale();
  d.source->refresh_if_stale();
  d.refresh();
  // What was saved of this view, or viewed of it, has another value now; who wrote it is who wrote the source.
  bump("refresh");
  if (d.source->last_write() != nullptr) *last_write_ = *d.source->last_write();
  d.source_version = d.source->version();
}

void Storage::write_back_to_source(const char* writer) {
  if (!trouble_ || !trouble_->detached) return;
  Detachment& d = trouble_->detachment;
  if (!d.write_back) check_write_slow(writer);
  d.write_back();
  d.source->bump(writer);
  d.source_version = d.source->version();
  d.source->write_back_to_source(writer);
}

}  // namespace shard
