// The nodes of the planner's search: layouts packed into a word, and the table of those found so far.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "shard/reshard/plan.h"

namespace shard::search {

// A layout in one word. For each axis five bits are its place (a dim, none, or a pending reduction of a type), and
// above those of all axes three bits are its position among the axes of its dim.
using Key = uint64_t;
constexpr int kPlaceBits = 5;
constexpr int kOrderBits = 3;
constexpr Key kPlaceMask = (Key{1} << kPlaceBits) - 1;
constexpr Key kOrderMask = (Key{1} << kOrderBits) - 1;
constexpr int kNowhere = kMaxRank;
constexpr int kPending = kNowhere + 1;
static_assert(kPending + kNumReduceTypes <= (1 << kPlaceBits) && kMaxMeshRank <= (1 << kOrderBits));
static_assert(kMaxMeshRank * (kPlaceBits + kOrderBits) <= 64);
inline int place_shift(int axis) { return kPlaceBits * axis; }
inline int order_shift(int axis) { return kPlaceBits * kMaxMeshRank + kOrderBits * axis; }
inline int place(Key key, int axis) { return static_cast<int>(key >> place_shift(axis) & kPlaceMask); }
inline int order(Key key, int axis) { return static_cast<int>(key >> order_shift(axis) & kOrderMask); }
inline Key with(Key key, int axis, int at, int position) {
  key &= ~(kPlaceMask << place_shift(axis) | kOrderMask << order_shift(axis));
  return key | static_cast<Key>(at) << place_shift(axis) | static_cast<Key>(position) << order_shift(axis);
}

/// True for the place of an axis with a pending sum or average.
inline bool is_linear(int at) { return at >= kPending && is_linear(static_cast<ReduceType>(at - kPending)); }

/// True when pending reductions (their places) can be done in either order.
inline bool commute(int a, int b) { return a == b || (is_linear(a) && is_linear(b)); }

/// An unpacked layout: for each dim its axes in order and the number of shards.
struct View {
  Key key = 0;
  std::array<std::array<int8_t, kMaxMeshRank>, kMaxRank> axes;
  std::array<int8_t, kMaxRank> count{};
  std::array<int64_t, kMaxRank> shards;
  double bytes = 0;  // of the largest shard
};

struct Edge {
  Key to;
  ReshardStep::Kind kind;
  int axis;  // of steps along one axis, else -1
  double ns;
};

struct Node {
  Key key;
  double cost;  // so far
  double rest;  // lower bound
  int parent;
  ReshardStep::Kind kind;
  int axis;
  double ns;
  double bytes;
  bool closed;
};

/// The nodes by key, without allocation once it has grown, because planners run within calls.
class NodeTable {
 public:
  void clear() {
    nodes.clear();
    open.clear();
    std::fill(slots_.begin(), slots_.end(), -1);
  }
  /// The index of the node of `key`, or -1 after reserving room for a node that the caller adds next.
  int find_or_reserve(Key key) {
    if (slots_.size() < 4 * (nodes.size() + 1)) grow();
    size_t slot = hash(key) & (slots_.size() - 1);
    while (slots_[slot] >= 0) {
      if (nodes[static_cast<size_t>(slots_[slot])].key == key) return slots_[slot];
      slot = (slot + 1) & (slots_.size() - 1);
    }
    slots_[slot] = static_cast<int>(nodes.size());
    return -1;
  }

  std::vector<Node> nodes;
  std::vector<std::pair<double, int>> open;  // a heap: the smallest estimate first, then the node that was found first

 private:
  static size_t hash(Key key) { return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 40); }
  void grow() {
    slots_.assign(std::max<size_t>(64, slots_.size() * 2), -1);
    for (size_t i = 0; i < nodes.size(); ++i) {
      size_t slot = hash(nodes[i].key) & (slots_.size() - 1);
      while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = static_cast<int>(i);
    }
  }
  std::vector<int> slots_;
};

}  // namespace shard::search
