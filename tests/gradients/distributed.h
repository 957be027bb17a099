// Runs a gradient function on a mesh in every one-axis layout of its arguments, and compares with the result on one
// rank.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/mesh_run.h"

namespace shard::test {

/// From the arguments of a gradient function, the gradient of the output last, to its results.
using GradientCall = std::function<std::vector<Tensor>(const std::vector<Tensor>& arguments)>;

/// The layouts of a tensor on a mesh of one axis "a": replicated, sharded on each dim, and pending with each of
/// `types`.
inline std::vector<const DistSpec*> one_axis_layouts(const ProcessMesh* mesh, const Dims& dims,
                                                     const std::vector<ReduceType>& types = {}) {
  std::vector<const DistSpec*> specs = {DistSpec::replicated(mesh, dims.rank())};
  for (int d = 0; d < dims.rank(); ++d) {
    Layout layout(mesh, dims.rank());
    layout.dims[static_cast<size_t>(d)].push_back(0);
    specs.push_back(DistSpec::make(layout));
  }
  for (const ReduceType type : types) {
    Layout layout(mesh, dims.rank());
    layout.partial[0] = type;
    specs.push_back(DistSpec::make(layout));
  }
  return specs;
}

/// Empty when `call` has on 2 and 3 ranks, for each choice of one-axis layouts of float64 and bool arguments, the
/// same result as on one rank; sums over ranks may differ by rounding.
inline std::string mesh_difference(const GradientCall& call, const std::vector<Tensor>& arguments) {
  const std::vector<Tensor> expected = call(arguments);
  std::string found;
  std::mutex lock;
  for (const int ranks : {2, 3}) {
    const ProcessMesh* mesh = ProcessMesh::make({ranks}, {}, {"a"});
    run_ranks(ranks, [&](Rank&) {
      std::vector<std::vector<const DistSpec*>> layouts;
      size_t choices = 1;
      for (const Tensor& argument : arguments)
        layouts.push_back(one_axis_layouts(mesh, argument.dims())), choices *= layouts.back().size();
      for (size_t choice = 0; choice < choices; ++choice) {
        std::vector<Tensor> shards;
        std::string text;
        size_t rest = choice;
        for (size_t i = 0; i < arguments.size(); ++i) {
          const DistSpec* spec = layouts[i][rest % layouts[i].size()];
          rest /= layouts[i].size();
          shards.push_back(distribute(arguments[i], spec));
          text += " " + spec->text();
        }
        const std::vector<Tensor> results = call(shards);
        for (size_t r = 0; r < expected.size(); ++r) {
          if (!expected[r].defined()) continue;
          const Tensor whole = full_tensor(results[r]);
          const std::vector<double> want = expected[r].to_vector<double>(), got = whole.to_vector<double>();
          bool equal = whole.meta() == expected[r].meta();
          for (size_t i = 0; equal && i < want.size(); ++i) {
            equal = std::abs(got[i] - want[i]) <= 1e-13 * (1 + std::abs(want[i])) ||
                    (std::isnan(got[i]) && std::isnan(want[i]));
          }
          const std::scoped_lock guard(lock);
          if (!equal)
            found += "result " + std::to_string(r) + " on " + std::to_string(ranks) + " ranks with" + text + "; ";
        }
      }
    });
  }
  return found;
}

}  // namespace shard::test
