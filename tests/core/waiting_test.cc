// The hooks around waits for other ranks.
#include "shard/core/waiting.h"

#include <catch2/catch.hpp>

namespace waiting_test {

using namespace shard;

namespace {

int began = 0, ended = 0;

}  // namespace

TEST_CASE("a scope calls the hooks that are set, and none before that") {
  const WaitHooks before = wait_hooks();
  { const WaitScope scope; }
  CHECK(began == 0);
  set_wait_hooks({.begin = []() -> void* { return ++began, &began; },
                  .end = [](void* state) { ended += state == &began ? 1 : 100; }});
  {
    const WaitScope scope;
    CHECK((began == 1 && ended == 0));
  }
  CHECK((began == 1 && ended == 1));
  set_wait_hooks(before);
}

}  // namespace waiting_test
