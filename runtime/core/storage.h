// A buffer that tensors share: its bytes, its version, and whether it has parted from the buffer it is a view of.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/call_site.h"
#include "core/device.h"
#include "core/ref.h"
#include "core/work.h"

namespace shard {

class Storage;
class TornCalls;
struct Meta;

/// The view ops between a tensor and the one that it is a view of.
struct ViewChain {
  uint8_t count = 0;
  std::array<const char*, 3> ops{};  // the last of them, the newest first

  /// "reshape of slice"; empty for a tensor that is no view.
  std::string text() const;
};

/// The last write to a buffer.
struct LastWrite {
  const char* op = nullptr;  // lives as long as the library
  CallSite site;             // where the program called it
  ViewChain views;           // from the tensor that was written to the one that it is a view of

  /// "[relu_] at train.cc:41 through a view by slice"; "an op" for null.
  static std::string text(const LastWrite* write);
};

/// Throws device: there is no memory for `meta` on `device`. Names the op (null: none), the bytes that were asked for and those that tensors
/// hold there, and what to do. `cause` is what the backend says.
[[noreturn]] void fail_no_memory(const char* op, const Meta& meta, Device device, std::string_view cause);

/// Counts the bytes of buffers that are only planned: those of one rank of a dry world.
struct MemoryMeter {
  int64_t live = 0;
  int64_t peak = 0;
  void add(int64_t bytes) {
    live += bytes;
    peak = live > peak ? live : peak;
  }
};

/// The source of a stale copy. It keeps the version and the last writer of the source, but not its bytes: those are freed with the last
/// Ref.
class SourceRef {
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

/// Why and from what a storage is detached: it holds a moved copy of `source`, taken at `source_version`. When nothing but copies refers to
/// a source that is itself a copy, they become copies of its source, so that chains are as short as what tensors can see of them. Copies
/// that are kept in step (call/view_link.h) become that at once.
struct Detachment {
  SourceRef source;
  uint64_t source_version = 0;
  std::string op;        // the call that made the view
  std::string argument;  // its input that had to move
  std::string from;      // the layouts before and after
  std::string to;
  /// Moves the bytes again from the source, or back into it (ViewPolicy::sync). Empty where there is no way back.
  std::function<void()> refresh;
  std::function<void()> write_back;
  SourceRef origin = {};  // the source at the split; set by Storage::detach unless given
};

/// A reference-counted buffer. It exists on every rank of a program, also where it holds no bytes. The version counter
/// lives here, so every alias sees every write. One rank (thread) writes a storage; reading versions is thread safe.
class Storage final : public RefCounted {
 public:
  enum class State : uint8_t {
    held,         // this rank has the bytes (maybe 0 of them)
    absent,       // this rank is not in the mesh
    unallocated,  // on a rank of a dry world: all but the bytes is there
    shape_only    // stands for a buffer of which only shape and dtype were kept
  };

  /// `bytes` on `device`, not initialised. Throws device where there is no memory; the message names the op (null: none) and the tensor that it is for.
  static Ref<Storage> allocate(Device device, size_t bytes, const char* op, const Meta& tensor);
  static Ref<Storage> allocate(Device device, size_t bytes);
  /// The storage of a rank outside the mesh.
  static Ref<Storage> absent();
  /// A buffer of a dry world: `bytes` on `device` that `meter` counts while the storage lives. Its data() is null.
  static Ref<Storage> unallocated(Device device, size_t bytes, MemoryMeter& meter);
  /// Of a tensor whose shape and dtype are all that is known.
  static Ref<Storage> shape_only(Device device);
  static void destroy(Storage* storage);

  State state() const { return state_; }
  Device device() const { return device_; }
  size_t bytes() const { return bytes_; }
  void* data() const { return data_; }
  /// True where reading data() would find elements (maybe 0 of them).
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

  /// Throws stale_view or poisoned when the bytes must not be read. Waits for work that writes them, and throws what that fails with.
  void check_read() const {
    if (trouble_) check_read_slow();
  }
  /// False where every read and write is allowed: then the checks need not be called.
  bool needs_checks() const { return trouble_ != nullptr; }
  /// Throws detached_view, stale_view or poisoned when `op` must not write the bytes. Waits for work that reads or writes them.
  /// Waits for collectives that use the bytes.
  void wait_before_write() const {
    if (trouble_) wait_pending();
  }
  void check_write(const char* op) const {
    if (trouble_) check_write_slow(op);
  }
  /// As check_read, but brings a stale view up to date where it can be moved again.
  void refresh_if_stale();
  /// Moves written bytes back into the source, through all storages between.
  void write_back_to_source(const char* writer);

  void detach(Detachment detachment);
  /// Makes copies of this storage, itself a copy, copies of its source: those for which `follow` is true, which may change how their bytes
  /// are moved. One that is stale stays so. `follow` must not drop the last reference to a storage.
  void hand_copies_over(const std::function<bool(Detachment&)>& follow);
  /// Whether another storage, maybe one that no tensor refers to any more, knows this one as its source.
  bool is_source() const { return holders_.load(std::memory_order_acquire) > 1; }
  /// Null unless detached.
  const Detachment* detachment() const;
  /// True when the source, or its source, was written after this copy was taken.
  bool stale() const;
  /// The storage at the end of the chain of sources: itself unless detached.
  Storage& root();
  /// After the source was written from this storage: both count as in step again.
  void mark_in_step();

  /// Work under way uses the bytes. One that writes them is waited for at the first read or write, one that only reads them at the
  /// first write; both before the bytes are freed. A storage has one such work at a time: an earlier one is waited for first.
  enum class Use : uint8_t { reads, writes };
  void set_pending(std::shared_ptr<Work> work, Use use);
  /// True until that work has been waited for.
  bool pending() const;

  /// A write failed half way: every later read throws with this cause.
  void poison(std::exception_ptr cause, const char* op);
  /// The distributed call with this number wrote the bytes, and may have failed on another rank. Every read throws poisoned once `calls`
  /// knows that it has, or that a call before it has.
  void doubt(const std::shared_ptr<TornCalls>& calls, uint64_t call);

 private:
  friend class SourceRef;
  struct Trouble;

  Storage() = default;
  ~Storage();
  void check_read_slow() const;
  void check_write_slow(const char* op) const;
  [[noreturn]] void fail_stale() const;
  void check_poison() const;
  void wait_pending() const;
  void free_data();
  void free_bytes();
  /// Frees the bytes. What is left lives as long as there are copies of them.
  void retire();
  void drop_holder();
  void link_to_source();
  void unlink_from_source();
  bool behind_source() const;
  void refresh_from_source();
  Trouble& trouble();

  State state_ = State::unallocated;
  std::atomic<uint32_t> holders_{1};  // of this object: each SourceRef, and one for all Refs together
  Device device_;
  std::atomic<uint64_t> version_{0};
  std::unique_ptr<LastWrite> last_write_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  MemoryMeter* meter_ = nullptr;
  Storage* first_copy_ = nullptr;     // of the storages that are detached from this one
  std::unique_ptr<Trouble> trouble_;  // only where something is to be checked
};

}  // namespace shard
