// The dry world: one rank of a world of any size, without data. call/dry_report.h reports what it
// has done.
#include <fmt/format.h>

#include <exception>
#include <thread>

#include "shard/dist/world.h"

namespace shard {
namespace {

/// Counts collectives and transfers nothing, because buffers have no bytes.
class DryCommunicator final : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  std::unique_ptr<Operation> do_start(Collective) override { return nullptr; }
  bool takes(Device) const override { return true; }
};

std::thread start_thread(const std::function<void()>& body) {
  try {
    return std::thread(body);
  } catch (const std::exception& error) {
    fail(ErrorCode::device,
         "World::run could not start its thread ({}); let other threads end, or raise the limits of this process on "
         "threads and memory",
         error.what());
  }
}

class DryWorld final : public World {
 public:
  DryWorld(int size, int rank, const WorldOptions& options) : World(size, {rank}, options), id_(rank) {
    if (rank < 0 || rank >= size)
      fail(ErrorCode::invalid_argument, "a world of {} ranks has no rank {}; its ranks are 0 to {}", size, rank,
           size - 1);
    this->rank(rank).dry = std::make_unique<MemoryMeter>();
  }

  void run(const std::function<void(Rank&)>& program) override {
    if (failed_) fail(ErrorCode::peer_failed, "this dry world has failed before and cannot run again");
    std::exception_ptr error;
    // Runs on a thread of its own, as in every world, because the caller may be a rank of another
    // world.
    start_thread([&] {
      try {
        run_as(rank(id_), program);
      } catch (...) { error = std::current_exception(); }
    }).join();
    failed_ = error != nullptr;
    if (error) std::rethrow_exception(error);
  }

 protected:
  std::unique_ptr<Communicator> connect(const std::vector<int>& members, int position, Rank& rank) override {
    return std::make_unique<DryCommunicator>(members, position, rank.comm_queue());
  }

 private:
  int id_;
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<World> World::dry(int size, int rank, WorldOptions options) {
  return std::make_unique<DryWorld>(size, rank, options);
}

}  // namespace shard
