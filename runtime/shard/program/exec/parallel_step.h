// Steps that run in parallel.
#pragma once

#include <exception>
#include <utility>
#include <vector>

#include "shard/call/binder.h"

namespace shard::program {

/// Lines of steps that are independent of each other. All lines run even if one throws. Then the
/// error of the first line that threw is thrown.
class ParallelStep final : public call::BoundStep {
 public:
  struct Line {
    std::vector<call::BoundStep*> steps;
    std::pair<size_t, size_t> ops;  // the first and the last op that it runs
    std::exception_ptr error = {};
  };
  explicit ParallelStep(std::vector<Line> lines) : lines_(std::move(lines)) {}
  void run() override;
  /// Call this after run() has thrown: the lines that have an error failed.
  const std::vector<Line>& lines() const { return lines_; }

 private:
  std::vector<Line> lines_;
};

}  // namespace shard::program
