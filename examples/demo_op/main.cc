// Calls the op of distance.yaml on one rank and on a 2x2 mesh, with inputs in three layouts. Prints
// what each call on the mesh planned, and the values side by side.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include <shard/shard.h>
#include "call_table.h"
#include "distance.h"
#include "kernel.h"

using namespace shard;

namespace {

constexpr int64_t kRows = 5, kColumns = 3, kInner = 7;  // a mesh axis of two ranks divides none of them

/// Small integers: their sums are exact in any order, so the values on the mesh must be equal, not
/// close.
Tensor integers(const Dims& dims, int64_t step) {
  std::vector<float> data(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(static_cast<int64_t>(i) * step % 11 - 5);
  return Tensor::from_data(data, dims);
}

void print_values(const std::vector<float>& values, int64_t row) {
  for (int64_t column = 0; column < kColumns; ++column)
    fmt::print("{:7.3f}", values[static_cast<size_t>(row * kColumns + column)]);
}

}  // namespace

int main() try {
  register_squared_distance();
  const Tensor x = integers({kRows, kInner}, 3), y = integers({kColumns, kInner}, 7);
  const std::vector<float> one_rank = sqrt(squared_distance(x, y)).to_vector<float>();

  const ProcessMesh* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  fmt::print(
      "sqrt(squared_distance(x, y)) of x {} and y {} on {}, as rank 0 sees it.\n"
      "Bytes are those that all ranks send together.\n\n",
      to_string(x.meta()), to_string(y.meta()), mesh->describe());
  print_header();
  struct {
    const char *x, *y;
  } const layouts[] = {{"dp, tp", "-, tp"}, {"dp, -", "tp, -"}, {"dp, -", "dp, -"}};
  std::vector<float> on_mesh;
  bool equal = true;
  World::local(mesh->size())->run([&](Rank& rank) {
    if (rank.id() == 0) rank.observer = print_call;
    for (const auto& layout : layouts) {
      const Tensor distance = sqrt(squared_distance(distribute(x, DistSpec::parse(mesh, layout.x)),  //
                                                    distribute(y, DistSpec::parse(mesh, layout.y))));
      const std::vector<float> values = full_tensor(distance).to_vector<float>();  // collective: every rank calls it
      if (rank.id() != 0) continue;
      fmt::print("\n");
      on_mesh = values;
      equal = equal && on_mesh == one_rank;
    }
  });

  fmt::print("{:<28}{}\n", " the values on one rank", " the values on the mesh");
  for (int64_t row = 0; row < kRows; ++row) {
    print_values(one_rank, row);
    fmt::print("{:7}", "");
    print_values(on_mesh, row);
    fmt::print("\n");
  }
  fmt::print("\n{}\n", equal ? "all values are equal, in each of the three layouts" : "the values differ");
  return equal ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "demo_op: {}\n", error.what());
  return 1;
}
