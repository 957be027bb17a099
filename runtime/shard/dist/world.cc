#include "shard/dist/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "shard/comm/local.h"
#include "shard/comm/mpi.h"
#include "shard/core/launcher.h"
#include "shard/core/left_storages.h"
#include "shard/core/own_streams.h"
#include "shard/core/waiting.h"

namespace shard {
namespace {

constexpr int kWholeMesh = -1;

bool is_peer_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) { return e.code() == ErrorCode::peer_failed; } catch (...) {
    return false;
  }
}

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(std::max(size, 0)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Ends the collectives that a failed program left in flight. Tensors may outlive the world, but not these.
void abandon_collectives(Rank& rank) {
  try {
    rank.comm_queue().finish();
  } catch (...) {  // the world has failed already
  }
}

class LocalWorld final : public World {
 public:
  LocalWorld(int size, const WorldOptions& options)
      : World(size, first_ranks(size), options), hub_(options.timeout, size, partial_failures()) {}

  void run(const std::function<void(Rank&)>& program) override {
    if (!errors_.empty())
      fail(ErrorCode::peer_failed, "this world has failed before and cannot run again: {}", text_of(cause()));
    // Ranks may read what this thread has issued to their devices.
    for (const int id : local_ranks()) {
      const Device device = rank(id).device();
      backend_of(device).synchronize(device.index);
    }
    start_threads(program);
    if (errors_.empty() &&
        !hub_.failure().empty()) {  // of a call that failed on some ranks, whose programs have caught the error
      errors_.push_back(std::make_exception_ptr(Error(ErrorCode::peer_failed, hub_.failure())));
    }
    if (!errors_.empty()) std::rethrow_exception(cause());
  }
  void interrupt(const std::string& reason) override { hub_.fail(reason); }

 protected:
  std::unique_ptr<Communicator> connect(const std::vector<int>& members, int position, Rank& rank) override {
    return hub_.communicator(members, position, rank.comm_queue());
  }
  void call_failed(Rank& rank, uint64_t call, const std::string& text) override {
    hub_.call_failed(rank.id(), call, text);
  }

 private:
  enum Start : int { waiting, started, cancelled };

  /// Runs the program on a thread for each rank. No rank begins before all threads exist. So a run
  /// that cannot create them has done nothing, and the world can be used again.
  void start_threads(const std::function<void(Rank&)>& program) {
    std::atomic<Start> start{waiting};
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(size()));
    const auto end_all = [&](Start how) {
      start = how;
      start.notify_all();
      for (std::thread& thread : threads) thread.join();
    };
    for (int i = 0; i < size(); ++i) {
      try {
        threads.emplace_back([this, i, &program, &start] {
          start.wait(waiting);
          if (start == started) run_rank(rank(i), program);
        });
      } catch (const std::exception& error) {  // system_error, or bad_alloc
        end_all(cancelled);
        fail(ErrorCode::device,
             "World::run could not start the thread of rank {} of {} ({}); no rank has run. Use fewer ranks, let other "
             "threads end, or raise the limits "
             "of this process on threads and memory (ulimit -u, ulimit -v)",
             i, size(), error.what());
      }
    }
    end_all(started);
  }

  void run_rank(Rank& rank, const std::function<void(Rank&)>& program) {
    has_own_streams = true;  // until the thread ends
    const LeftStorages left(&rank);
    try {
      run_as(rank, program);
      hub_.finish_devices(rank.id());
      hub_.report_calls_done(rank.id(), rank.comm_queue().calls_done());
    } catch (...) {
      record(rank, std::current_exception());
      abandon_collectives(rank);
    }
  }

  void record(const Rank& rank, std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      errors_.push_back(error);
    }
    hub_.rank_failed(rank.id(), text_of(error));
  }

  /// The first error. A rank that fails because another one failed is not the cause; its error is
  /// used only when there is no other.
  std::exception_ptr cause() const {
    const auto original = std::find_if_not(errors_.begin(), errors_.end(), is_peer_failure);
    return original == errors_.end() ? errors_.front() : *original;
  }

  LocalHub hub_;
  std::mutex mutex_;
  // of all ranks, in the order in which they failed; a rank's thread never frees the error of
  // another one
  std::vector<std::exception_ptr> errors_;
};

class MpiWorld final : public World {
 public:
  MpiWorld(std::unique_ptr<MpiHub> hub, std::shared_ptr<PartialFailures> failures, const WorldOptions& options)
      : World(hub->size(), {hub->rank()}, options, std::move(failures)), hub_(std::move(hub)) {
    hub_->set_device(rank(hub_->rank()).device());
  }

  void run(const std::function<void(Rank&)>& program) override {
    if (!hub_->failure().empty()) {
      hub_->rank_failed(hub_->failure());  // devices may still wait for those of other ranks
      fail(ErrorCode::peer_failed, "this world has failed before and cannot run again: {}", hub_->failure());
    }
    Rank& mine = rank(hub_->rank());
    const LeftStorages left(&mine);
    try {
      run_as(mine, program);
      hub_->finish_devices();
      hub_->meet(mine.comm_queue().calls_done());
    } catch (...) {
      hub_->rank_failed(text_of(std::current_exception()));
      abandon_collectives(mine);
      throw;
    }
  }

