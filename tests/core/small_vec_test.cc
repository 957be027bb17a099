// Vectors that store their first elements in place, and counted references.
#include "shard/core/small_vec.h"

#include <catch2/catch.hpp>

#include <utility>
#include <vector>

#include "shard/core/ref.h"

namespace small_vec_test {

using namespace shard;

namespace {

using Small = SmallVec<int, 4>;

Small counted(int count) {
  Small v;
  for (int i = 0; i < count; ++i) v.push_back(i);
  return v;
}

bool is_counted(const Small& v, int count) {
  if (v.size() != static_cast<size_t>(count)) return false;
  for (int i = 0; i < count; ++i) {
    if (v[static_cast<size_t>(i)] != i) return false;
  }
  return true;
}

struct Counted : RefCounted {
  explicit Counted(int* deaths) : deaths(deaths) {}
  static void destroy(Counted* self) {
    ++*self->deaths;
    delete self;
  }
  int* deaths;
};

}  // namespace

TEST_CASE("a small vector grows past its own place and keeps its elements") {
  for (int count : {0, 1, 4, 5, 8, 9, 100}) CHECK(is_counted(counted(count), count));
  Small v{1, 2, 3};
  v.pop_back();
  CHECK(v == Small{1, 2});
  CHECK(v.back() == 2);
  v.clear();
  CHECK(v.empty());
  CHECK(Small(6, 7) == Small{7, 7, 7, 7, 7, 7});
}

TEST_CASE("a small vector copies and moves, in place and beyond") {
  for (int count : {0, 3, 4, 5, 50}) {
    Small v = counted(count);
    const Small copy = v;
    CHECK(is_counted(copy, count));
    Small moved = std::move(v);
    CHECK(is_counted(moved, count));
    CHECK(v.empty());  // NOLINT: a moved-from one is empty and usable
    v.push_back(0);
    CHECK(is_counted(v, 1));
    for (int other : {0, 3, 60}) {
      Small target = counted(other);
      target = copy;
      CHECK(is_counted(target, count));
      target = counted(other);
      CHECK(is_counted(target, other));
    }
  }
  Small self = counted(9);
  const Small& same = self;
  self = same;
  CHECK(is_counted(self, 9));
}

TEST_CASE("a small vector appends ranges") {
  const std::vector<int> more = {4, 5, 6, 7, 8, 9};
  Small v = counted(4);
  v.append(more.data(), more.size());
  CHECK(is_counted(v, 10));
  v.append(nullptr, 0);
  CHECK(v.size() == 10);
  const std::span<const int> view = v;
  CHECK(view.size() == 10);
  CHECK(Small(view) == v);
}

TEST_CASE("the last reference destroys, and moves and self-assignment count right") {
  int deaths = 0;
  {
    Ref<Counted> a = Ref<Counted>::adopt(new Counted(&deaths));
    Ref<Counted> b = a;
    CHECK(a == b);
    a = nullptr;
    CHECK_FALSE(static_cast<bool>(a));
    CHECK(deaths == 0);
    const Ref<Counted>& same = b;
    b = same;
    const Ref<Counted> c = std::move(b);
    CHECK(deaths == 0);
    CHECK(static_cast<bool>(c));
  }
  CHECK(deaths == 1);
}

}  // namespace small_vec_test
