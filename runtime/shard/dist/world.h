// Worlds of ranks and the state of each rank: its communicators, policies, generator and trace.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>

#include "shard/comm/communicator.h"
#include "shard/comm/options.h"
#include "shard/core/device.h"
#include "shard/core/partial_failures.h"
#include "shard/core/random.h"
#include "shard/core/ref.h"
#include "shard/core/storage.h"
#include "shard/core/thread_state.h"
#include "shard/dist/call_record.h"
#include "shard/dist/mesh.h"
#include "shard/dist/policies.h"

namespace shard {

class Rank;
class World;

/// State that a higher layer keeps per rank, such as the plan cache.
class SHARD_API RankExtension {
 public:
  virtual ~RankExtension() = default;
};

/// Counts what uses a rank, and may outlive it.
class RankUse final : public RefCounted {
 public:
  static void destroy(RankUse* use) { delete use; }
};

/// One rank of a world. Used by one thread at a time.
class SHARD_API Rank {
 public:
  int id() const { return id_; }
  World& world() const { return *world_; }
  /// The default device of the rank's program (WorldOptions::devices).
  Device device() const { return device_; }

  /// The communicator of the line of `mesh` along `axis` through this rank, or of the whole mesh.
  /// This rank is in the mesh.
  Communicator& communicator(const ProcessMesh* mesh, int axis);
  Communicator& communicator(const ProcessMesh* mesh);
  /// What this rank has sent along an axis of `mesh`, over the whole mesh (relayouts, broadcasts),
  /// and by all its communicators.
  CommStats stats(const ProcessMesh* mesh, int axis) const;
  CommStats stats(const ProcessMesh* mesh) const;
  CommStats stats() const;
  /// The groups whose communicators this rank has used: along an axis, or (axis -1) whole meshes.
  std::vector<std::pair<const ProcessMesh*, int>> groups() const;
  /// The collectives of this rank in flight.
  CommQueue& comm_queue() { return comm_queue_; }
  /// The distributed call of this rank with that number failed. If it succeeds on some ranks,
  /// these, and then all others, get peer_failed at their next collective. If it fails on every
  /// rank alike, nothing else happens.
  void call_failed(uint64_t call, const std::string& text);
  /// What the world knows of calls that failed on only some ranks.
  const std::shared_ptr<PartialFailures>& partial_failures() const;

  /// Each distributed tensor of this rank refers to it. So it tells whether any are alive, in any thread, when the world could be
  /// destroyed.
  const Ref<RankUse>& use() const { return use_; }

  Policies policies;
  Generator generator;        // of distributed calls: advances alike on all ranks
  Generator plain_generator;  // of calls on plain tensors
  TraceRing trace;
  bool trace_calls = false;  // record op calls too, not only collectives
  /// If set, it is called for every distributed call of the rank, and for every change of layout outside of one: by the program, of
  /// gradients, by item(), from one rank to the others. Not while a function is captured.
  CallObserver observer;
  std::unique_ptr<MemoryMeter> dry;  // only in a dry world: tensors are storage-less, and this counts them
  std::unique_ptr<RankExtension> extension;

 private:
  friend class World;
  Rank(World* world, int id, uint64_t seed, Device device)
      : generator(seed), plain_generator(seed), world_(world), id_(id), device_(device), comm_queue_(trace) {}
  Communicator& communicator(const ProcessMesh* mesh, int axis, const std::vector<int>& members);

