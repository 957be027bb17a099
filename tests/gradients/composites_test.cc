// Gradients of forward ops that are composites of other ops, which record themselves, and of statistics, against central differences.
#include <catch2/catch.hpp>

#include "gradients/central_difference.h"
#include "shard/shard.h"

namespace shard::test::composites_test {
namespace {

using Tensors = std::vector<Tensor>;

struct Composite {
  const char* name;
  std::vector<Dims> inputs;
  ForwardFunction forward;
};

/// A lower triangular matrix with a diagonal from 2 to 4.
Tensor factor(const Tensor& x) { return add(tril(x, -1), tril(triu(scale(x, 1, 3), 0), 0)); }

}  // namespace

TEST_CASE("gradients of composites are those of central differences") {
  const std::vector<Composite> all = {
      {"bmm", {{2, 3, 4}, {2, 4, 2}}, [](const Tensors& t) { return bmm(t[0], t[1]); }},
      {"mv", {{3, 4}, {4}}, [](const Tensors& t) { return mv(t[0], t[1]); }},
      {"dot", {{2, 4}, {2, 4}}, [](const Tensors& t) { return dot(t[0], t[1]); }},
      {"addmm", {{4}, {3, 2}, {2, 4}}, [](const Tensors& t) { return addmm(t[0], t[1], t[2], 0.5f, 2); }},
      {"cross", {{3, 2}, {3, 2}}, [](const Tensors& t) { return cross(t[0], t[1]); }},
      {"kron", {{2, 3}, {2}}, [](const Tensors& t) { return kron(t[0], t[1]); }},
      {"multi_dot", {{3}, {3, 2}, {2, 4}}, [](const Tensors& t) { return multi_dot(t); }},
      {"dist", {{3, 4}, {4}}, [](const Tensors& t) { return dist_op(t[0], t[1]); }},
      {"dist of order 3", {{3, 1}, {2, 1, 4}}, [](const Tensors& t) { return dist_op(t[0], t[1], 3); }},
      {"cholesky_solve", {{3, 2}, {3, 3}}, [](const Tensors& t) { return cholesky_solve(t[0], factor(t[1]), false); }},
      {"eigvalsh",
       {{3, 3}},
       [](const Tensors& t) {
         return std::get<0>(eigvalsh(add(t[0], transpose(t[0], {1, 0}))));
       }},
      {"matrix_power", {{2, 3, 3}}, [](const Tensors& t) { return matrix_power(t[0], 5); }},
      {"matrix_power of the inverse", {{3, 3}}, [](const Tensors& t) { return matrix_power(factor(t[0]), -2); }},
      {"logsumexp", {{3, 4}}, [](const Tensors& t) { return logsumexp(t[0], {1}, false, false); }},
      {"p_norm 1", {{3, 4}}, [](const Tensors& t) { return p_norm(t[0], 1, 0); }},
      {"p_norm 2", {{3, 4}}, [](const Tensors& t) { return p_norm(t[0], 2, 0, 0, true); }},
      {"p_norm 3", {{3, 4}}, [](const Tensors& t) { return p_norm(t[0], 3); }},
      {"p_norm of infinity", {{12}}, [](const Tensors& t) { return p_norm(scale(t[0], 1, 0.3), HUGE_VALF); }},
      {"norm", {{3, 4}}, [](const Tensors& t) { return std::get<0>(norm(t[0], 1, 0.5f)); }},
      {"norm, its size", {{3, 4}}, [](const Tensors& t) { return std::get<1>(norm(t[0], 0, 0.5f)); }},
      {"prelu by channel", {{2, 3, 2}, {3}}, [](const Tensors& t) { return prelu(t[0], t[1], "NCHW", "channel"); }},
      {"prelu by element", {{2, 3}, {3}}, [](const Tensors& t) { return prelu(t[0], t[1], "NCHW", "element"); }},
      {"spectral_norm without a step",
       {{3, 4}},
       [](const Tensors& t) {
         return spectral_norm(t[0], arange(1, 5, 1, DType::float64), arange(2, 5, 1, DType::float64), 1, 0);
       }},
      {"fused_bias_residual_layernorm",
       {{3, 4}, {4}, {3, 4}},
       [](const Tensors& t) {
         return std::get<0>(fused_bias_residual_layernorm(t[0], t[1], t[2], {}, {}, 0.5f, 2.0f, 1, -1, 0, 0, 0));
       }},
      {"affine_grid",
       {{2, 2, 3}},
       [](const Tensors& t) {
         return affine_grid(t[0], {2, 1, 3, 2});
       }},
      {"affine_grid of volumes",
       {{1, 3, 4}},
       [](const Tensors& t) {
         return affine_grid(t[0], {1, 1, 2, 1, 3}, false);
       }},
      {"var", {{3, 4}}, [](const Tensors& t) { return var(t[0], {1}); }},
      {"std", {{3, 4}}, [](const Tensors& t) { return std_op(t[0], {}, false, true); }},
      {"median", {{3, 5}}, [](const Tensors& t) { return median(t[0], {1}); }},
      {"masked_fill",
       {{3, 4}},
       [](const Tensors& t) { return masked_fill(t[0], greater_than(t[0], full_like(t[0], 0)), 2); }},
      {"nan_to_num", {{3, 4}}, [](const Tensors& t) { return nan_to_num(t[0]); }},
      {"l1_norm", {{3, 4}}, [](const Tensors& t) { return l1_norm(t[0]); }},
      {"mean_all", {{3, 4}}, [](const Tensors& t) { return mean_all(t[0]); }},
      {"reduce_as", {{3, 4}}, [](const Tensors& t) { return reduce_as(t[0], zeros({4}, DType::float64)); }},
  };
  for (const Composite& one : all) {
    INFO(one.name);
    Tensors inputs;
    unsigned seed = 0;
    for (const Dims& dims : one.inputs) inputs.push_back(distinct_values(dims, ++seed));
    const auto gradient = [&](const Tensors& at, const Tensor& out_grad) {
      Tensors leaves;
      for (const Tensor& input : at) leaves.push_back(input.detach().set_requires_grad(true));
      one.forward(leaves).backward(out_grad);
      Tensors grads;
      for (const Tensor& leaf : leaves) grads.push_back(leaf.grad());
      return grads;
    };
    CHECK(gradient_difference(one.forward, gradient, inputs) == "");
  }
}

}  // namespace shard::test::composites_test
