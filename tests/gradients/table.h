// The cases of the table of ops that have a gradient: how they are called with leaves, and differentiated once and twice.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gradients/table_facts.h"
#include "shard/autograd/autograd.h"
#include "shard/testing/op_cases.h"
#include "shard/testing/shards.h"

namespace shard::test {

using testing::CaseCall;
using testing::Random;
using testing::Tensors;

/// The facts of ops_yaml about gradients: the functions that have one, including in-place forms, and the backward
/// ops that have none.
struct Differentiable {
  std::set<std::string> functions, without_gradient;
};
const Differentiable& differentiable();

/// A case of an op with a gradient.
struct TableCase {
  const testing::OpCase* one;
  std::string op;  // without the _ of its in-place form
  bool in_place;

  std::string text() const { return one->op + " (" + one->name + ")"; }
  /// The same for the in-place form as for the op itself.
  uint64_t seed() const { return std::hash<std::string>()(op + " " + one->name); }
  CaseCall call(const std::vector<int64_t>& sizes, DType dtype = DType::float64) const {
    testing::Draw draw(seed(), dtype, sizes);
    return one->make(draw);
  }
};
/// Whether `list` has that tensor of the case.
bool listed(const std::vector<TensorsOfCase>& list, const TableCase& one, size_t place);

/// The cases that can be called with floats: also in float64, whatever the dtypes that they are tried in elsewhere.
const std::vector<TableCase>& table();

/// Values of the inputs of a call. Floats are whole numbers plus a fraction that is different for each of them,
/// some 2/1024 apart: none are equal or whole, where max, clip and similar functions have no derivative. They are
/// multiples of 2^-12, so contributions to a sum add up exactly. Numbers of 16 bits are rounded.
std::vector<DenseTensor> draw_values(const TableCase& one, const CaseCall& call, Random& random);
Tensors tensors_of(const std::vector<DenseTensor>& values);
/// Leaves with these values, of which those of floating dtypes require gradients where the op has them.
Tensors leaves_of(const TableCase& one, const Tensors& inputs);

/// The outputs that have gradients, of a call with leaves. In place it is made with copies.
Tensors run(const TableCase& one, const CaseCall& call, const Tensors& leaves);
/// Gradients of outputs, of their dtypes: multiples of 2^-12, of narrow dtypes whole numbers.
std::vector<DenseTensor> draw_out_grads(const Tensors& outputs, Random& random);

/// The gradients of outputs in all leaves; undefined where a leaf gets none.
Tensors gradients(const Tensors& outputs, const Tensors& leaves, const Tensors& out_grads,
                  const BackwardOptions& options = {});
/// A gradient that is absent counts as zeros.
Tensors zeros_for_none(Tensors grads, const Tensors& leaves);
/// The gradients, for leaves and for the gradients of the outputs, of the sum of all gradients times numbers that
/// `place` distributes.
Tensors second_gradients(const TableCase& one, const CaseCall& call, const Tensors& leaves, const Tensors& out_grads,
                         const std::function<Tensor(const Tensor&)>& place);

}  // namespace shard::test
