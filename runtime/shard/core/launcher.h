// What happens to the kernels and copies of a call. A context without a launcher runs them at once;
// with one, it hands them to the launcher.
#pragma once

#include "shard/core/dense_tensor.h"

namespace shard {

namespace call {
class Binder;
}

/// A kernel with the arguments of one call (call/launch.h).
class Launch {
 public:
  /// Runs the dry kernel, if there is one.
  virtual void run_dry() const = 0;
  /// Adds a step that runs the kernel later.
  virtual void keep(call::Binder& binder) const = 0;

 protected:
  ~Launch() = default;
};

/// Takes the kernels and copies of calls whose tensors are storage-less.
class Launcher {
 public:
  explicit Launcher(MemoryMeter& meter) : meter(meter) {}
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  virtual ~Launcher() = default;

  virtual void launch(const Launch& launch) = 0;
  virtual void copy(const DenseTensor& to, const DenseTensor& from) = 0;
  /// False if random ops get their keys only when their kernels run.
  virtual bool draws() const { return true; }

  MemoryMeter& meter;  // counts the tensors that the calls make
};

/// The launcher of dry worlds and captures: kernels do not run. Only dry kernels do, which count
/// what the real ones send.
class DryLauncher final : public Launcher {
 public:
  using Launcher::Launcher;
  void launch(const Launch& launch) override { launch.run_dry(); }
  void copy(const DenseTensor&, const DenseTensor&) override {}
};

}  // namespace shard
