// Keeps what a scope records apart from what was recorded before it, so that it can be gone through backwards on its own.
#pragma once

#include <vector>

#include "autograd/node.h"

namespace shard::autograd {

/// While one lives, the steps that this thread records end in gates instead of in leaves and in steps of before. A gate hands the
/// gradient that it gets on to what it stands for. Boundaries nest: the gates of an inner one stand for gates of the outer.
class Boundary {
 public:
  Boundary();
  Boundary(const Boundary&) = delete;
  Boundary& operator=(const Boundary&) = delete;
  ~Boundary();

  /// Of this thread, or null.
  static Boundary* current();
  /// What steps of the scope use instead of `edge`.
  OwnedEdge cross(OwnedEdge edge);
  /// What has been crossed to, in the order of the first time, and the gate to each.
  const std::vector<OwnedEdge>& outside() const { return outside_; }
  const std::vector<OwnedEdge>& gates() const { return gates_; }

 private:
  Boundary* const before_;
  const uint64_t start_;
  std::vector<OwnedEdge> outside_, gates_;
};

/// While one lives, this thread has no boundary: what it records is no part of a scope, as while a function is captured.
class NoBoundary {
 public:
  NoBoundary();
  NoBoundary(const NoBoundary&) = delete;
  NoBoundary& operator=(const NoBoundary&) = delete;
  ~NoBoundary();

 private:
  Boundary* const before_;
};

}  // namespace shard::autograd
