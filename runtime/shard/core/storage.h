// A buffer that tensors share: its bytes, its version, and whether it is detached from the buffer
// that it is a view of.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "shard/core/call_site.h"
#include "shard/core/device.h"
#include "shard/core/export.h"
#include "shard/core/partial_failures.h"
#include "shard/core/ref.h"
#include "shard/core/work.h"

namespace shard {

class Storage;
class PartialFailures;
struct Meta;

/// The view ops between a tensor and its base.
struct SHARD_API ViewChain {
  uint8_t count = 0;
  std::array<const char*, 3> ops{};  // the last of them, newest first

  /// "reshape of slice"; empty for a tensor that is not a view.
  std::string text() const;
};

/// The last write to a buffer.
struct SHARD_API LastWrite {
  const char* op = nullptr;  // lives as long as the library
  CallSite site;             // where the program called it
  ViewChain views;           // from the tensor that was written to its base

  /// "[relu_] at train.cc:41 through a view by slice"; "an op" for null.
  static std::string text(const LastWrite* write);
};

/// Throws device: there is no memory for `meta` on `device`. The message names the op (null: none),
/// the requested bytes, the bytes that tensors hold there, and what to do. `cause` is the message
/// of the backend.
[[noreturn]] SHARD_API void fail_no_memory(const char* op, const Meta& meta, Device device, std::string_view cause);

/// Counts the bytes of planned buffers: those of one rank of a dry world.
struct MemoryMeter {
  int64_t live = 0;
  int64_t peak = 0;
  void add(int64_t bytes) {
    live += bytes;
    peak = live > peak ? live : peak;
  }
};

/// The source of a stale copy. It keeps the version and the last writer of the source, but not its
/// bytes, which are freed with the last Ref.
class SHARD_API SourceRef {
 public:
  SourceRef() = default;
  SourceRef(const Ref<Storage>& storage);  // NOLINT: every Ref is one
  SourceRef(const SourceRef& other);
  SourceRef(SourceRef&& other) noexcept : storage_(std::exchange(other.storage_, nullptr)) {}
  SourceRef& operator=(SourceRef other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~SourceRef();

  Storage* get() const { return storage_; }
  Storage* operator->() const { return storage_; }
  explicit operator bool() const { return storage_ != nullptr; }

 private:
  Storage* storage_ = nullptr;
};

/// Why and from what a storage is detached: it holds a resharded copy of `source`, made at
/// `source_version`. When only copies refer to a source that is itself a copy, they become copies
/// of its source, so that chains are only as long as what tensors can reach. Copies that are kept
/// in sync (call/view_link.h) become that at once.
struct Detachment {
  SourceRef source;
  uint64_t source_version = 0;
  std::string op;        // the call that made the view
  std::string argument;  // its input that was resharded
  std::string from;      // the layouts before and after
  std::string to;
  /// Reshards the bytes again from the source, or back into it (ViewPolicy::sync). Empty where
  /// there is no way back.
  std::function<void()> refresh;
  std::function<void()> write_back;
  SourceRef origin = {};  // the source when the copy was made; set by Storage::detach unless given
};

/// A reference-counted buffer. It exists on every rank of a program, even where it holds no bytes.
/// It contains the version counter, so every alias sees every write. One rank (thread) writes a
/// storage; reading versions is thread safe.
class SHARD_API Storage final : public RefCounted {
 public:
  enum class State : uint8_t {
    held,         // this rank has the bytes (maybe 0 of them)
    absent,       // this rank is not in the mesh
    unallocated,  // on a rank of a dry world: everything but the bytes exists
    shape_only    // represents a buffer of which only shape and dtype were kept
  };

  /// `bytes` on `device`, uninitialised. Throws device where there is no memory; the message names
  /// the op (null: none) and `tensor`.
  static Ref<Storage> allocate(Device device, size_t bytes, const char* op, const Meta& tensor);
  static Ref<Storage> allocate(Device device, size_t bytes);
  /// The storage of a rank outside the mesh.
  static Ref<Storage> absent();
  /// A buffer of a dry world: `bytes` on `device` that `meter` counts while the storage exists. Its
  /// data() is null.
  static Ref<Storage> unallocated(Device device, size_t bytes, MemoryMeter& meter);
  /// A storage of `bytes` bytes that something else owns: they stay where they are, aligned at least to the
  /// elements, while the storage holds `owner`, which is not null. It is dropped with the bytes, in any thread.
  static Ref<Storage> adopt(Device device, void* data, size_t bytes, std::shared_ptr<void> owner);
  /// The storage of a tensor of which only shape and dtype are known.
  static Ref<Storage> shape_only(Device device);
  static void destroy(Storage* storage);

