// Steps that run at the same time.
#pragma once

#include <exception>
#include <utility>
#include <vector>

#include "call/binder.h"

namespace shard::program {

/// Lines of steps that need nothing of each other. All run, also where one throws; then the error of the first that has is thrown.
class TogetherStep final : public call::BoundStep {
 public:
  struct Line {
    std::vector<call::BoundStep*> steps;
    std::pair<size_t, size_t> ops;  // the first and the last that it runs
    std::exception_ptr error = {};
  };
  explicit TogetherStep(std::vector<Line> lines) : lines_(std::move(lines)) {}
  void run() override;
  /// After run() has thrown, those with an error failed.
  const std::vector<Line>& lines() const { return lines_; }

 private:
  std::vector<Line> lines_;
};

}  // namespace shard::program