 protected:
  std::unique_ptr<Communicator> connect(const std::vector<int>& members, int position, Rank& rank) override {
    return hub_->communicator(members, position, rank.comm_queue());
  }
  void call_failed(Rank&, uint64_t call, const std::string& text) override { hub_->call_failed(call, text); }

 private:
  std::unique_ptr<MpiHub> hub_;
};

CommOptions comm_options(const WorldOptions& options) {
  const char* debug = std::getenv("SHARD_DEBUG_COMM");
  return {.timeout = options.timeout,
          .debug = options.debug_comm || (debug != nullptr && std::string_view(debug) == "1"),
          .message_limit = options.message_limit};
}

}  // namespace

Communicator& Rank::communicator(const ProcessMesh* mesh, int axis) {
  const auto found = communicators_.find({mesh, axis});
  if (found != communicators_.end()) return *found->second;
  return communicator(mesh, axis, mesh->line(*mesh->coordinate(id_), axis));
}

Communicator& Rank::communicator(const ProcessMesh* mesh) {
  const auto found = communicators_.find({mesh, kWholeMesh});
  if (found != communicators_.end()) return *found->second;
  return communicator(mesh, kWholeMesh, mesh->processes());
}

Communicator& Rank::communicator(const ProcessMesh* mesh, int axis, const std::vector<int>& members) {
  int position = 0;
  while (members[static_cast<size_t>(position)] != id_) ++position;
  return *communicators_.emplace(std::pair(mesh, axis), world_->connect(members, position, *this)).first->second;
}

CommStats Rank::stats(const ProcessMesh* mesh, int axis) const {
  const auto found = communicators_.find({mesh, axis});
  return found == communicators_.end() ? CommStats() : found->second->stats();
}

CommStats Rank::stats(const ProcessMesh* mesh) const { return stats(mesh, kWholeMesh); }

std::vector<std::pair<const ProcessMesh*, int>> Rank::groups() const {
  std::vector<std::pair<const ProcessMesh*, int>> all;
  for (const auto& [key, communicator] : communicators_) all.push_back(key);
  return all;
}

void Rank::call_failed(uint64_t call, const std::string& text) { world_->call_failed(*this, call, text); }

const std::shared_ptr<PartialFailures>& Rank::partial_failures() const { return world_->partial_failures(); }

CommStats Rank::stats() const {
  CommStats total;
  for (const auto& [key, communicator] : communicators_) total += communicator->stats();
  return total;
}

World::World(int size, std::vector<int> local_ranks, const WorldOptions& options,
             std::shared_ptr<PartialFailures> failures)
    : size_(size), partial_failures_(std::move(failures)), local_ranks_(std::move(local_ranks)) {
  if (size < 1) fail(ErrorCode::invalid_argument, "a world needs at least one rank, not {}", size);
  const std::vector<Device>& devices = options.devices.empty() ? process_devices() : options.devices;
  for (const int id : local_ranks_)
    ranks_.emplace_back(new Rank(this, id, options.seed, devices[static_cast<size_t>(id) % devices.size()]));
}

Rank& World::rank(int id) const {
  const auto found = std::lower_bound(local_ranks_.begin(), local_ranks_.end(), id);
  if (found == local_ranks_.end() || *found != id) {
    fail(ErrorCode::wrong_rank, "rank {} of {} does not run in this process, which has ranks {}", id, size_,
         fmt::join(local_ranks_, ", "));
  }
  return *ranks_[static_cast<size_t>(found - local_ranks_.begin())];
}

void World::run_as(Rank& rank, const std::function<void(Rank&)>& program) {
  std::optional<DryLauncher> dry;
  if (rank.dry) dry.emplace(*rank.dry);
  const DefaultDevice device(rank.device());
  struct Current {
    Current(Rank* rank, Launcher* launcher)
        : rank(set_current_rank(rank)), launcher(std::exchange(this_thread.launcher, launcher)),
          watch(std::exchange(device_watch(), nullptr)) {}
    Current(const Current&) = delete;
    ~Current() {
      set_current_rank(rank);
      this_thread.launcher = launcher;
      device_watch() = watch;
    }
    Rank* const rank;
    Launcher* const launcher;
    DeviceWatch* const watch;
  } current(&rank, dry ? &*dry : nullptr);
  program(rank);
  rank.comm_queue().finish();
}

World::~World() = default;

std::unique_ptr<World> World::local(int size, WorldOptions options) {
  return std::make_unique<LocalWorld>(size, options);
}

std::unique_ptr<World> World::mpi(WorldOptions options) {
  auto failures = std::make_shared<PartialFailures>();
  return std::make_unique<MpiWorld>(MpiHub::make(comm_options(options), failures), failures, options);
}

std::unique_ptr<World> World::from_environment(int size, WorldOptions options) {
  return mpi_job_size() > 0 ? mpi(options) : local(size, options);
}

Rank& current_rank() {
  if (this_thread.rank == nullptr) {
    fail(ErrorCode::wrong_rank,
         "a distributed tensor can be used only by the ranks of a world; call this inside World::run");
  }
  return *this_thread.rank;
}

Rank* set_current_rank(Rank* rank) {
  this_thread.algorithms = rank == nullptr ? nullptr : &rank->policies.algorithms;
  return std::exchange(this_thread.rank, rank);
}

}  // namespace shard
