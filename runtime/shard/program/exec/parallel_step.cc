#include "shard/program/exec/parallel_step.h"

#include "shard/kernels/cpu/parallel.h"

namespace shard::program {

void ParallelStep::run() {
  cpu::run_each(static_cast<int64_t>(lines_.size()), [this](int64_t i) {
    Line& line = lines_[static_cast<size_t>(i)];
    line.error = nullptr;
    try {
      for (call::BoundStep* const step : line.steps) step->run();
    } catch (...) { line.error = std::current_exception(); }
  });
  for (const Line& line : lines_) {
    if (line.error) std::rethrow_exception(line.error);
  }
}

}  // namespace shard::program
