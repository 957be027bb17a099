// Trains a network of two layers to classify the points of two spirals, on dp x tp ranks: points are sharded over dp,
// hidden features over tp.
// usage: train_mlp [--dp N] [--tp M] [..], or mpirun -n N*M train_mlp with the same options; see --help
#include <fmt/format.h>

#include <cmath>

#include <shard/shard.h>
#include "training.h"

using namespace shard;

namespace {

struct Options : training::Options {
  int64_t hidden = 64, batch = 128;
};

training::Run start(const ProcessMesh* mesh, const Options& options) {
  const auto on = [=](std::string_view layout) { return DistSpec::parse(mesh, layout); };
  const auto random = [&](const IntArray& shape, std::string_view layout, float deviation) {
    return gaussian(shape, on(layout), 0.0f, deviation, 0, options.dtype);
  };
  // Each rank makes its local shards in place, with the same values on every mesh. Two hidden
  // layers: the first sharded by columns, the second by rows.
  const Tensor in = random({2, options.hidden}, "-, tp", 1.0f), in_bias = random({options.hidden}, "tp", 1.0f);
  const Tensor middle = random({options.hidden, options.hidden}, "tp, -", 0.2f),
               middle_bias = zeros({options.hidden}, on("-"), options.dtype);
  const Tensor out = random({options.hidden, 2}, "-, -", 0.2f), out_bias = zeros({2}, on("-"), options.dtype);

  training::Run run;
  run.parameters = {in, in_bias, middle, middle_bias, out, out_bias};
  run.batch = [=, draw = training::Draw(options.seed)]() mutable -> std::vector<Tensor> {
    // Points of two spirals, half a turn apart.
    std::vector<double> points;
    std::vector<int64_t> spirals;
    for (int64_t i = 0; i < options.batch; ++i) {
      const double along = static_cast<double>(draw.below(1000)) / 1000;
      spirals.push_back(draw.below(2));
      const double angle = M_PI * (3 * along + static_cast<double>(spirals.back()));
      points.push_back(2 * along * std::cos(angle));
      points.push_back(2 * along * std::sin(angle));
    }
    return {distribute(cast(Tensor::from_data(points, {options.batch, 2}), options.dtype), on("dp, -")),
            distribute(Tensor::from_data(spirals, {options.batch}), on("dp"))};
  };
  run.loss = [=](const std::vector<Tensor>& batch) {
    const Tensor features = tanh(add(matmul(batch[0], in), in_bias));
    // adding the bias reduces the products over tp
    const Tensor mixed = tanh(add(matmul(features, middle), middle_bias));
    return mean(std::get<1>(cross_entropy_with_softmax(add(matmul(mixed, out), out_bias), batch[1])));
  };
  return run;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  options.rate = 1e-2;
  CLI::App app("Trains a small network to tell two spirals apart, on dp x tp ranks.");
  training::add_options(app, options);
  app.add_option("--hidden", options.hidden, "features of the hidden layers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "points a step, over all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return training::train("train_mlp", options, options.batch,
                         [&](const ProcessMesh* mesh) { return start(mesh, options); });
} catch (const std::exception& error) {
  fmt::print(stderr, "train_mlp: {}\n", error.what());
  return 1;
}
