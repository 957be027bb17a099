// Runs of Python functions as the ranks of a world.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "services.h"

namespace shard::python {

/// One run of a world. Its threads share it with the caller.
class Run {
 public:
  /// The function takes no arguments.
  Run(std::shared_ptr<World> world, nb::object function);
  Run(const Run&) = delete;

  /// Runs the function on all ranks of this process and returns their results in a list. Raises the first exception of a rank. With
  /// `threads` the ranks are threads of their own, and signals are handled meanwhile. Called with the interpreter's lock.
  static nb::object execute(const std::shared_ptr<Run>& run, bool threads);
  /// Ends all runs, because the interpreter is about to end: a thread that came back to Python after that would end the process.
  static void end_all();
  /// In a process made by fork, which has one thread only: that runs no rank, and no run goes on.
  static void forget_all();

 private:
  void run_world();
  void program(Rank& rank);
  nb::object call(const Rank& rank);
  [[noreturn]] void fail_rank(const Rank& rank, nb::python_error& error);
  bool done_within(int milliseconds);
  void wait(std::thread& thread, const std::shared_ptr<Run>& run);
  [[noreturn]] void stop(std::thread& thread, const std::shared_ptr<Run>& run);
  /// Raises `type` in the threads of this run and of the runs that these wait for.
  void interrupt(PyObject* type);
  nb::object outcome();

  const std::shared_ptr<World> world_;
  const SharedObject function_;
  const SharedObject results_;  // a list
  const unsigned long caller_;  // the thread, as Python knows it
  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::vector<unsigned long> threads_;   // that run the function now
  std::optional<SharedObject> failure_;  // the first exception of a rank
  std::exception_ptr error_;             // what the world threw
};

/// Adds a world to those that live as long as their tensors.
void keep_world(std::shared_ptr<World> world);
/// Destroys worlds that have ended and of which no tensor is left. Called with the interpreter's lock.
void drop_worlds();
/// The world that ran last, or null.
std::shared_ptr<World> last_world();

}  // namespace shard::python
