// Data errors on one rank in captured functions reach the other ranks like those of eager calls.
#include <catch2/catch.hpp>

#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/tensors.h"

namespace data_error_test {

using namespace shard;
using namespace shard::test;

TEST_CASE(
    "4, 29: a data error of one rank in a captured function fails the world at the next collective, and poisons what "
    "was written") {
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  const auto integers = [&](const std::vector<int32_t>& values) {
    return distribute(Tensor::from_data(values, {static_cast<int64_t>(values.size())}), DistSpec::parse(mesh, "p"));
  };
  run_torn_world(2, [&](Rank& rank) {
    CapturedFunction captured(
        [](const Tensors& in) -> Tensors {
          Tensor x = in[0];
          divide_(x, in[1]);
          return {sum(in[0])};
        },
        {});
    Tensor good = integers({2, 4, 6, 8});
    for (int i = 0; i < 2; ++i) full_tensor(captured({good, integers({1, 2, 1, 2})})[0]);
    // Every rank fails alike: the program continues.
    error_of([&] { captured({good, integers({0, 1, 1, 0})}); }, ErrorCode::invalid_argument);
    full_tensor(captured({good, integers({1, 1, 1, 1})})[0]);
    Tensor x = integers({1, 2, 3, 4});
    const Tensor y = integers({1, 1, 1, 0});
    std::string text;
    if (rank.id() == 0) text = error_of([&] { full_tensor(captured({x, y})[0]); }, ErrorCode::peer_failed);
    else
      check_contains(error_of(
                         [&] {
                           captured({x, y});
                         },
                         ErrorCode::invalid_argument),
                     "y is i32[4] and its element 3 is 0");
    if (rank.id() == 1) text = error_of([&] { full_tensor(good); }, ErrorCode::peer_failed);
    check_contains(text, "rank 1 failed in a distributed call that succeeded on rank 0");
    check_contains(text, "y is i32[4] and its element 3 is 0");
    error_of([&] { local(x); }, ErrorCode::poisoned);
  });
}

}  // namespace data_error_test