  State state() const { return state_; }
  Device device() const { return device_; }
  size_t bytes() const { return bytes_; }
  void* data() const { return data_; }
  /// True where data() points to elements (possibly 0 of them).
  bool has_data() const { return state_ < State::unallocated; }
  /// The meter of an unallocated storage, else null.
  MemoryMeter* meter() const { return meter_; }
  /// Frees the bytes: `this` becomes unallocated, because an op of a dry world has written it.
  void drop_data(MemoryMeter& meter);

  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void set_version(uint64_t version) { version_.store(version, std::memory_order_relaxed); }
  /// Counts one write by the op `writer` (a string that lives as long as the library).
  void bump(const char* writer);
  /// Null before the first write.
  const LastWrite* last_write() const { return last_write_.get(); }

  /// Throws stale_view or poisoned when the bytes must not be read. Waits for work that writes
  /// them, and rethrows its failure.
  void check_read() const {
    if (needs_checks()) check_read_slow();
  }
  /// False where every read and write is allowed, so that the checks need not be called.
  bool needs_checks() const { return hazards_ != nullptr || partially_failed(); }
  /// Waits for collectives that read or write the bytes.
  void wait_before_write() const {
    if (hazards_) wait_pending();
  }
  /// Throws view_of_copy, stale_view or poisoned when `op` must not write the bytes. Waits for
  /// work that reads or writes them.
  void check_write(const char* op) const {
    if (needs_checks()) check_write_slow(op);
  }
  /// As check_read, but refreshes a stale view where it can be resharded again.
  void refresh_if_stale();
  /// Writes bytes back into the source, through all storages in between.
  void write_back_to_source(const char* writer);

  void detach(Detachment detachment);
  /// Makes copies of this storage, itself a copy, copies of its source: those for which `follow`
  /// returns true. `follow` may change how their bytes are resharded; it must not drop the last
  /// reference to a storage. A copy that is stale stays stale.
  void reparent_copies(const std::function<bool(Detachment&)>& follow);
  /// Whether another storage, possibly one that no tensor refers to any more, has this one as its
  /// source.
  bool is_source() const { return holders_.load(std::memory_order_acquire) > 1; }
  /// Null unless detached.
  const Detachment* detachment() const;
  /// True when the source, or its source, was written after this copy was made.
  bool stale() const;
  /// The storage at the end of the chain of sources: itself unless detached.
  Storage& root();
  /// Calls f for its source, the source of that, and so on; not at all unless detached. f must not
  /// change the chain.
  void for_each_source(const std::function<void(Storage&)>& f);
  /// Called after the source was written from this storage: both count as in sync again.
  void mark_in_sync();

  /// Registers work in flight that uses the bytes. Work that writes them is waited for at the first
  /// read or write, work that only reads them at the first write; both before the bytes are freed.
  /// A storage has one such work at a time: an earlier one is waited for first.
  enum class Use : uint8_t { reads, writes };
  void set_pending(std::shared_ptr<Work> work, Use use);
  /// True until that work has been waited for.
  bool pending() const;

  /// A write failed halfway: every later read throws with this cause.
  void poison(std::exception_ptr cause, const char* op);
  /// The distributed call with this number wrote the bytes, and may have failed on another rank.
  /// Every read throws poisoned once `calls` knows that it, or a call before it, has failed.
  void mark_maybe_poisoned(const std::shared_ptr<PartialFailures>& calls, uint64_t call);

 private:
  friend class SourceRef;
  struct Hazards;

  explicit Storage(size_t block_bytes);
  ~Storage();
  static void free_block(Storage* storage);
  void check_read_slow() const;
  void check_write_slow(const char* op) const;
  [[noreturn]] void fail_stale() const;
  void check_poison() const;
  /// True where the distributed call that last wrote the bytes, or one before it, failed on another
  /// rank.
  bool partially_failed() const { return partial_failures_ && partial_failures_->invalidates(written_by_); }
  void wait_pending() const;
  void free_data();
  void free_bytes();
  /// Frees the bytes. The remainder lives as long as there are copies of them.
  void retire();
  void drop_holder();
  void link_to_source();
  void unlink_from_source();
  bool behind_source() const;
  void refresh_from_source();
  Hazards& hazards();

  State state_ = State::unallocated;
  std::atomic<uint32_t> holders_{1};  // references to this object: each SourceRef, and one for all Refs together
  uint32_t block_bytes_;              // of this object, with the bytes of a small tensor
  Device device_;
  std::atomic<uint64_t> version_{0};
  std::unique_ptr<LastWrite> last_write_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  MemoryMeter* meter_ = nullptr;
  Storage* first_copy_ = nullptr;     // of the storages that are detached from this one
  std::unique_ptr<Hazards> hazards_;  // only where there is something to check
  // Of the last in-place write by a distributed call. Not in `hazards_`, because most such tensors
  // have no other checks.
  std::shared_ptr<PartialFailures> partial_failures_;
  uint64_t written_by_ = 0;
  std::shared_ptr<void> owner_;  // of bytes that were adopted
};

}  // namespace shard
