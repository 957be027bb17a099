// The MPI transport: one rank of a world in each process of an MPI job. A build without MPI has
// mpi_stub.cc instead.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shard/comm/communicator.h"
#include "shard/comm/options.h"
#include "shard/core/partial_failures.h"

namespace shard {

/// This process's part of a world over all processes of an MPI job. Used by one thread.
class MpiHub {
 public:
  /// Collective over the job. Initialises MPI unless that is already done, and then finalises it
  /// when the process exits, unless a world has failed. Throws communication where MPI fails, or in
  /// a build without MPI. `failures` receives the first call that failed on only some ranks.
  static std::unique_ptr<MpiHub> make(const CommOptions& options, std::shared_ptr<PartialFailures> failures);
  virtual ~MpiHub() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Tells the other processes which device is the default of this one's rank, before the first communicator is made: groups whose
  /// members have a device each exchange data between these. Collective over the job.
  virtual void set_device(Device device) = 0;
  /// The communicator of this process, members[rank], in the group `members`. Does not communicate.
  virtual std::unique_ptr<Communicator> communicator(const std::vector<int>& members, int rank, CommQueue& queue) = 0;
  /// This rank failed for this reason: every waiting and every later collective of all processes throws peer_failed. The first call counts.
  virtual void rank_failed(const std::string& reason) noexcept = 0;
  /// This rank failed in its distributed call number `call`. A rank that has completed that call
  /// makes the world fail when it learns of this.
  virtual void call_failed(uint64_t call, const std::string& text) noexcept = 0;
  /// Why this world has failed; empty unless it has.
  virtual const std::string& failure() const = 0;
  /// Returns when this rank's devices have ended what they do with those of others. Throws timeout, peer_failed or device.
  virtual void finish_devices() = 0;
  /// Returns when all processes have called it, this one after `calls` distributed calls. Throws
  /// peer_failed when one fails before.
  virtual void meet(uint64_t calls) = 0;
};

/// The number of processes of the MPI job in which this process was started, from the environment;
/// 0 without a job.
int mpi_job_size();

}  // namespace shard
