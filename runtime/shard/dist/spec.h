// Layouts: which mesh axes shard which dims of a tensor, and on which axes its value is a pending
// reduction.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/op_context.h"
#include "shard/core/reduce_type.h"
#include "shard/dist/mesh.h"

namespace shard {

/// The mesh axes that shard one dim, in order: the first splits the dim, the next splits each part.
class AxisList {
 public:
  AxisList() = default;
  AxisList(std::initializer_list<int> axes) {
    for (int axis : axes) push_back(axis);
  }
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int operator[](int i) const { return axes_[static_cast<size_t>(i)]; }
  int back() const { return axes_[static_cast<size_t>(size_ - 1)]; }
  void push_back(int axis) { axes_[static_cast<size_t>(size_++)] = static_cast<int8_t>(axis); }
  void pop_back() { --size_; }
  bool contains(int axis) const {
    for (int i = 0; i < size_; ++i) {
      if (axes_[static_cast<size_t>(i)] == axis) return true;
    }
    return false;
  }
  bool operator==(const AxisList& other) const {
    if (size_ != other.size_) return false;
    for (int i = 0; i < size_; ++i) {
      if ((*this)[i] != other[i]) return false;
    }
    return true;
  }

 private:
  std::array<int8_t, kMaxMeshRank> axes_{};
  int8_t size_ = 0;
};

/// A mutable layout; see DistSpec.
struct SHARD_API Layout {
  const ProcessMesh* mesh = nullptr;
  int rank = 0;                                                 // dims of the tensor
  std::array<AxisList, kMaxRank> dims;                          // for each dim the axes that shard it
  std::array<std::optional<ReduceType>, kMaxMeshRank> partial;  // for each axis the pending reduction

  Layout() = default;
  /// Replicated on `mesh`.
  Layout(const ProcessMesh* mesh, int rank) : mesh(mesh), rank(rank) {}

  bool operator==(const Layout& other) const;
  /// The dim that `axis` shards, or -1.
  int dim_of(int axis) const;
  bool has_partial() const;
};

/// An interned layout: a mesh, per tensor dim an ordered list of the axes that shard it, and the
/// partial axes with their reduce types. Equal specs are the same object. Safe for concurrent use.
class SHARD_API DistSpec {
 public:
  /// Throws layout when an axis is out of range, or used twice.
  static const DistSpec* make(const Layout& layout);
  /// Parses a text such as "dp, tp+sp, - | sum(pp)": an entry per dim (- for none, + between
  /// several axes), and after | the partial axes. "" is the replicated layout of a scalar. The
  /// output of text() is accepted, too. Throws layout for anything else.
  static const DistSpec* parse(const ProcessMesh* mesh, std::string_view text);
  static const DistSpec* replicated(const ProcessMesh* mesh, int rank);

  const Layout& layout() const { return layout_; }
  const ProcessMesh* mesh() const { return layout_.mesh; }
  int rank() const { return layout_.rank; }
  const AxisList& axes(int dim) const { return layout_.dims[static_cast<size_t>(dim)]; }
  std::optional<ReduceType> partial(int axis) const { return layout_.partial[static_cast<size_t>(axis)]; }
  /// "[dp, -] sum(tp)", which parse accepts.
  const std::string& text() const { return text_; }

 private:
  explicit DistSpec(const Layout& layout);
  Layout layout_;
  std::string text_;
};

/// The part of a dim of `size` elements that the process at `at` holds when `axes` shard it.
/// Balanced: sizes differ by at most one, larger parts first; several axes nest. This is the only
/// function that knows which process owns which elements.
SHARD_API Range shard_range(int64_t size, const ProcessMesh& mesh, const AxisList& axes, const Coordinate& at);

/// The box of the local shard of the process at `at`.
SHARD_API ShardBox shard_box(const Layout& layout, const Dims& global, const Coordinate& at);
/// The dtype of the local shards of a tensor of `dtype`: float32 where a bf16 or f16 tensor has a
/// pending sum or average over an axis of several processes, so that contributions are not rounded
/// before they are added up; else `dtype`.
SHARD_API DType shard_dtype(DType dtype, const Layout& layout);
/// The shape and dtype of the local shard of a tensor on the process at `at`.
SHARD_API Meta shard_meta(const Meta& global, const DistSpec& spec, const Coordinate& at);

}  // namespace shard
