// Helpers for the tests of forms.yaml: the registration of its kernels and rule, and counters that its functions
// increment.
#pragma once

#include <fmt/format.h>

#include <set>

#include "forms.h"
#include "shard/call/plan_cache.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::test {

/// Registers the kernels and the rule of forms.yaml; every test of them calls it first.
void use_forms();
void register_form_rules();

/// How often this thread inferred the metas of an op that counts.
extern thread_local int inferences;

inline std::vector<float> floats(const Tensor& tensor) { return tensor.to_vector<float>(); }

/// True when `tensor` has the bits of the plain tensor `expected` in the ranks of its mesh. Collective.
template <class T = float>
bool same_bits(const Tensor& tensor, const Tensor& expected) {
  return full_equals<T>(tensor, expected.to_vector<T>());
}

}  // namespace shard::test
