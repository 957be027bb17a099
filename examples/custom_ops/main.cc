// Runs the ops of my_ops.yaml on plain tensors and on a 2x2 mesh whose sizes do not divide their
// dims, and compares with a loop.
#include <cmath>
#include <cstdio>
#include <exception>

#include <shard/shard.h>
#include "kernels.h"
#include "my_ops.h"

using namespace shard;

namespace {

constexpr int64_t kRows = 5, kColumns = 7;

std::vector<float> values(int64_t count, float phase) {
  std::vector<float> data(static_cast<size_t>(count));
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::sin(0.3f * static_cast<float>(i) + phase);
  return data;
}

const std::vector<float> x_values = values(kRows * kColumns, 0.1f), scale_values = values(kColumns, 1),
                         shift_values = values(kColumns, 2);

/// The result of compute(), computed by a loop.
std::vector<float> expected() {
  std::vector<float> out = x_values;
  for (size_t i = 0; i < out.size(); ++i) {
    const float shifted = out[i] * scale_values[i % kColumns] + shift_values[i % kColumns];
    out[i] = 2 * shifted / (1 + std::exp(-1.5f * shifted));
  }
  return out;
}

/// The same with ops; `place` returns a plain or a distributed tensor.
template <class Place>
Tensor compute(Place place) {
  Tensor x = place(Tensor::from_data(x_values, {kRows, kColumns}), "dp, tp");
  const Tensor scale = place(Tensor::from_data(scale_values, {kColumns}), "tp");
  const Tensor shift = place(Tensor::from_data(shift_values, {kColumns}), "-");
  scale_shift_(x, scale, shift);
  return twice(swish_scale(x, 1.5f));
}

bool agrees(const char* what, const Tensor& tensor) {
  const std::vector<float> got = tensor.to_vector<float>(), wanted = expected();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::abs(got[i] - wanted[i]) <= 1e-5f) continue;
    std::printf("%s: element %zu is %g, expected %g\n", what, i, static_cast<double>(got[i]),
                static_cast<double>(wanted[i]));
    return false;
  }
  std::printf("%s: as the loop\n", what);
  return got.size() == wanted.size();
}

}  // namespace

int main() try {
  register_my_kernels();
  bool good = agrees("plain", compute([](Tensor tensor, const char*) { return tensor; }));

  const ProcessMesh* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  World::local(4)->run([&](Rank& rank) {
    const Tensor out =
        compute([&](Tensor tensor, const char* layout) { return distribute(tensor, DistSpec::parse(mesh, layout)); });
    const Tensor whole = full_tensor(out);  // collective: every rank takes part
    if (rank.id() == 0) good = agrees("2x2 mesh", whole) && good;
  });
  return good ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "custom_ops: %s\n", error.what());
  return 1;
}