  World* world_;
  int id_;
  Device device_;
  CommQueue comm_queue_;
  std::map<std::pair<const ProcessMesh*, int>, std::unique_ptr<Communicator>> communicators_;
  Ref<RankUse> use_ = Ref<RankUse>::adopt(new RankUse());
};

struct WorldOptions {
  std::chrono::milliseconds timeout = CommOptions{}.timeout;  // of one collective
  uint64_t seed = 0;                                          // of the world's generator
  /// The default devices of ranks 0, 1, ..., from the first again where there are fewer than ranks. Empty: process_devices().
  std::vector<Device> devices = {};
  bool debug_comm = CommOptions{}.debug;
  int64_t message_limit = CommOptions{}.message_limit;
};

/// A set of ranks that run the same program. Several worlds may exist in one process, which runs
/// all ranks of a world or some of them. Not copyable; ranks and the tensors made on them must not
/// outlive it.
class SHARD_API World {
 public:
  /// `size` ranks as threads of this process.
  static std::unique_ptr<World> local(int size, WorldOptions options = {});
  /// One rank of a world of `size` ranks, without data: tensors have layouts, versions and aliases
  /// but no bytes, kernels do not run, and collectives are counted but transfer nothing. A program
  /// behaves as on that rank of a real world, up to the first value that it reads (no_data). See
  /// docs/dry_runs.md.
  static std::unique_ptr<World> dry(int size, int rank, WorldOptions options = {});
  /// One rank in this process, and as many ranks as the MPI job has processes (1 without a job).
  /// Collective over the job. `run` returns when all processes have run the program. Throws
  /// communication in a build without MPI.
  static std::unique_ptr<World> mpi(WorldOptions options = {});
  /// The MPI world if mpirun or mpiexec started this process (according to the environment), else
  /// `size` local ranks.
  static std::unique_ptr<World> from_environment(int size, WorldOptions options = {});
  virtual ~World();

  /// The number of ranks, including those of other processes.
  int size() const { return size_; }
  /// The ranks that run in this process, in ascending order.
  const std::vector<int>& local_ranks() const { return local_ranks_; }
  /// The state of a rank, for reading traces and counters between runs. Throws wrong_rank for a
  /// rank that this process does not run.
  Rank& rank(int id) const;

  /// Runs `program` on every rank of this process and returns when all have ended, with no
  /// collective in flight. When a rank throws, the others fail with peer_failed at once. The first
  /// original error is rethrown here, and every later run throws peer_failed.
  virtual void run(const std::function<void(Rank&)>& program) = 0;
  /// Any thread may call this while ranks run. In a world whose ranks are threads of this process, collectives that wait, and all
  /// later ones, throw peer_failed with this text. Does nothing in other worlds.
  virtual void interrupt(const std::string& reason) { static_cast<void>(reason); }

 protected:
  /// `local_ranks` in ascending order.
  World(int size, std::vector<int> local_ranks, const WorldOptions& options,
        std::shared_ptr<PartialFailures> failures = std::make_shared<PartialFailures>());
  /// Runs `program` as `rank` on this thread, and completes the collectives that it leaves in
  /// flight.
  static void run_as(Rank& rank, const std::function<void(Rank&)>& program);
  /// The communicator of `rank` in the group `members` (world ranks), where it has the position
  /// `position`.
  virtual std::unique_ptr<Communicator> connect(const std::vector<int>& members, int position, Rank& rank) = 0;
  /// See Rank::call_failed. A world of one rank has no other rank to inform.
  virtual void call_failed(Rank&, uint64_t, const std::string&) {}
  const std::shared_ptr<PartialFailures>& partial_failures() const { return partial_failures_; }

 private:
  friend class Rank;

  int size_;
  std::shared_ptr<PartialFailures> partial_failures_;  // buffers that were written may outlive the world
  std::vector<int> local_ranks_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // of local_ranks_
};

/// The rank whose program this thread runs. Throws wrong_rank outside of World::run. For the public
/// API only: lower layers get a Rank as an argument.
SHARD_API Rank& current_rank();
/// The same, or null.
inline Rank* current_rank_or_null() { return this_thread.rank; }

/// From here on this thread runs the program of `rank`, or of none if null. Returns the one before.
SHARD_API Rank* set_current_rank(Rank* rank);

/// Changes policies of a rank for a scope.
class PolicyScope {
 public:
  PolicyScope(Rank& rank, Policies policies) : rank_(rank), saved_(rank.policies) { rank.policies = policies; }
  PolicyScope(const PolicyScope&) = delete;
  PolicyScope& operator=(const PolicyScope&) = delete;
  ~PolicyScope() { rank_.policies = saved_; }

 private:
  Rank& rank_;
  Policies saved_;
};

}  // namespace shard
