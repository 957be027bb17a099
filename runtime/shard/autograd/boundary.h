// Separates the history that a scope records from the history before it, so that it can be
// differentiated on its own.
#pragma once

#include <unordered_set>
#include <vector>

#include "shard/autograd/node.h"
#include "shard/core/export.h"
#include "shard/core/thread_state.h"

namespace shard::autograd {

/// While one exists, the steps that this thread records end in gates instead of in leaves and
/// earlier steps. A gate passes its gradient on to the step that it represents. Boundaries nest:
/// the gates of an inner one represent gates of the outer one.
class SHARD_API Boundary {
 public:
  /// Whether the tensors that calls of the scope read are kept until take_reads().
  enum class Reads : uint8_t { ignored, kept };
  explicit Boundary(Reads reads = Reads::ignored);
  Boundary(const Boundary&) = delete;
  Boundary& operator=(const Boundary&) = delete;
  ~Boundary();

  /// The innermost one of this thread, or null.
  static Boundary* current() { return this_thread.boundary; }
  /// The edge that steps of the scope use instead of `edge`.
  OwnedEdge cross(OwnedEdge edge);
  /// The edges that were crossed, in the order of their first use, and the gate to each.
  const std::vector<OwnedEdge>& outside() const { return outside_; }
  const std::vector<OwnedEdge>& gates() const { return gates_; }

  /// `step` brings the history of a view up to date. It is outside if `from`, the step that it
  /// comes from, is outside, although it is recorded within the scope.
  void add_history(const Ref<GradNode>& step, const Node& from);

  /// A call of the scope reads these tensors, whether it is recorded or not.
  void note(const Tensor& read);
  void note(const std::vector<Tensor>& read) {
    for (const Tensor& each : read) note(each);
  }
  /// Reads of these tensors are not kept.
  void leave_out(const std::vector<Tensor>& tensors);
  /// The tensors from outside that the scope has read and not written. `results` are the remaining
  /// tensors that it has made. Its steps are freed before this call, so a buffer that something
  /// else refers to comes from outside.
  std::vector<SavedTensor> take_reads(const std::vector<Tensor>& results);

 private:
  bool is_inside(const Node& node) const;

  Boundary* const before_;
  const uint64_t start_;
  const Reads reads_;
  std::vector<OwnedEdge> outside_, gates_;
  std::vector<Ref<GradNode>> histories_;  // recorded in the scope, but outside
  std::vector<SavedTensor> read_;
  std::unordered_set<const Storage*> known_;  // of read_ and of the tensors that are left out
};

/// Called with the tensors that a public function reads.
template <class... Tensors>
void note_reads(const Tensors&... tensors) {
  if (Boundary* const boundary = Boundary::current()) [[unlikely]]
    (boundary->note(tensors), ...);
}

/// While one exists, this thread has no boundary: what it records is not part of a scope, as during
/// a capture.
class SHARD_API NoBoundary {
 public:
  NoBoundary();
  NoBoundary(const NoBoundary&) = delete;
  NoBoundary& operator=(const NoBoundary&) = delete;
  ~NoBoundary();

  /// While one exists, the boundary is in force again: histories from outside that are brought up
  /// to date belong to its scope.
  class Suspended {
   public:
    explicit Suspended(const NoBoundary& no_boundary);
    Suspended(const Suspended&) = delete;
    Suspended& operator=(const Suspended&) = delete;
    ~Suspended();

   private:
    Boundary* const before_;
  };

 private:
  Boundary* const before_;
};

}  // namespace shard::autograd
