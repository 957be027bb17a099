// State that all MPI operations of a process share: the communicators of MPI, messages about
// failures, and waiting.
#pragma once

#include <mpi.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shard/comm/failed_calls.h"
#include "shard/comm/mpi.h"
#include "shard/comm/rank_devices.h"

namespace shard {

/// Throws communication when `code` is not MPI_SUCCESS.
void check_mpi(int code, const char* what);

/// The hub, as operations use it.
class MpiChannel final : public MpiHub {
 public:
  MpiChannel(const CommOptions& options, std::shared_ptr<PartialFailures> failures);
  ~MpiChannel() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void set_device(Device device) override;
  std::unique_ptr<Communicator> communicator(const std::vector<int>& members, int rank, CommQueue& queue) override;
  void rank_failed(const std::string& reason) noexcept override { devices_.give_up(reason); }
  void call_failed(uint64_t call, const std::string& text) noexcept override;
  const std::string& failure() const override { return failure_; }
  void finish_devices() override { devices_.finish(); }
  void meet(uint64_t calls) override;

  /// This rank starts a collective after so many calls. Throws peer_failed where one of them failed
  /// on another rank.
  void report_calls_done(uint64_t calls);

  MPI_Comm data() const { return data_; }
  MPI_Comm notes() const { return notes_; }
  const CommOptions& options() const { return options_; }
  /// A tag for this hash and phase (0 to 3).
  int tag(uint64_t hash, int phase) const;
  /// Throws peer_failed once the world has failed.
  void check_alive() const;
  /// Polls `done` until it is true; false when the timeout has passed (never when it is 0). Throws
  /// peer_failed when another rank fails meanwhile; operations in flight first get a little time to
  /// finish.
  bool wait(const std::function<bool()>& done, std::chrono::milliseconds timeout);
  /// Those of `ranks` that have ended their programs, so long before now that what they sent before must have come to this rank, which has
  /// waited since the time `begin`.
  std::vector<int> ended_of(const std::vector<int>& ranks, int64_t begin) const;
  bool has_ended_ranks() const { return !ended_.empty(); }
  /// For a rank that waits for devices: handles messages from other ranks, and throws peer_failed when one has failed.
  void check_peers();
  /// Calls WaitHooks::poll, about ten times a second.
  void poll_hooks();

  /// Where the devices of a group's members exchange data by themselves: the id of their group, which member 0 makes. Null where members
  /// share a device or have one that does not exchange data, and for another device than this rank's.
  std::string* device_group_id(const std::vector<int>& members, Device device);
  RankDevices& devices() { return devices_; }

  /// Whether MPI sends and receives memory of this device.
  bool takes_memory_of(Device device) const;

  /// Sets the answer to other ranks' question where this rank is.
  void set_rank_status(std::function<std::string()> describe) { rank_status_ = std::move(describe); }
  /// Memory of at least `bytes` for an operation in flight; returned for the next one.
  std::vector<char> take_scratch(size_t bytes);
  void give_scratch(std::vector<char> scratch) { scratch_.push_back(std::move(scratch)); }
  /// Asks `ranks` where they are: "; rank 1 is at ...", for those that answer within a moment.
  std::string ask_rank_status(const std::vector<int>& ranks);

 private:
  enum ControlTag : int { kFailure, kPartialFailure, kCallFailed, kQuestion, kAnswer, kEnded };
  struct Outgoing {
    std::string text;
    MPI_Request request;
  };
  /// That a rank has ended its program.
  struct End {
    uint64_t meeting;  // the rank waits for the others there
    int64_t time;      // at which this rank learned of it
  };

  void send_control(int to, int tag, const std::string& text);
  /// Sends `message` with `tag` to all other ranks, unless this world has failed already.
  void fail(ControlTag tag, const std::string& reason, const std::string& message) noexcept;
  void fail_on_partial_failure();
  /// Whether all control messages have left this process, and those about failures have been received.
  bool all_sent();
  /// Handles one message from another rank, and returns false if there is none. A failure is only
  /// recorded.
  bool poll_control();
  void poll_all_control() {
    while (poll_control()) {}
  }
  /// Polls until `done` returns true, or the time has passed.
  bool poll_until(const std::function<bool()>& done, int64_t timeout_ns);

  CommOptions options_;
  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm notes_ = MPI_COMM_NULL;    // what members are about to do
  MPI_Comm control_ = MPI_COMM_NULL;  // failures and questions
  int rank_ = 0;
  int size_ = 0;
  int tag_limit_ = 0;
  bool takes_cuda_memory_ = false;
  Device device_ = kCpu;
  std::vector<std::string> device_ids_;  // of each rank's device in the job; empty where it does not exchange data
  std::map<std::vector<int>, std::string> device_group_ids_;  // by members
  int64_t next_hook_ = 0;                                     // the time from which poll_hooks() calls it
  std::string failure_;
  std::shared_ptr<PartialFailures> partial_failures_;
  FailedCalls failed_calls_;
  uint64_t calls_done_ = 0;  // when the last collective was started
  uint64_t meetings_ = 0;    // that have ended
  std::map<int, End> ended_;
  std::list<Outgoing> outgoing_;
  std::function<std::string()> rank_status_;
  std::vector<std::string> answers_;
  std::vector<std::vector<char>> scratch_;
  RankDevices devices_;
};

}  // namespace shard
