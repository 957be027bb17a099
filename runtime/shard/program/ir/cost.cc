#include "shard/program/ir/cost.h"

#include <cmath>

#include "shard/program/ir/live.h"

namespace shard::program {
namespace {

double elements_of(const Type& type) {
  const Dims& dims = type.meta.dims;
  return static_cast<double>(type.spec == nullptr ? dims.numel()
                                                  : shard_box(type.spec->layout(), dims, Coordinate{}).dims.numel());
}

}  // namespace

// For m x k times k x n, the square root of mk * kn * mn is the number of multiplications.
double products_of(const Program& program, const Op& op) {
  if (op.kind != Kind::call || op.entry->op->commutes != Commutes::multilinear || op.entry->op->elementwise ||
      op.inputs.size() != 2)
    return 0;
  double product = elements_of(program.value(op.outputs[0]).type);
  for (const Operand& input : op.inputs) product *= elements_of(program.value(input.value).type);
  return std::sqrt(product);
}

double cost_of(const Program& program, const Op& op) {
  double bytes = 0;
  for (const Operand& input : op.inputs)
    bytes += input.value == 0 ? 0 : static_cast<double>(bytes_of(program.value(input.value).type));
  for (const ValueId id : op.outputs) bytes += id == 0 ? 0 : static_cast<double>(bytes_of(program.value(id).type));
  return 0.1 * bytes + 0.03 * products_of(program, op);
}

}  // namespace shard::program
