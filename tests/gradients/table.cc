#include "gradients/table.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "gradients/central_difference.h"
#include "shard/shard.h"
#include "support/source_dir.h"

namespace shard::test {

using testing::OpCase;
using testing::pick;

const Differentiable& differentiable() {
  static const Differentiable all = [] {
    struct Op {
      std::string backward;
      bool in_place = false, kernel = false, is_backward = false, recorded_as_composite = false;
    };
    std::map<std::string, Op> ops;
    for (const auto& file : std::filesystem::directory_iterator(source_dir() + "/ops_yaml")) {
      std::ifstream text(file.path());
      Op* op = nullptr;
      std::string line;
      for (std::smatch match; std::getline(text, line);) {
        if (std::regex_match(line, match, std::regex("- (backward_)?op : (\\w+)"))) {
          op = &ops[match[2]];
          op->is_backward = match[1].matched;
        }
        if (std::regex_match(line, match, std::regex("  backward : (\\w+)"))) op->backward = match[1];
        if (line.starts_with("  inplace :")) op->in_place = true;
        if (line.starts_with("  kernel :")) op->kernel = true;
        if (line.starts_with("    record_composite : true")) op->recorded_as_composite = true;
      }
    }
    // These in-place forms are not recorded, because they return new tensors beside their argument.
    for (const char* op : {"scatter_grad", "lu"}) ops.at(op).in_place = false;
    Differentiable found;
    for (const auto& [name, op] : ops) {
      if (op.is_backward && op.kernel && op.backward.empty() && !op.recorded_as_composite)
        found.without_gradient.insert(name);
      if (op.backward.empty()) continue;
      found.functions.insert(name);
      if (op.in_place && !name.ends_with('_')) found.functions.insert(name + "_");
    }
    // Their gradient is 0 by definition, not the slope of their numbers.
    for (const char* op :
         {"poisson", "uniform_inplace", "uniform_inplace_", "gaussian_inplace", "gaussian_inplace_", "exponential_"})
      found.functions.erase(op);
    return found;
  }();
  return all;
}

bool listed(const std::vector<TensorsOfCase>& list, const TableCase& one, size_t place) {
  return std::any_of(list.begin(), list.end(), [&](const TensorsOfCase& each) {
    const bool meant = each.op == one.op && (each.name == nullptr || each.name == one.one->name);
    return meant && std::find(each.places.begin(), each.places.end(), place) != each.places.end();
  });
}

const std::vector<TableCase>& table() {
  static const testing::OpCases cases = testing::op_cases();
  static const std::vector<TableCase> all = [] {
    std::vector<TableCase> found;
    for (const OpCase& one : cases) {
      if (!differentiable().functions.contains(one.op) ||
          std::none_of(one.dtypes.begin(), one.dtypes.end(), is_floating))
        continue;
      const std::string plain = one.op.ends_with('_') ? one.op.substr(0, one.op.size() - 1) : one.op;
      const bool in_place = plain != one.op && differentiable().functions.contains(plain);
      found.push_back({&one, in_place ? plain : one.op, in_place});
    }
    return found;
  }();
  return all;
}

std::vector<DenseTensor> draw_values(const TableCase& one, const CaseCall& call, Random& random) {
  int64_t count = 0;
  for (const auto& input : call.inputs) count += is_floating(input.dtype) ? input.dims.numel() : 0;
  const int64_t apart = std::max<int64_t>(1, 3072 / std::max<int64_t>(count, 1));
  std::vector<int64_t> fractions(static_cast<size_t>(count));
  for (size_t k = 0; k < fractions.size(); ++k) fractions[k] = 512 + static_cast<int64_t>(k) * apart % 3072;
  std::shuffle(fractions.begin(), fractions.end(), random);
  std::vector<DenseTensor> values;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    values.push_back(testing::draw_value(input, {}, random));
    if (!is_floating(input.dtype)) continue;
    const int64_t low = std::max<int64_t>(input.low, listed(kPositiveInputs, one, i) ? 1 : input.low),
                  high = std::max(low, input.high - 1);
    visit_dtype(input.dtype, [&]<class T>(TypeTag<T>) {
      for (int64_t e = 0; e < values.back().numel(); ++e) {
        const double value =
            static_cast<double>(pick(random, low, high)) + static_cast<double>(fractions.back()) / 4096;
        values.back().data<T>()[e] = static_cast<T>(static_cast<Compute<T>>(value));
        fractions.pop_back();
      }
    });
  }
  return values;
}

Tensors tensors_of(const std::vector<DenseTensor>& values) {
  Tensors tensors;
  for (const DenseTensor& value : values) tensors.emplace_back(clone(value));
  return tensors;
}

Tensors leaves_of(const TableCase& one, const Tensors& inputs) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    const bool wanted = is_floating(input.dtype()) && !listed(kConstantInputs, one, leaves.size());
    leaves.push_back(input.detach().set_requires_grad(wanted));
  }
  return leaves;
}

Tensors run(const TableCase& one, const CaseCall& call, const Tensors& leaves) {
  Tensors inputs;
  for (const Tensor& leaf : leaves) inputs.push_back(leaf.requires_grad() && !one.in_place ? leaf : assign(leaf));
  const Tensors outputs = call.run(inputs);
  Tensors found;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o].defined() && is_floating(outputs[o].dtype()) && !listed(kConstantOutputs, one, o))
      found.push_back(outputs[o]);
  }
  return found;
}

Tensors gradients(const Tensors& outputs, const Tensors& leaves, const Tensors& out_grads,
                  const BackwardOptions& options) {
  Tensors wanted;
  for (const Tensor& leaf : leaves) {
    if (leaf.requires_grad()) wanted.push_back(leaf);
  }
  const Tensors found = grad(outputs, wanted, out_grads, options, true);
  Tensors all;
  size_t next = 0;
  for (const Tensor& leaf : leaves) all.push_back(leaf.requires_grad() ? found[next++] : Tensor());
  return all;
}

Tensors zeros_for_none(Tensors grads, const Tensors& leaves) {
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined() && leaves[i].requires_grad()) grads[i] = full_like(leaves[i].detach(), 0);
  }
  return grads;
}

std::vector<DenseTensor> draw_out_grads(const Tensors& outputs, Random& random) {
  std::vector<DenseTensor> grads;
  for (const Tensor& output : outputs) {
    const int64_t unit = output.dtype() == DType::float64 ? 4096 : 1;
    std::vector<double> values(static_cast<size_t>(output.numel()));
    for (double& value : values)
      value = static_cast<double>(pick(random, -3 * unit, 3 * unit)) / static_cast<double>(unit);
    grads.push_back(cast(Tensor::from_data(values, output.dims()), output.dtype()).get().value);
  }
  return grads;
}

Tensors second_gradients(const TableCase& one, const CaseCall& call, const Tensors& leaves, const Tensors& out_grads,
                         const std::function<Tensor(const Tensor&)>& place) {
  Tensors all = leaves, first, weights;
  for (const Tensor& out_grad : out_grads) all.push_back(out_grad.detach().set_requires_grad(true));
  const Tensors outer(all.begin() + static_cast<ptrdiff_t>(leaves.size()), all.end());
  for (const Tensor& gradient : gradients(run(one, call, leaves), leaves, outer, {.create_graph = true})) {
    if (!gradient.defined() || !gradient.requires_grad()) continue;
    first.push_back(gradient);
    weights.push_back(
        place(cast(random_values(gradient.dims(), static_cast<unsigned>(first.size())), gradient.dtype())));
  }
  return zeros_for_none(gradients(first, all, weights), all);
}

}  // namespace shard::test
